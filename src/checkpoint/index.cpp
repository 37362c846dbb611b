#include "checkpoint/index.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "trireme-checkpoint";
constexpr int64_t kVersion = 1;

/// Of the content without the checksum, in its one compact form: blanks and the order of keys do not matter.
std::string checksum_of(json content) {
  content.erase("checksum");
  return hash_hex(content.dump());
}

}  // namespace

std::string encode_index(const Index& index) {
  json tensors = json::array(), files = json::array();
  for (const LogicalTensor& tensor : index.tensors) {
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}, {"dtype", name_of(tensor.dtype)}});
  }
  for (const IndexFile& file : index.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"header_xxh3_128", file.header_checksum}});
  }
  json content = {{"format", kFormat},
                  {"version", kVersion},
                  {"step", index.step},
                  {"world_size", index.world_size},
                  {"layout", index.layout},
                  {"state", index.state},
                  {"tensors", std::move(tensors)},
                  {"files", std::move(files)}};
  content["checksum"] = checksum_of(content);
  return content.dump(1) + "\n";
}

Index read_index(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kIndexName;
  const std::string text = read_file(path);
  Index index;
  try {
    const json content = json::parse(text);
    if (content.value("format", "") != kFormat) {
      throw_input("{} is not the index of a checkpoint: `format` is not \"{}\"", path.string(), kFormat);
    }
    if (const auto version = content.at("version").get<int64_t>(); version != kVersion) {
      throw_input("{} has format version {}, this Trireme reads {}", path.string(), version, kVersion);
    }
    if (const std::string found = checksum_of(content), wanted = content.at("checksum"); found != wanted) {
      throw_input("{} is damaged: its checksum says {}, its content has {}", path.string(), wanted, found);
    }
    index.step = content.at("step");
    index.world_size = content.at("world_size");
    index.layout = content.at("layout");
    index.state = content.at("state");
    for (const json& tensor : content.at("tensors")) {
      index.tensors.push_back({tensor.at("name"), tensor.at("shape").get<std::vector<int64_t>>(),
                               dtype_from_name(tensor.at("dtype").get<std::string>())});
    }
    for (const json& file : content.at("files")) {
      index.files.push_back({file.at("name"), file.at("bytes"), file.at("header_xxh3_128")});
    }
  } catch (const json::exception& error) {
    throw_input("{} is damaged: it does not parse: {}", path.string(), error.what());
  }
  std::ranges::sort(index.tensors, {}, &LogicalTensor::name);
  return index;
}

}  // namespace trireme::checkpoint
