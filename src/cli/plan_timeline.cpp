#include "cli/plan_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "observe/format.h"
#include "plan/timeline.h"

namespace trireme::cli {
namespace {

using plan::Slice;
using Ranks = std::vector<std::vector<Slice>>;

// "forward 3", "backward 3 of chunk 1"
std::string label(const Slice& slice, int64_t chunks) {
  if (slice.kind != Slice::Kind::forward && slice.kind != Slice::Kind::backward)
    return std::string(name_of(slice.kind));
  const std::string pass = fmt::format("{} {}", name_of(slice.kind), slice.micro_batch);
  return chunks > 1 ? fmt::format("{} of chunk {}", pass, slice.chunk) : pass;
}

std::string title(const PlanReport& report) {
  return fmt::format("{} on {} x {}: {}", report.job.shape.name, report.job.gpus, report.job.accelerator.name,
                     to_text(report.layout));
}

// Trace Event Format; times in microseconds.
std::string to_trace(const Ranks& ranks, const PlanReport& report) {
  using nlohmann::json;
  json events = json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"args", {{"name", title(report)}}}});
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", rank},
                      {"args", {{"name", fmt::format("pipeline rank {}", rank)}}}});
    for (const Slice& slice : ranks[rank]) {
      json terms = json::object();
      for (size_t i = 0; i < plan::kTerms; ++i)
        if (slice.terms[i] > 0)
          terms[fmt::format("{}, us", name_of(static_cast<plan::Term>(i)))] = slice.terms[i] * 1e6;
      events.push_back({{"name", label(slice, report.layout.virtual_stages)},
                        {"cat", name_of(slice.kind)},
                        {"ph", "X"},
                        {"ts", slice.begin * 1e6},
                        {"dur", slice.seconds * 1e6},
                        {"pid", 0},
                        {"tid", rank},
                        {"args", terms}});
    }
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump();
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

// The largest of 1, 2 and 5 x a power of ten that leaves at least five steps in `span`.
double tick(double span) {
  const double raw = span / 5, power = std::pow(10.0, std::floor(std::log10(raw)));
  return power * (raw >= 5 * power ? 5 : raw >= 2 * power ? 2 : 1);
}

std::string to_svg(const Ranks& ranks, const PlanReport& report) {
  constexpr double kLeft = 130, kWidth = 1100, kTop = 56, kRow = 26, kBar = 20;
  constexpr std::array<std::pair<Slice::Kind, const char*>, 4> kColors = {{{Slice::Kind::forward, "#6a9fd8"},
                                                                           {Slice::Kind::backward, "#7dbb7d"},
                                                                           {Slice::Kind::exchange, "#e0a050"},
                                                                           {Slice::Kind::update, "#9a9a9a"}}};
  double end = 0;
  for (const auto& slices : ranks) end = std::max(end, slices.back().begin + slices.back().seconds);
  const double scale = kWidth / end, bottom = kTop + kRow * static_cast<double>(ranks.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text "
      "x=\"8\" y=\"18\" font-size=\"14\">{2}</text>\n",
      kLeft + kWidth + 20, bottom + 34, escaped(title(report)));
  double x = kLeft;
  for (const auto& [kind, color] : kColors) {
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.1f}\" y=\"40\">{}</text>\n",
        x, color, x + 16, name_of(kind));
    x += 100;
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\">pipeline rank {}</text>\n", y + 14, rank);
    for (const Slice& slice : ranks[rank]) {
      const auto color = std::ranges::find(kColors, slice.kind, &std::pair<Slice::Kind, const char*>::first)->second;
      const double width = slice.seconds * scale;
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"white\" "
          "stroke-width=\"{}\"><title>{}: {:.4g} ms from {:.4g} ms</title></rect>\n",
          kLeft + slice.begin * scale, y, width, kBar, color, width > 3 ? 0.7 : 0,
          label(slice, report.layout.virtual_stages), slice.seconds * 1e3, slice.begin * 1e3);
      const bool pass = slice.kind == Slice::Kind::forward || slice.kind == Slice::Kind::backward;
      if (pass && width > 18)
        svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" pointer-events=\"none\">{}</text>\n",
                           kLeft + (slice.begin + slice.seconds / 2) * scale, y + 14, slice.micro_batch);
    }
  }
  const double step = tick(end);
  for (int64_t i = 0; static_cast<double>(i) * step <= end; ++i) {
    const double at = kLeft + static_cast<double>(i) * step * scale;
    svg += fmt::format(
        "<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#00000030\"/><text x=\"{0:.2f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4:.4g} ms</text>\n",
        at, kTop - 4, bottom, bottom + 16, static_cast<double>(i) * step * 1e3);
  }
  return svg + "</svg>\n";
}

}  // namespace

void write_timeline(const std::string& file, const PlanReport& report) {
  const std::string kind = std::filesystem::path(file).extension();
  const Ranks ranks = plan::timeline(report.job, report.layout);
  if (kind == ".json") return write_file_durably(file, to_trace(ranks, report));
  if (kind == ".svg") return write_file_durably(file, to_svg(ranks, report));
  throw_internal("a timeline in {}", file);
}

}  // namespace trireme::cli
