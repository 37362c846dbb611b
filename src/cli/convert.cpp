// `trireme convert`: a checkpoint as a folder for other programs.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/ema_option.h"
#include "exchange/hf_export.h"
#include "observe/format.h"
#include "train/inference.h"

namespace trireme::cli {
namespace {

struct Options {
  std::string source, out, to = "hf", dtype = "bf16";
  train::Weights weights = train::Weights::trained;
  double shard_gb = 5;
};

void run(const Options& options) {
  std::vector<std::string> faults;
  if (options.source.empty()) faults.emplace_back("SRC is empty; name a checkpoint or a run folder");
  if (options.out.empty()) faults.emplace_back("OUT is empty; name a folder to write");
  if (!(options.shard_gb > 0 && options.shard_gb <= 1e6))
    faults.push_back(fmt::format("--shard-gb {} has to be above 0 and at most 1000000", options.shard_gb));
  if (!faults.empty()) throw InputError(faults);
  static const std::map<std::string, DType> kTypes = {
      {"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}};
  const train::CheckpointParts parts = train::open_checkpoint(options.source);
  exchange::HfExportOptions how;
  how.dtype = kTypes.at(options.dtype);
  how.most_shard_bytes = static_cast<int64_t>(options.shard_gb * 1e9);
  if (options.weights == train::Weights::average) train::require_average(parts.reader);
  how.prefix = train::prefix_of(options.weights);
  const exchange::HfExportReport report =
      exchange::export_to_hf(parts.reader, parts.shape, parts.tokenizer, options.out, how);
  std::printf("%s of %s (step %ld)\n", report.architecture.c_str(), parts.reader.folder().c_str(),
              static_cast<long>(parts.reader.step()));
  std::printf("  %ld tensors in %s, %ld file%s of %s\n", static_cast<long>(report.tensors), options.dtype.c_str(),
              static_cast<long>(report.files), report.files == 1 ? "" : "s",
              observe::short_bytes(report.bytes).c_str());
  std::printf("  written to %s: AutoModelForCausalLM.from_pretrained(\"%s\")\n", options.out.c_str(),
              options.out.c_str());
  if (!report.note.empty()) std::printf("  note: %s\n", report.note.c_str());
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* command = app.add_subcommand("convert", "A checkpoint as a folder that transformers and others load");
  const auto options = std::make_shared<Options>();
  command->add_option("SRC", options->source, "A checkpoint, or a run folder (its newest checkpoint)")->required();
  command->add_option("OUT", options->out, "Folder to write; must not exist, or be empty")->required();
  command->add_option("--to", options->to, "Format: hf (Hugging Face: safetensors, config.json, tokenizer.json)")
      ->check(CLI::IsMember({"hf"}))
      ->capture_default_str();
  command
      ->add_option("--dtype", options->dtype,
                   "Element type of the weights; fp32 keeps every bit of those of a run in bf16, fp16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
  add_ema(*command, options->weights);
  command->add_option("--shard-gb", options->shard_gb, "At most so many GB (10^9 bytes) of weights in a file")
      ->capture_default_str();
  command->footer("Example:\n  trireme convert runs/sotu exported/sotu --to hf");
  command->callback([options] { run(*options); });
}

}  // namespace trireme::cli
