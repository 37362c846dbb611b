#include "data/prepare_journal.h"

#include <xxhash.h>

#include <array>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

namespace trireme::data {
namespace {

constexpr int journal_version = 1;

/// The counters by name, for both directions.
constexpr std::array<std::pair<const char*, int64_t PrepareCounts::*>, 8> counters{{
    {"documents", &PrepareCounts::documents},
    {"tokens", &PrepareCounts::tokens},
    {"text_bytes", &PrepareCounts::text_bytes},
    {"duplicates", &PrepareCounts::duplicates},
    {"held_out", &PrepareCounts::held_out},
    {"empty", &PrepareCounts::empty},
    {"invalid", &PrepareCounts::invalid},
    {"invalid_dropped", &PrepareCounts::invalid_dropped},
}};

}  // namespace

void ContentSum::add(uint64_t file_hash_low, uint64_t file_hash_high, std::string_view name) {
  const std::array<uint64_t, 3> mixed{file_hash_low, file_hash_high, hash64(name)};
  const XXH128_hash_t hash = XXH3_128bits(mixed.data(), sizeof mixed);
  low += hash.low64;
  high += hash.high64 + (low < hash.low64 ? 1 : 0);
}

std::optional<Journal> read_journal(const std::filesystem::path& out) {
  const std::filesystem::path path = out / "prepare.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const nlohmann::json json = nlohmann::json::parse(read_file(path));
    if (json.at("version").get<int>() != journal_version) {
      log::warning("{} is of another version and is not used", path.string());
      return std::nullopt;
    }
    Journal journal;
    json.at("complete").get_to(journal.complete);
    journal.settings = json.at("settings");
    json.at("names_digest").get_to(journal.names_digest);
    json.at("listing_digest").get_to(journal.listing_digest);
    for (const nlohmann::json& row : json.at("splits")) {
      SplitProgress& split = journal.splits.emplace_back();
      row.at("name").get_to(split.name);
      row.at("folder").get_to(split.folder);
      row.at("complete").get_to(split.complete);
      row.at("next_file").get_to(split.next_file);
      row.at("next_offset").get_to(split.next_offset);
      row.at("content_low").get_to(split.content.low);
      row.at("content_high").get_to(split.content.high);
      for (const auto& [name, member] : counters) row.at("counts").at(name).get_to(split.counts.*member);
      row.at("shards").get_to(split.shards);
    }
    return journal;
  } catch (const nlohmann::json::exception& error) {
    log::warning("{} cannot be read and is not used: {}", path.string(), error.what());
    return std::nullopt;
  }
}

void write_journal(const std::filesystem::path& out, const Journal& journal) {
  nlohmann::ordered_json json;
  json["version"] = journal_version;
  json["complete"] = journal.complete;
  json["settings"] = journal.settings;
  json["names_digest"] = journal.names_digest;
  json["listing_digest"] = journal.listing_digest;
  json["splits"] = nlohmann::ordered_json::array();
  for (const SplitProgress& split : journal.splits) {
    nlohmann::ordered_json row;
    row["name"] = split.name;
    row["folder"] = split.folder;
    row["complete"] = split.complete;
    row["next_file"] = split.next_file;
    row["next_offset"] = split.next_offset;
    row["content_low"] = split.content.low;
    row["content_high"] = split.content.high;
    for (const auto& [name, member] : counters) row["counts"][name] = split.counts.*member;
    row["shards"] = nlohmann::json(split.shards);
    json["splits"].push_back(std::move(row));
  }
  write_file_durably(out / "prepare.json", json.dump(2) + "\n");
}

}  // namespace trireme::data
