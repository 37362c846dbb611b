// One page about one or several runs: what metrics.jsonl holds, drawn as SVG in a file that needs nothing else.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::observe {

/// A run as its folder tells it.
struct RunHistory {
  struct Point {
    double step = 0;
    double value = 0;  ///< finite
  };
  std::string name;                                  ///< the folder as it was given
  std::map<std::string, std::vector<Point>> series;  ///< by key of metrics.jsonl: loss, eval_bits_per_byte, ...
  int64_t skipped_steps = 0;
  std::map<std::string, std::string> options;  ///< resolved config: key to TOML text; empty when it is not there
};

/// Reads RUN/metrics.jsonl. A torn last line is left out, as is a value that is no number. Throws InputError when there
/// is nothing to draw.
RunHistory read_history(const std::filesystem::path& run_dir);

/// An XHTML page: a table of the runs (last loss, best evaluation, tokens, speed), what differs between their options,
/// and a chart each for loss, evaluation, gradient norm, learning rate, tokens a second, MFU and memory. A chart
/// without a point is left out. Lines of more than about 1,000 points are thinned, lowest and highest kept.
std::string render_report(std::span<const RunHistory> runs);

}  // namespace trireme::observe
