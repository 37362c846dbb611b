// What the bytes of tensors are for. Whoever makes tensors says so for a stretch of code; the allocator counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::memory {

enum class Purpose : uint8_t {
  weights,         ///< that compute
  master_weights,  ///< in the optimizer's type, where that is another
  gradients,       ///< of weights
  moments,         ///< of the optimizer
  moving_average,  ///< of the weights
  activations,     ///< what forward made: kept for backward, or about to be freed
  loss,            ///< logits of a chunk, and the gradients that the fused loss makes in forward
  workspace,       ///< gradients of activations, and scratch of backward and of the update
  communication,   ///< buffers of exchanges
  other,           ///< all else: batches, tables, caches of generation
};
inline constexpr int kPurposes = static_cast<int>(Purpose::other) + 1;

/// Bytes of each purpose.
using PurposeBytes = std::array<int64_t, kPurposes>;
inline int64_t& of(PurposeBytes& bytes, Purpose purpose) { return bytes[static_cast<size_t>(purpose)]; }
inline int64_t of(const PurposeBytes& bytes, Purpose purpose) { return bytes[static_cast<size_t>(purpose)]; }
int64_t total(const PurposeBytes& bytes);

/// In words, "master weights"; the start-up report uses the same.
const char* name_of(Purpose purpose);
/// "228.0 MiB".
std::string in_mebibytes(int64_t bytes);
/// "1239.0 MiB: moments 228.0 MiB, weights 57.1 MiB": the largest first, those without bytes left out.
std::string to_text(const PurposeBytes& bytes);

/// Whose memory bytes are. What a run offloads to the host is counted there on a CPU too, which has one memory: so the
/// numbers are those that a device would see.
enum class Tier : uint8_t {
  device,  ///< where the run computes
  host,    ///< what waits in the host's memory, and what moves through it
};

/// Of the tensors that this thread makes now; Tier::device unless a TierScope says otherwise.
Tier current_tier();

/// Likewise for the tier.
class [[nodiscard]] TierScope {
 public:
  explicit TierScope(Tier tier);
  ~TierScope();
  TierScope(const TierScope&) = delete;
  TierScope& operator=(const TierScope&) = delete;

 private:
  Tier before_;
};

/// Of the tensors that this thread makes now; Purpose::other unless a PurposeScope says otherwise.
Purpose current_purpose();

/// Gives the tensors that this thread makes a purpose as long as it lives. Scopes nest; the inner one counts.
class [[nodiscard]] PurposeScope {
 public:
  explicit PurposeScope(Purpose purpose);
  ~PurposeScope();
  PurposeScope(const PurposeScope&) = delete;
  PurposeScope& operator=(const PurposeScope&) = delete;

 private:
  Purpose before_;
};

}  // namespace trireme::memory
