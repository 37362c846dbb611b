// The forms of a profile: table, JSON, trace.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "observe/format.h"
#include "observe/step_profile.h"

namespace trireme::observe {
namespace {

using Json = nlohmann::ordered_json;
using profile::Event;
using profile::Kind;
using profile::Phase;

constexpr std::array kPhases = {Phase::forward,       Phase::backward, Phase::recompute, Phase::optimizer,
                                Phase::communication, Phase::data,     Phase::other};

std::string shape_text(const profile::Shape& shape) {
  std::string text;
  for (const int64_t size : shape)
    if (size >= 0) text += fmt::format("{}{}", text.empty() ? "" : " x ", size);
  return text;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

std::string steps_text(const std::vector<int64_t>& steps) {
  if (steps.size() == 1) return fmt::format("step {}", steps.front());
  return fmt::format("steps {} to {}", steps.front(), steps.back());
}

int64_t other_ns(const StepProfile& profile, Phase phase) {
  const auto found = profile.other_ns.find(phase);
  return found == profile.other_ns.end() ? 0 : found->second;
}

int64_t phase_ns(const StepProfile& profile, Phase phase) {
  int64_t sum = other_ns(profile, phase);
  for (const ProfileRow& row : profile.rows)
    if (row.phase == phase) sum += row.self_ns;
  return sum;
}

std::string rate(double amount, int64_t ns) { return amount > 0 && ns > 0 ? short_number(amount / seconds(ns)) : ""; }

class Table {
 public:
  explicit Table(const StepProfile& profile)
      : profile_(profile), steps_(static_cast<double>(profile.steps.size())), total_ns_(profile.total_ns()) {
    for (const ProfileRow& row : profile.rows) {
      if (!is_shown(row)) continue;
      name_width_ = std::max(name_width_, name(row).size());
      shape_width_ = std::max(shape_width_, shape_text(row.shape).size());
    }
    line("operation", "phase", "shape", "calls", "ms", "share", "FLOP", "FLOP/s", "of matmul", "bytes", "B/s");
  }

  void rows() {
    int64_t rest_ns = 0, rest_rows = 0;
    for (const ProfileRow& row : profile_.rows) {
      if (is_shown(row)) {
        one(row);
      } else {
        rest_ns += row.self_ns;
        ++rest_rows;
      }
    }
    if (rest_rows > 0) time(fmt::format("{} more operations", rest_rows), "", rest_ns);
    for (const Phase phase : kPhases)
      if (const int64_t ns = other_ns(profile_, phase); ns > 0)
        time("other", phase == Phase::other ? "" : name_of(phase), ns);
    time("a step", "", total_ns_);
  }

  std::string take() { return std::move(text_); }

 private:
  static std::string name(const ProfileRow& row) { return row.of.empty() ? row.name : row.name + " " + row.of; }
  bool is_shown(const ProfileRow& row) const { return row.self_ns * 1000 >= total_ns_; }

  void one(const ProfileRow& row) {
    const double rate_of = profile_.matmul_flops_per_second;
    line(name(row), name_of(row.phase), shape_text(row.shape),
         fmt::format("{:g}", static_cast<double>(row.calls) / steps_), milliseconds(row.self_ns), share(row.self_ns),
         row.flops > 0 ? short_number(row.flops / steps_) : "", rate(row.flops, row.self_ns),
         row.flops > 0 && rate_of > 0 ? percent(row.flops / seconds(row.self_ns) / rate_of, 0) : "",
         row.bytes > 0 ? short_number(row.bytes / steps_) : "", rate(row.bytes, row.self_ns));
  }
  void time(std::string_view what, std::string_view phase, int64_t ns) {
    line(what, phase, "", "", milliseconds(ns), share(ns), "", "", "", "", "");
  }
  std::string milliseconds(int64_t ns) const { return fmt::format("{:.2f}", seconds(ns) * 1e3 / steps_); }
  std::string share(int64_t ns) const { return percent(static_cast<double>(ns) / static_cast<double>(total_ns_)); }

  void line(std::string_view name, std::string_view phase, std::string_view shape, std::string_view calls,
            std::string_view ms, std::string_view share, std::string_view flops, std::string_view flop_rate,
            std::string_view of_matmul, std::string_view bytes, std::string_view byte_rate) {
    std::string text =
        fmt::format("{:<{}}  {:<13}  {:<{}}{:>7}{:>10}{:>8}{:>8}{:>8}{:>11}{:>8}{:>8}", name, name_width_, phase, shape,
                    shape_width_, calls, ms, share, flops, flop_rate, of_matmul, bytes, byte_rate);
    text_ += text.erase(text.find_last_not_of(' ') + 1) + "\n";
  }

  const StepProfile& profile_;
  double steps_;
  int64_t total_ns_;
  size_t name_width_ = 20, shape_width_ = 5;
  std::string text_;
};

// A name from a user's program may hold anything.
std::string text_of(const Json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Json shape_json(const profile::Shape& shape) {
  Json sizes = Json::array();
  for (const int64_t size : shape)
    if (size >= 0) sizes.push_back(size);
  return sizes;
}

std::string products_text(const StepProfile& profile) {
  const double flops = profile.flops(), matmul = profile.matmul_flops_per_second;
  if (flops == 0) return "";  // a model of a user's own may have none that is known
  int64_t ns = 0;
  for (const ProfileRow& row : profile.rows)
    if (row.flops > 0) ns += row.self_ns;
  const std::string share = matmul > 0 ? fmt::format(", {} of the measured {}FLOP/s",
                                                     percent(flops / seconds(ns) / matmul), short_number(matmul))
                                       : "";
  return fmt::format(
      "matrix products and attention: {}FLOP a step ({} of the model's), {} of the time, {}FLOP/s{}\n",
      short_number(flops / static_cast<double>(profile.steps.size())), percent(flops / profile.model_flops),
      percent(static_cast<double>(ns) / static_cast<double>(profile.total_ns())), rate(flops, ns), share);
}

}  // namespace

std::string to_text(const StepProfile& profile) {
  if (profile.steps.empty()) return "";
  const auto steps = static_cast<double>(profile.steps.size());
  const int64_t total = profile.total_ns();
  std::string phases;
  for (const Phase phase : kPhases)
    if (const int64_t ns = phase_ns(profile, phase); ns > 0)
      phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", name_of(phase),
                            percent(static_cast<double>(ns) / static_cast<double>(total)));
  std::string text = fmt::format("Profile of {} on rank {} of {}: {:.2f} ms a step ({:.2f} to {:.2f})\n{}\n",
                                 steps_text(profile.steps), profile.rank, profile.ranks, seconds(total) * 1e3 / steps,
                                 seconds(std::ranges::min(profile.step_ns)) * 1e3,
                                 seconds(std::ranges::max(profile.step_ns)) * 1e3, phases);
  text += products_text(profile);
  Table table(profile);
  table.rows();
  return text + "\n" + table.take();
}

std::string to_json(const StepProfile& profile) {
  Json json;
  json["format"] = "trireme-profile";
  json["version"] = 1;
  json["rank"] = profile.rank;
  json["ranks"] = profile.ranks;
  json["steps"] = profile.steps;
  json["step_ns"] = profile.step_ns;
  json["total_ns"] = profile.total_ns();
  json["flops"] = profile.flops();
  json["model_flops"] = profile.model_flops;
  json["matmul_flops_per_second"] = profile.matmul_flops_per_second;
  Json& rows = json["operations"] = Json::array();
  for (const ProfileRow& row : profile.rows)
    rows.push_back({{"name", row.name},
                    {"of", row.of},
                    {"phase", name_of(row.phase)},
                    {"shape", shape_json(row.shape)},
                    {"calls", row.calls},
                    {"self_ns", row.self_ns},
                    {"flops", row.flops},
                    {"bytes", row.bytes}});
  Json& other = json["other_ns"] = Json::object();
  for (const auto& [phase, ns] : profile.other_ns) other[std::string(name_of(phase))] = ns;
  return text_of(json, 1);
}

namespace {

// Fractions of a microsecond are nanoseconds: exact in a double for a machine that is up for months.
double microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

Json trace_event(const Event& event, int64_t rank, int64_t thread) {
  Json json;
  json["ph"] = "X";
  json["cat"] = name_of(event.phase);
  std::string name = event.of.empty() ? event.name : event.name + " " + event.of;
  if (event.kind == Kind::step) name += fmt::format(" {}", event.shape[0]);
  json["name"] = name;
  json["pid"] = rank;
  json["tid"] = thread;
  json["ts"] = microseconds(event.begin_ns);
  json["dur"] = microseconds(event.end_ns - event.begin_ns);
  Json& arguments = json["args"];
  arguments["kind"] = name_of(event.kind);
  if (event.kind != Kind::step && event.shape[0] >= 0) arguments["shape"] = shape_text(event.shape);
  const double duration = seconds(event.end_ns - event.begin_ns);
  if (event.flops > 0) {
    arguments["FLOP"] = event.flops;
    arguments["GFLOP/s"] = event.flops / duration / 1e9;
  }
  if (event.bytes > 0) {
    arguments["bytes"] = event.bytes;
    arguments["GB/s"] = event.bytes / duration / 1e9;
  }
  return json;
}

}  // namespace

std::string to_trace(const StepProfile& profile, const std::vector<profile::Thread>& threads) {
  Json events = Json::array();
  const auto tell = [&](const char* what, int64_t thread, Json arguments) {
    events.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", profile.rank}, {"tid", thread}, {"args", std::move(arguments)}});
  };
  tell("process_name", 0, {{"name", fmt::format("rank {}", profile.rank)}});
  tell("process_sort_index", 0, {{"sort_index", profile.rank}});
  for (const profile::Thread& thread : threads) {
    tell("thread_name", thread.id, {{"name", thread.name}});
    for (const Event& event : thread.events) events.push_back(trace_event(event, profile.rank, thread.id));
  }
  Json trace;
  trace["schemaVersion"] = 1;
  trace["displayTimeUnit"] = "ms";
  trace["traceEvents"] = std::move(events);
  return text_of(trace, -1);
}

}  // namespace trireme::observe
