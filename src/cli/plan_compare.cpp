// The page and the JSON of `trireme plan compare`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/plan_report.h"
#include "observe/format.h"
#include "observe/page.h"

namespace trireme::cli {
namespace {

using observe::Page;
using observe::percent;
using observe::short_bytes;
using observe::short_number;

/// Purposes of either plan, as the fullest ranks have them, in the order of the first.
std::vector<std::string_view> purposes(const std::array<const PlanReport*, 2>& plans) {
  std::vector<std::string_view> names;
  for (const PlanReport* plan : plans)
    for (const plan::MemoryItem& item : plan->memory.most().items)
      if (std::ranges::find(names, item.purpose) == names.end()) names.push_back(item.purpose);
  return names;
}

double bytes_of(const PlanReport& plan, std::string_view purpose) {
  const auto& items = plan.memory.most().items;
  const auto found = std::ranges::find(items, purpose, &plan::MemoryItem::purpose);
  return found == items.end() ? 0 : found->bytes;
}

std::string milliseconds(double seconds) { return fmt::format("{:.4g} ms", seconds * 1e3); }
std::string bytes(double value) { return short_bytes(static_cast<int64_t>(std::llround(value))); }

class Table {
 public:
  explicit Table(Page& page) : page_(page) {}
  void text(std::string_view what, const std::string& a, const std::string& b) {
    page_.line("  {:<22} {:>14} {:>14}", what, a, b);
  }
  /// With how many times as much B is.
  template <typename Words>
  void number(std::string_view what, double a, double b, const Words& words) {
    if (a <= 0 && b <= 0) return;
    const std::string times = a > 0 && b > 0 ? fmt::format("  x {:.3f}", b / a) : "";
    page_.line("  {:<22} {:>14} {:>14}{}", what, a > 0 ? words(a) : "-", b > 0 ? words(b) : "-", times);
  }

 private:
  Page& page_;
};

}  // namespace

std::string to_comparison(const std::string& name_a, const PlanReport& a, const std::string& name_b,
                          const PlanReport& b) {
  Page page;
  page.section("A", "{}: {}", name_a, to_text(a.layout));
  page.section("B", "{}: {}", name_b, to_text(b.layout));
  for (const PlanReport* plan : {&a, &b}) {
    for (const std::string& text : plan->assumed) page.line("{}: {}", plan == &a ? "A" : "B", text);
    if (!plan->missing.empty())
      page.line("{}: not in `trireme train` yet: {}", plan == &a ? "A" : "B", fmt::join(plan->missing, ", "));
  }
  page.section("Memory", "of the fullest rank, A then B");
  Table table(page);
  table.text("verdict", std::string(name_of(a.memory.verdict)), std::string(name_of(b.memory.verdict)));
  table.number("in all", a.memory.most().bytes, b.memory.most().bytes, bytes);
  for (const std::string_view purpose : purposes({&a, &b}))
    table.number(purpose, bytes_of(a, purpose), bytes_of(b, purpose), bytes);
  // Of tokens: batches may differ.
  const double speed = b.time.tokens_per_second_gpu / a.time.tokens_per_second_gpu;
  page.section("Step", "of {} and {} tokens; {}", observe::thousands(a.job.tokens_per_step()),
               observe::thousands(b.job.tokens_per_step()),
               speed == 1  ? "equally fast"
               : speed < 1 ? fmt::format("A has {:.3f} x the tokens/s", 1 / speed)
                           : fmt::format("B has {:.3f} x the tokens/s", speed));
  table.number("seconds", a.time.seconds, b.time.seconds, milliseconds);
  for (size_t i = 0; i < plan::kTerms; ++i)
    table.number(name_of(static_cast<plan::Term>(i)), a.time.terms[i], b.time.terms[i], milliseconds);
  const auto rate = [](double value) { return short_number(value); };
  table.number("tokens/s a GPU", a.time.tokens_per_second_gpu, b.time.tokens_per_second_gpu, rate);
  table.number("MFU", a.time.mfu, b.time.mfu, [](double value) { return percent(value); });
  if (!a.campaign || !b.campaign) return page.take();
  page.section("Run", "of {:.4g} and {:.4g} tokens", a.campaign->tokens, b.campaign->tokens);
  const auto plain = [](double value) { return fmt::format("{:.4g}", value); };
  table.number("days", a.campaign->days, b.campaign->days, plain);
  table.number("GPU-hours", a.campaign->gpu_hours, b.campaign->gpu_hours, plain);
  table.number("USD", a.campaign->usd, b.campaign->usd, plain);
  table.number("MWh", a.campaign->mwh, b.campaign->mwh, plain);
  table.number("t CO2", a.campaign->tonnes_co2, b.campaign->tonnes_co2, plain);
  return page.take();
}

nlohmann::json comparison_json(const PlanReport& a, const PlanReport& b) {
  return {{"a", to_json(a)},
          {"b", to_json(b)},
          {"speed_of_b", b.time.tokens_per_second_gpu / a.time.tokens_per_second_gpu},
          {"memory_of_b", b.memory.most().bytes / a.memory.most().bytes}};
}

}  // namespace trireme::cli
