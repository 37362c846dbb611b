// The page and the JSON of `trireme plan explain`.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/plan_report.h"
#include "observe/format.h"
#include "observe/page.h"

namespace trireme::cli {
namespace {

using Unit = plan::Explanation::Unit;

std::string in_words(const plan::Explanation& explanation) {
  switch (explanation.unit) {
    case Unit::seconds:
      return fmt::format("{:.4g} ms a step", 1e3 * explanation.value);
    case Unit::bytes:
      return observe::short_bytes(std::llround(explanation.value));
    case Unit::share:
      return observe::percent(explanation.value);
  }
  return "";
}

}  // namespace

std::string to_page(const plan::Explanation& explanation, const PlanReport& report) {
  constexpr size_t kParts = 12;
  observe::Page page;
  page.section("Layout", "{}", to_text(report.layout));
  if (!report.fits()) page.line("does not fit: {}", report.memory.breaks);
  page.section("Term", "{}: {}", explanation.name, in_words(explanation));
  page.section("Formula", "{}", explanation.formula);
  for (const auto& [name, value] : explanation.numbers) page.line("  {:<24} {}", name, value);
  if (!explanation.parts.empty()) {
    page.section("Parts", "of one micro-batch through a block, and the head: forward and backward, us");
    for (size_t i = 0; i < std::min(explanation.parts.size(), kParts); ++i) {
      const plan::Part& part = explanation.parts[i];
      page.line("  {:<24} {:>10.1f} {:>10.1f}  {}", part.name, 1e6 * part.forward, 1e6 * part.backward, part.size);
    }
    if (explanation.parts.size() > kParts) page.line("  and {} smaller ones", explanation.parts.size() - kParts);
  }
  page.section("Source", "{}", explanation.source);
  return page.take();
}

nlohmann::json to_json(const plan::Explanation& explanation) {
  constexpr const char* kUnits[] = {"seconds", "bytes", "share"};
  nlohmann::json result = {{"name", explanation.name},       {"unit", kUnits[static_cast<size_t>(explanation.unit)]},
                           {"value", explanation.value},     {"formula", explanation.formula},
                           {"numbers", explanation.numbers}, {"parts", nlohmann::json::array()},
                           {"source", explanation.source}};
  for (const plan::Part& part : explanation.parts)
    result["parts"].push_back(
        {{"name", part.name}, {"size", part.size}, {"forward_s", part.forward}, {"backward_s", part.backward}});
  return result;
}

}  // namespace trireme::cli
