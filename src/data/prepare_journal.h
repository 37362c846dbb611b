// prepare.json: what a preparation has done so far, so that a killed one continues and a finished one is not repeated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/manifest.h"
#include "data/prepare.h"

namespace trireme::data {

/// Sum, modulo 2^128, of a hash of each file's name and bytes: the order does not matter, so it can be kept while files
/// are read and compared later (Bellare and Micciancio, "A new paradigm for collision-free hashing", EUROCRYPT 1997).
struct ContentSum {
  uint64_t low = 0;
  uint64_t high = 0;
  void add(uint64_t file_hash_low, uint64_t file_hash_high, std::string_view name);
  bool operator==(const ContentSum&) const = default;
};

/// How far one split is: shards that are written, and where the next one starts.
struct SplitProgress {
  std::string name;    ///< train or eval
  std::string folder;  ///< below OUT; empty: OUT itself
  bool complete = false;
  uint64_t next_file = 0;  ///< index in the sorted inputs
  uint64_t next_offset = 0;
  PrepareCounts counts;  ///< up to there
  ContentSum content;    ///< of the files up to there
  std::vector<ShardEntry> shards;
};

struct Journal {
  bool complete = false;
  nlohmann::json settings;  ///< options that change the output, by the name of their flag
  std::string names_digest;
  std::string listing_digest;
  std::vector<SplitProgress> splits;
};

/// OUT/prepare.json, or nothing when there is none (or one of another version or damaged, with a warning).
std::optional<Journal> read_journal(const std::filesystem::path& out);
void write_journal(const std::filesystem::path& out, const Journal& journal);

}  // namespace trireme::data
