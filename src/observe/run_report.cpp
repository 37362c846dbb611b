#include "observe/run_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "config/config.h"
#include "config/option.h"
#include "observe/format.h"

namespace trireme::observe {
namespace {

using Point = RunHistory::Point;

// Okabe and Ito's colours, told apart by most eyes; the order is that of the runs.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                 "#e69f00", "#56b4e9", "#7f7f7f", "#b8a800"};

constexpr double kWidth = 620, kHeight = 300, kLeft = 64, kRight = 14, kTop = 10, kBottom = 34;
constexpr size_t kMostPoints = 1000;

struct Chart {
  std::string title;
  std::string unit;
  std::string key;
  bool dots;  ///< few points, each worth seeing
};
const Chart kCharts[] = {{"Training loss", "nats a token", "loss", false},
                         {"Held-out text", "bits a byte", "eval_bits_per_byte", true},
                         {"Questions answered right", "acc, a share of 1", "eval_acc", true},
                         {"Questions answered right by bytes", "acc_norm, a share of 1", "eval_acc_norm", true},
                         {"Gradient norm", "before clipping", "grad_norm", false},
                         {"Learning rate", "", "lr", false},
                         {"Speed", "tokens a second", "tokens_per_second", false},
                         {"MFU", "of the measured matmul rate", "mfu", false},
                         {"Waiting for data", "s a step", "data_time_s", false},
                         {"Waiting for workers", "s a step", "comm_exposed_s", false},
                         {"Memory", "bytes, highest of all workers", "peak_memory_bytes", false}};

std::string escape(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        // Control characters are not XML, not even escaped.
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') safe += c;
    }
  }
  return safe;
}

/// The lowest and the highest point of each of equal stretches, in order.
std::vector<Point> thinned(const std::vector<Point>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<Point> result;
  const size_t stretches = kMostPoints / 2;
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + static_cast<int64_t>(i * points.size() / stretches);
    const auto end = points.begin() + static_cast<int64_t>((i + 1) * points.size() / stretches);
    auto [low, high] =
        std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.value < b.value; });
    if (low > high) std::swap(low, high);
    result.push_back(*low);
    if (low != high) result.push_back(*high);
  }
  return result;
}

/// Round numbers over [low, high], four to eight of them.
std::vector<double> ticks(double low, double high) {
  const double rough = (high - low) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= rough * 0.75) {
      step = power * factor;
      break;
    }
  }
  std::vector<double> marks;
  for (double mark = std::ceil(low / step) * step; mark <= high + step * 1e-9; mark += step)
    marks.push_back(std::abs(mark) < step * 1e-9 ? 0 : mark);
  return marks;
}

std::string label(double value) {
  if (value != 0 && (std::abs(value) < 1e-3 || std::abs(value) >= 1e15)) return fmt::format("{:.3g}", value);
  if (std::abs(value) >= 10000) return short_number(value);
  return fmt::format("{:.4g}", value);
}

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// A range of one value gets room around it.
  void widen() {
    if (low < high) return;
    const double room = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= room;
    high += room;
  }
};

std::string draw(const Chart& chart, std::span<const RunHistory> runs) {
  Range x, y;
  for (const RunHistory& run : runs) {
    const auto found = run.series.find(chart.key);
    if (found == run.series.end()) continue;
    for (const Point& point : found->second) {
      x.add(point.step);
      y.add(point.value);
    }
  }
  if (x.low > x.high) return "";
  x.widen();
  y.widen();
  const double room = (y.high - y.low) * 0.05;
  y.low -= y.low >= 0 ? std::min(room, y.low) : room;
  y.high += room;
  const auto across = [&](double step) {
    return kLeft + (step - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  };
  const auto down = [&](double value) {
    return kTop + (y.high - value) / (y.high - y.low) * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format(
      "<figure><figcaption>{}{}</figcaption>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
      "role=\"img\">\n"
      "<title>{}</title>\n",
      escape(chart.title), chart.unit.empty() ? "" : fmt::format(" <small>{}</small>", escape(chart.unit)), kWidth,
      kHeight, escape(chart.title));
  for (const double mark : ticks(y.low, y.high))
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" class=\"y\">{}</text>\n",
        kLeft, down(mark), kWidth - kRight, kLeft - 6, down(mark) + 4, label(mark));
  for (const double mark : ticks(x.low, x.high))
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"x\">{}</text>\n", across(mark), kHeight - kBottom + 18,
                       label(mark));
  svg += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\"/>\n", kLeft, kTop, kHeight - kBottom,
                     kWidth - kRight);
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto found = runs[i].series.find(chart.key);
    if (found == runs[i].series.end()) continue;
    std::string path;
    std::string dots;
    for (const Point& point : thinned(found->second)) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", across(point.step), down(point.value));
      if (chart.dots || found->second.size() == 1)
        dots +=
            fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>step {}: {}</title></circle>",
                        across(point.step), down(point.value), kColours[i % kColours.size()], point.step,
                        fmt::format("{:.6g}", point.value));
    }
    svg += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"{}\"><title>{}</title></path>{}\n",
                       kColours[i % kColours.size()], path, escape(runs[i].name), dots);
  }
  return svg + "</svg></figure>\n";
}

/// The charts of every run, those of named sets after that of data.eval_path.
std::vector<Chart> charts_of(std::span<const RunHistory> runs) {
  std::set<std::string> keys;
  for (const RunHistory& run : runs)
    for (const auto& [key, points] : run.series) keys.insert(key);
  std::vector<Chart> charts;
  for (const Chart& chart : kCharts) {
    charts.push_back(chart);
    const std::string prefix = chart.key + "/";
    for (auto key = keys.lower_bound(prefix); key != keys.end() && key->starts_with(prefix); ++key)
      charts.push_back({fmt::format("{}: {}", chart.title, key->substr(prefix.size())), chart.unit, *key, chart.dots});
  }
  return charts;
}

const Point* last(const RunHistory& run, const char* key) {
  const auto found = run.series.find(key);
  return found == run.series.end() || found->second.empty() ? nullptr : &found->second.back();
}

std::string cell(const Point* point, const std::function<std::string(double)>& show) {
  return fmt::format("<td>{}</td>", point == nullptr ? "" : show(point->value));
}

std::string table_of_runs(std::span<const RunHistory> runs) {
  std::string html =
      "<table><tr><th></th><th>run</th><th>steps</th><th>tokens</th><th>last loss</th><th>best bits a byte</th>"
      "<th>tokens a second</th><th>memory</th><th>skipped</th></tr>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunHistory& run = runs[i];
    const auto number = [](const char* format) {
      return [format](double value) { return fmt::format(fmt::runtime(format), value); };
    };
    const Point* step = last(run, "loss");
    const Point* best = nullptr;
    if (const auto found = run.series.find("eval_bits_per_byte"); found != run.series.end()) {
      for (const Point& point : found->second)
        if (best == nullptr || point.value < best->value) best = &point;
    }
    std::vector<double> speeds;
    if (const auto found = run.series.find("tokens_per_second"); found != run.series.end())
      for (const Point& point : found->second) speeds.push_back(point.value);
    std::ranges::sort(speeds);
    html += fmt::format(
        "<tr><td><b style=\"color:{}\">&#9632;</b></td><td>{}</td><td>{}</td>{}{}{}<td>{}</td>{}<td>{}</td></tr>\n",
        kColours[i % kColours.size()], escape(run.name),
        step == nullptr ? "" : thousands(static_cast<int64_t>(step->step)),
        cell(last(run, "tokens"), [](double v) { return short_number(v); }), cell(step, number("{:.4f}")),
        cell(best, number("{:.4f}")), speeds.empty() ? "" : short_number(speeds[speeds.size() / 2]),
        cell(last(run, "peak_memory_bytes"), [](double v) { return short_bytes(static_cast<int64_t>(v)); }),
        run.skipped_steps);
  }
  return html + "</table>\n<p>Loss is in nats a token; tokens a second is the median.</p>\n";
}

std::string table_of_options(std::span<const RunHistory> runs) {
  std::string rows;
  std::set<std::string> keys;
  for (const RunHistory& run : runs)
    for (const auto& [key, value] : run.options) keys.insert(key);
  for (const std::string& key : keys) {
    std::set<std::string> values;
    std::string row = fmt::format("<tr><td>{}</td>", escape(key));
    for (const RunHistory& run : runs) {
      const auto found = run.options.find(key);
      const std::string value = found == run.options.end() ? "" : found->second;
      values.insert(value);
      row += fmt::format("<td>{}</td>", escape(value));
    }
    if (values.size() > 1 && key != "run.dir") rows += row + "</tr>\n";
  }
  if (rows.empty()) return "";
  std::string head = "<h2>Options that differ</h2>\n<table><tr><th></th>";
  for (const RunHistory& run : runs) head += fmt::format("<th>{}</th>", escape(run.name));
  return head + "</tr>\n" + rows + "</table>\n";
}

}  // namespace

RunHistory read_history(const std::filesystem::path& run_dir) {
  RunHistory run;
  run.name = run_dir.string();
  std::istringstream lines(read_file(run_dir / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number()) continue;
    const double step = json["step"].get<double>();
    if (json.value("skipped", false)) ++run.skipped_steps;
    for (const auto& [key, value] : json.items()) {
      if (key == "step" || !value.is_number()) continue;
      if (const double number = value.get<double>(); std::isfinite(number)) run.series[key].push_back({step, number});
    }
  }
  if (run.series.empty()) throw_input("{} has no line to draw", (run_dir / "metrics.jsonl").string());
  const std::filesystem::path config = run_dir / "config.toml";
  if (std::filesystem::exists(config)) {
    const config::Config resolved = config::parse_config(read_file(config), config.string(), "/");
    for (const config::Option& option : config::options())
      run.options[option.key] = config::to_toml(option.binding.get(resolved));
  }
  return run;
}

std::string render_report(std::span<const RunHistory> runs) {
  std::string title = runs.empty() ? "" : runs[0].name;
  if (runs.size() > 1) title += fmt::format(" and {} more", runs.size() - 1);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>{}</title>\n<style>\n"
      ":root {{ color-scheme: light dark; }}\n"
      "body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }}\n"
      "table {{ border-collapse: collapse; }} th, td {{ padding: .2rem .8rem .2rem 0; text-align: left; }}\n"
      ".charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }}\n"
      "figure {{ margin: 0; }} figcaption {{ font-weight: 600; }} small {{ font-weight: 400; opacity: .7; }}\n"
      "svg {{ width: 100%; height: auto; }} text {{ font-size: 12px; fill: currentColor; }}\n"
      ".y {{ text-anchor: end; }} .x {{ text-anchor: middle; }}\n"
      ".grid {{ stroke: currentColor; opacity: .15; }} .axis {{ stroke: currentColor; fill: none; opacity: .6; }}\n"
      ".line {{ fill: none; stroke-width: 1.6; stroke-linejoin: round; }}\n</style></head>\n<body>\n<h1>{}</h1>\n",
      escape(title), escape(title));
  html += table_of_runs(runs);
  if (runs.size() > 1) html += table_of_options(runs);
  html += "<div class=\"charts\">\n";
  for (const Chart& chart : charts_of(runs)) html += draw(chart, runs);
  return html + "</div>\n</body></html>\n";
}

}  // namespace trireme::observe
