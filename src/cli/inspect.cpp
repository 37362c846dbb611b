// `trireme inspect`: what a checkpoint holds, whether it is intact, and its digest; what a run's workers did last.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/digest.h"
#include "checkpoint/reader.h"
#include "checkpoint/statistics.h"
#include "checkpoint/store.h"
#include "cli/commands.h"
#include "comm/flight_log.h"
#include "observe/format.h"

namespace trireme::cli {
namespace {

using checkpoint::CheckpointReader;
using nlohmann::json;

struct Options {
  std::string checkpoint;
  bool digest = false;
  bool tensors = false;
  bool json_output = false;
  bool verify = false;
  bool flight = false;
  int64_t last = 8;
};

/// One entry of the state on one line. `config` is long and has a file of its own in the run folder.
std::string one_line(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, part] : value.items()) {
    text +=
        fmt::format("{}{}={}", text.empty() ? "" : " ", key, part.is_string() ? part.get<std::string>() : part.dump());
  }
  return text;
}

json summary(const CheckpointReader& reader) {
  int64_t elements = 0;
  for (const auto& tensor : reader.tensors()) elements += checkpoint::elements(tensor.shape);
  return {{"checkpoint", reader.folder().string()},
          {"step", reader.step()},
          {"world_size", reader.world_size()},
          {"files", reader.files()},
          {"bytes", reader.bytes()},
          {"tensors", reader.tensors().size()},
          {"elements", elements},
          {"layout", reader.layout()},
          {"state", reader.state()}};
}

void print_summary(const CheckpointReader& reader) {
  const json facts = summary(reader);
  fmt::print("checkpoint  {}\n", reader.folder().string());
  fmt::print("step        {}\n", reader.step());
  fmt::print("saved by    {} {}\n", reader.world_size(), reader.world_size() == 1 ? "worker" : "workers");
  if (!reader.layout().empty()) fmt::print("layout      {}\n", one_line(reader.layout()));
  fmt::print("holds       {} tensors, {} elements, {} in {} {}\n", reader.tensors().size(),
             facts.at("elements").get<int64_t>(), observe::short_bytes(reader.bytes()), reader.files(),
             reader.files() == 1 ? "file" : "files");
  for (const auto& [key, value] : reader.state().items()) {
    if (key != "config") fmt::print("{:<11} {}\n", key, one_line(value));
  }
}

void print_tensors(const CheckpointReader& reader) {
  size_t width = 4;
  for (const auto& tensor : reader.tensors()) width = std::max(width, tensor.name.size());
  fmt::print("{:<{}}  {:<16} {:<5} {:>12} {:>12} {:>12} {:>12}\n", "name", width, "shape", "type", "min", "max", "mean",
             "rms");
  for (const auto& tensor : reader.tensors()) {
    const auto values = checkpoint::statistics(reader, tensor);
    fmt::print("{:<{}}  {:<16} {:<5} {:>12.5g} {:>12.5g} {:>12.5g} {:>12.5g}{}\n", tensor.name, width,
               checkpoint::to_text(tensor.shape), name_of(tensor.dtype), values.minimum, values.maximum, values.mean,
               values.root_mean_square,
               values.not_finite == 0 ? "" : fmt::format("  {} not finite", values.not_finite));
  }
}

json tensors_json(const CheckpointReader& reader) {
  json list = json::array();
  for (const auto& tensor : reader.tensors()) {
    const auto values = checkpoint::statistics(reader, tensor);
    list.push_back({{"name", tensor.name},
                    {"shape", tensor.shape},
                    {"dtype", name_of(tensor.dtype)},
                    {"min", values.minimum},
                    {"max", values.maximum},
                    {"mean", values.mean},
                    {"rms", values.root_mean_square},
                    {"not_finite", values.not_finite}});
  }
  return list;
}

void run_json(const Options& options, const CheckpointReader& reader) {
  json result = summary(reader);
  if (options.verify) result["verified"] = true;  // damage is thrown before this
  if (options.tensors) result["tensor_list"] = tensors_json(reader);
  if (options.digest) {
    for (const auto& line : checkpoint::digest(reader)) result["digest"][line.name] = line.hex;
  }
  fmt::print("{}\n", result.dump(2));
}

// What the workers of a run did last, of a run that goes on or has ended.
void run_flight(const Options& options) {
  const std::filesystem::path given = options.checkpoint;
  const std::filesystem::path folder = std::filesystem::exists(given / "flight") ? given / "flight" : given;
  const std::vector<comm::FlightLog> logs = comm::read_flight_logs(folder);
  if (options.json_output) {
    fmt::print("{}\n", comm::to_json(logs).dump(1, ' ', false, json::error_handler_t::replace));
  } else {
    fmt::print("{}", comm::flight_report(logs, options.last));
  }
}

void run(const Options& options) {
  if (options.flight) return run_flight(options);
  const CheckpointReader reader = CheckpointReader::open(checkpoint::resolve_checkpoint(options.checkpoint).folder);
  if (options.verify) reader.verify();
  if (options.json_output) return run_json(options, reader);
  // The digest alone goes out when it is asked for, so that two of them can be compared with diff.
  if (!options.digest || options.tensors) print_summary(reader);
  if (options.verify) {
    fmt::print(options.digest && !options.tensors ? stderr : stdout, "verified    every checksum holds\n");
  }
  if (options.tensors) {
    fmt::print("\n");
    print_tensors(reader);
  }
  if (options.digest) fmt::print("{}", to_text(checkpoint::digest(reader)));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "What a checkpoint holds, whether it is intact, and its digest; what workers did last");
  command->add_option("checkpoint", options->checkpoint, "A checkpoint, or a run folder (then its newest complete one)")
      ->required()
      ->type_name("CHECKPOINT");
  command->add_flag("--digest", options->digest,
                    "Print `<hex>  <name>` for each tensor and state entry, then `all`; equal runs have equal digests");
  command->add_flag("--tensors", options->tensors, "List the tensors: shape, type, minimum, maximum, mean, rms");
  command->add_flag("--verify", options->verify, "Read everything and check every checksum; damage ends with code 2");
  CLI::Option* flight = command->add_flag(
      "--flight", options->flight, "Of a run folder: the last operations of each worker, and who is behind at which");
  command->add_option("--last", options->last, "Operations of each worker that --flight prints")
      ->check(CLI::Range(0, 1 << 20))
      ->needs(flight)
      ->capture_default_str();
  command->add_flag("--json", options->json_output, "Print JSON for programs");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
