#include "exchange/hf_export.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "exchange/hf_config.h"
#include "exchange/hf_names.h"
#include "exchange/hf_tokenizer.h"

namespace trireme::exchange {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

at::ScalarType torch_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return at::kFloat;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f16:
      return at::kHalf;
    default:
      throw_internal("no export as {}", name_of(dtype));
  }
}

std::string_view torch_name(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

int64_t elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

struct Shard {
  std::string name;
  std::vector<HfTensor> tensors;
  int64_t bytes = 0;
};

std::vector<Shard> cut_into_shards(std::vector<HfTensor> tensors, const HfExportOptions& options) {
  std::vector<Shard> shards(1);
  for (HfTensor& tensor : tensors) {
    const int64_t bytes = elements(tensor.shape) * size_of(options.dtype);
    if (!shards.back().tensors.empty() && shards.back().bytes + bytes > options.most_shard_bytes) shards.emplace_back();
    shards.back().bytes += bytes;
    shards.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].name = shards.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

/// Reads logical tensors and gives them the form that transformers wants.
class Source {
 public:
  Source(const checkpoint::CheckpointReader& reader, const HfExportOptions& options)
      : reader_(reader), options_(options) {}

  at::Tensor get(const HfTensor& wanted) const {
    std::vector<at::Tensor> parts;
    for (const std::string& name : wanted.parts) parts.push_back(read(options_.prefix + name));
    at::Tensor tensor = parts.size() == 1 ? parts[0] : at::cat(parts);
    parts.clear();
    if (wanted.transposed) tensor = tensor.t();
    TRIREME_CHECK(tensor.sizes() == wanted.shape, "{} has another shape than the table says", wanted.name);
    tensor = tensor.to(torch_type(options_.dtype)).contiguous();
    if (!tensor.isfinite().all().item<bool>())
      throw_input("{} of {} holds values that are not finite{}", fmt::join(wanted.parts, ", "),
                  reader_.folder().string(),
                  options_.dtype == DType::f16 ? " as fp16, which ends at 65,504; --dtype bf16 works" : "");
    return tensor;
  }

  /// All faults at once, before a byte is written.
  void check(const std::vector<HfTensor>& tensors) const {
    std::vector<std::string> faults;
    for (const HfTensor& tensor : tensors)
      for (const std::string& part : tensor.parts)
        if (reader_.find(options_.prefix + part) == nullptr)
          faults.push_back(fmt::format("{} has no tensor {}{}", reader_.folder().string(), options_.prefix, part));
    if (!faults.empty()) throw InputError(faults);
  }

 private:
  at::Tensor read(const std::string& name) const {
    const checkpoint::LogicalTensor& logical = *reader_.find(name);
    const at::Tensor tensor = at::empty(logical.shape, logical.dtype == DType::f64 ? at::kDouble : at::kFloat);
    const checkpoint::Target target{name,
                                    logical.shape,
                                    {std::vector<int64_t>(logical.shape.size(), 0), logical.shape},
                                    logical.dtype,
                                    static_cast<std::byte*>(tensor.data_ptr())};
    reader_.read({&target, 1});
    return tensor;
  }

  const checkpoint::CheckpointReader& reader_;
  const HfExportOptions& options_;
};

std::string header_of(const Shard& shard, DType dtype) {
  Json json = {{"__metadata__", {{"format", "pt"}}}};
  int64_t at = 0;
  for (const HfTensor& tensor : shard.tensors) {
    const int64_t end = at + elements(tensor.shape) * size_of(dtype);
    json[tensor.name] = {{"dtype", name_of(dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  return checkpoint::frame_header(json.dump());
}

void write_shard(const Shard& shard, const Source& source, DType dtype, const fs::path& folder) {
  write_file_durably(folder / shard.name, [&](int fd, const fs::path& path) {
    write_all(fd, header_of(shard, dtype), path);
    for (const HfTensor& wanted : shard.tensors) {
      const at::Tensor tensor = source.get(wanted);
      write_all(fd, {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}, path);
    }
  });
}

std::string index_of(const std::vector<Shard>& shards) {
  Json map = Json::object();
  int64_t bytes = 0;
  for (const Shard& shard : shards) {
    bytes += shard.bytes;
    for (const HfTensor& tensor : shard.tensors) map[tensor.name] = shard.name;
  }
  return Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(2) + "\n";
}

// The folder to write, behind a link too; made if it is not there.
fs::path empty_folder(const fs::path& out) {
  std::error_code ignored;
  if (!fs::exists(out, ignored)) {
    const fs::path made = fs::is_symlink(out, ignored) ? fs::weakly_canonical(out) : out;
    make_directories(made);
    return made;
  }
  if (!fs::is_directory(out, ignored)) throw_input("{} is a file; name a folder that does not exist yet", out.string());
  for (const fs::directory_entry& entry : fs::directory_iterator(out)) {
    if (entry.path().filename().string().starts_with(".partial-"))
      throw_input(
          "{} holds {}, of a conversion that runs or did not come to its end; remove it, or name another folder",
          out.string(), entry.path().filename().string());
    throw_input("{} is not empty; name a folder that does not exist yet, or remove what is in it", out.string());
  }
  return out;
}

// Moves what is complete to where it belongs: config.json last, without which nobody takes the folder for a model.
void publish(const fs::path& partial, const fs::path& folder) {
  std::vector<fs::path> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(partial)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a == "config.json", a) < std::pair(b == "config.json", b);
  });
  for (const fs::path& name : names) fs::rename(partial / name, folder / name);
  fs::remove(partial);
  sync_directory(folder);
}

}  // namespace

HfExportReport export_to_hf(const checkpoint::CheckpointReader& reader, const describe::ModelShape& shape,
                            const data::Tokenizer& tokenizer, const fs::path& out, const HfExportOptions& options) {
  HfExportReport report;
  report.architecture = hf_architecture(shape);
  // Found with transformers 5.24 (models/auto/tokenization_auto.py, MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS).
  if (report.architecture == "Qwen2ForCausalLM")
    report.note =
        "AutoTokenizer of transformers 5 cuts text with Qwen's own pattern in every qwen2 folder, whatever its "
        "tokenizer.json says; PreTrainedTokenizerFast.from_pretrained reads the file";
  const Source source(reader, options);
  std::vector<HfTensor> tensors = hf_tensors(shape);
  source.check(tensors);
  report.tensors = static_cast<int64_t>(tensors.size());
  const std::vector<Shard> shards = cut_into_shards(std::move(tensors), options);

  // Out of sight until it is complete, so that nobody loads a half of it; on the disk that was asked for.
  const fs::path folder = empty_folder(out);
  std::string fresh = (folder / ".partial-XXXXXX").string();
  if (::mkdtemp(fresh.data()) == nullptr) throw_errno("make a folder in", folder.string(), errno);
  const fs::path partial = fresh;
  try {
    for (const Shard& shard : shards) {
      write_shard(shard, source, options.dtype, partial);
      report.bytes += shard.bytes;
    }
    report.files = static_cast<int64_t>(shards.size());
    if (shards.size() > 1) write_file_durably(partial / "model.safetensors.index.json", index_of(shards));
    const int32_t end = tokenizer.end_of_text();
    write_file_durably(partial / "config.json", hf_config(shape, torch_name(options.dtype), end));
    write_file_durably(partial / "generation_config.json", hf_generation_config(end));
    write_file_durably(partial / "tokenizer.json", hf_tokenizer(tokenizer));
    write_file_durably(partial / "tokenizer_config.json", hf_tokenizer_config(tokenizer, shape.max_seq_len));
    publish(partial, folder);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
    throw;
  }
  return report;
}

}  // namespace trireme::exchange
