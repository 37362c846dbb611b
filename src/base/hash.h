// Hashes of bytes: XXH3, through xxHash.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

inline uint64_t hash64(std::string_view bytes, uint64_t seed = 0) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

/// XXH3-128 of bytes that arrive in pieces; 32 hex digits.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::string_view bytes) { XXH3_128bits_update(state_, bytes.data(), bytes.size()); }
  /// Digest of all bytes so far; more may be added after.
  std::string hex() const;

 private:
  XXH3_state_t* state_;
};

/// 32 hex digits of the XXH3-128 of `bytes`.
std::string hash_hex(std::string_view bytes);

}  // namespace trireme
