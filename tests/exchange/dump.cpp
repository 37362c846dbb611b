// What the program thinks of a checkpoint, for comparison with others: never part of the program itself.
//   dump logits CHECKPOINT IDS.json OUT   logits of [rows][seq] token ids, as fp32 bytes
//   dump ids CHECKPOINT FILE              token ids of a file's bytes, as JSON
//   dump tokens DATASET                   the stream of a prepared data set, as JSON
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "data/dataset.h"
#include "train/inference.h"

using namespace trireme;

namespace {

void logits(const std::string& checkpoint, const std::string& ids, const std::string& out) {
  const at::NoGradGuard no_grad;
  const train::LoadedModel loaded = train::load_model(checkpoint);
  const auto rows = nlohmann::json::parse(read_file(ids)).get<std::vector<std::vector<int64_t>>>();
  std::vector<at::Tensor> tensors;
  for (const auto& row : rows) tensors.push_back(at::tensor(row, at::kLong));
  const at::Tensor result = models::logits(*loaded.model, at::stack(tensors)).to(at::kFloat).contiguous();
  write_file_durably(out, {static_cast<const char*>(result.const_data_ptr()), result.nbytes()});
}

void ids(const std::string& checkpoint, const std::string& file) {
  std::vector<int32_t> result;
  train::open_checkpoint(checkpoint).tokenizer.encode(read_file(file), result);
  std::printf("%s\n", nlohmann::json(result).dump().c_str());
}

void tokens(const std::string& folder) {
  const auto dataset = data::Dataset::open(folder);
  std::vector<int32_t> result(static_cast<size_t>(dataset->token_count()));
  dataset->copy_tokens(0, result);
  std::printf("%s\n", nlohmann::json(result).dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 4 && arguments[0] == "logits") return logits(arguments[1], arguments[2], arguments[3]), 0;
    if (arguments.size() == 3 && arguments[0] == "ids") return ids(arguments[1], arguments[2]), 0;
    if (arguments.size() == 2 && arguments[0] == "tokens") return tokens(arguments[1]), 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "see the head of dump.cpp\n");
  return 2;
}
