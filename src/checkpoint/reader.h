// Loading: any box of any logical tensor, whatever layout saved it.
//
// Opening reads index.json and the header of each file and checks them against each other: files present, sizes, header
// checksums, each tensor covered exactly once. Reading checks the checksum of each stored fragment that it touches,
// while the bytes stream by, so damage never reaches the weights. Every fault names the file and the tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/fragment.h"
#include "checkpoint/safetensors.h"

namespace trireme::checkpoint {

class CheckpointReader {
 public:
  /// A checkpoint folder (one with index.json). Throws InputError with every fault found.
  static CheckpointReader open(const std::filesystem::path& folder);

  int64_t step() const { return step_; }
  int64_t world_size() const { return world_size_; }
  /// As given to save().
  const nlohmann::json& state() const { return state_; }
  const nlohmann::json& layout() const { return layout_; }
  const std::filesystem::path& folder() const { return folder_; }
  /// All logical tensors, sorted by name.
  const std::vector<LogicalTensor>& tensors() const { return tensors_; }
  /// Null when there is no such tensor.
  const LogicalTensor* find(std::string_view name) const;
  /// Bytes of all files of tensors, and how many files there are.
  int64_t bytes() const;
  int64_t files() const { return static_cast<int64_t>(files_.size()); }

  /// Throws one InputError that lists every tensor of `needed` that is missing or has another shape or element type
  /// here, and every tensor here that is not in `needed`: `checkpoint has X as [256, 256] F32, the run needs [288, 288]
  /// F32`.
  void require(std::span<const LogicalTensor> needed) const;

  /// Fills all targets. Missing tensors and mismatches of all targets are listed at once, before a byte is read; damage
  /// is an InputError too (then some targets may be overwritten). Each stored fragment is read once. Not collective.
  void read(std::span<const Target> targets) const;

  /// The values of a whole logical tensor in row-major order, piece by piece: memory is bounded by a few row blocks.
  /// Checksums are verified, and damage thrown, before the end.
  void stream(const LogicalTensor& tensor, const std::function<void(std::span<const std::byte>)>& sink) const;

  /// Reads every stored fragment with index % `parts` == `part` and throws one InputError with all damaged ones.
  /// Several ranks share a verification so.
  void verify(int64_t part = 0, int64_t parts = 1) const;

 private:
  struct File {
    std::string name;
    int64_t bytes = 0;
    SafetensorsHeader header;
  };
  struct Piece {
    size_t file;
    size_t fragment;
  };

  const StoredFragment& fragment(const Piece& piece) const;
  std::string place(const Piece& piece) const;

  std::filesystem::path folder_;
  int64_t step_ = 0;
  int64_t world_size_ = 0;
  nlohmann::json state_;
  nlohmann::json layout_;
  std::vector<LogicalTensor> tensors_;
  std::vector<File> files_;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces_;  // by logical name, sorted by offset
};

}  // namespace trireme::checkpoint
