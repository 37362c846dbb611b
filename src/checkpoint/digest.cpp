#include "checkpoint/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "checkpoint/reader.h"

namespace trireme::checkpoint {
namespace {

constexpr std::array<const char*, 3> kDigestedState{"tokens", "schedule", "loader"};

DigestLine digest_of(const CheckpointReader& reader, const LogicalTensor& tensor) {
  Hasher hasher;
  hasher.add(fmt::format("{} {}\n", name_of(tensor.dtype), to_text(tensor.shape)));
  reader.stream(tensor, [&](std::span<const std::byte> values) {
    hasher.add({reinterpret_cast<const char*>(values.data()), values.size()});
  });
  return {hasher.hex(), tensor.name};
}

}  // namespace

std::vector<DigestLine> digest(const CheckpointReader& reader) {
  std::vector<DigestLine> lines;
  for (const LogicalTensor& tensor : reader.tensors()) lines.push_back(digest_of(reader, tensor));
  lines.push_back({hash_hex(std::to_string(reader.step())), "state.step"});
  for (const char* key : kDigestedState) {
    // Keys of an object are sorted and numbers have one shortest form, so equal values have equal text.
    if (reader.state().contains(key)) {
      lines.push_back({hash_hex(reader.state().at(key).dump()), fmt::format("state.{}", key)});
    }
  }
  std::ranges::sort(lines, {}, &DigestLine::name);
  lines.push_back({hash_hex(to_text(lines)), "all"});
  return lines;
}

std::string to_text(const std::vector<DigestLine>& lines) {
  std::string text;
  for (const DigestLine& line : lines) text += fmt::format("{}  {}\n", line.hex, line.name);
  return text;
}

}  // namespace trireme::checkpoint
