#include "data/manifest.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace trireme::data {
namespace {

constexpr const char* format_name = "trireme-tokens";

std::string id_type(int id_bytes) { return id_bytes == 2 ? "uint16" : "uint32"; }

[[noreturn]] void throw_not_prepared(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const std::string remedy = "`trireme data prepare --tokenizer FOLDER --out FOLDER TEXT...` makes it from text";
  if (folder.empty()) throw_input("no folder of prepared data is given; {}", remedy);
  if (!fs::exists(folder))
    throw_input("there is no prepared data in {}: the folder does not exist; {}", folder.string(), remedy);
  if (!fs::is_directory(folder))
    throw_input("{} is a file, not a folder of prepared data; {}", folder.string(), remedy);
  for (const char* split : {"train", "eval"}) {
    if (fs::exists(folder / split / "manifest.json")) {
      throw_input("{} has no manifest.json, but {} has: give that folder", folder.string(), (folder / split).string());
    }
  }
  if (fs::exists(folder / "prepare.json") || fs::exists(folder.parent_path() / "prepare.json")) {
    throw_input("{} was not prepared to the end; run the same `trireme data prepare` again, it continues",
                folder.string());
  }
  throw_input("{} is not prepared data: it has no manifest.json; {}", folder.string(), remedy);
}

}  // namespace

void to_json(nlohmann::json& json, const ShardEntry& entry) {
  json = {{"file", entry.file},           {"bytes", entry.bytes},           {"tokens", entry.tokens},
          {"documents", entry.documents}, {"text_bytes", entry.text_bytes}, {"checksum", entry.checksum}};
}

void from_json(const nlohmann::json& json, ShardEntry& entry) {
  json.at("file").get_to(entry.file);
  json.at("bytes").get_to(entry.bytes);
  json.at("tokens").get_to(entry.tokens);
  json.at("documents").get_to(entry.documents);
  json.at("text_bytes").get_to(entry.text_bytes);
  json.at("checksum").get_to(entry.checksum);
}

int64_t Manifest::tokens() const {
  int64_t sum = 0;
  for (const ShardEntry& shard : shards) sum += shard.tokens;
  return sum;
}

int64_t Manifest::documents() const {
  int64_t sum = 0;
  for (const ShardEntry& shard : shards) sum += shard.documents;
  return sum;
}

int64_t Manifest::text_bytes() const {
  int64_t sum = 0;
  for (const ShardEntry& shard : shards) sum += shard.text_bytes;
  return sum;
}

std::string Manifest::fingerprint() const {
  Hasher hasher;
  hasher.add(fmt::format("{} {} {}\n", tokenizer_hash, vocab_size, id_bytes));
  for (const ShardEntry& shard : shards) hasher.add(shard.checksum + "\n");
  return hasher.hex();
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "manifest.json";
  if (!std::filesystem::exists(path)) throw_not_prepared(folder);
  Manifest manifest;
  try {
    const nlohmann::json json = nlohmann::json::parse(read_file(path));
    if (json.value("format", "") != format_name) {
      throw_input("{} is not a manifest of prepared data: its `format` is not `{}`", path.string(), format_name);
    }
    const int version = json.at("version").get<int>();
    if (version != Manifest::current_version) {
      throw_input("{} has version {}; this program reads {}; prepare the data again with --force", path.string(),
                  version, Manifest::current_version);
    }
    json.at("tokenizer_hash").get_to(manifest.tokenizer_hash);
    json.at("vocab_size").get_to(manifest.vocab_size);
    json.at("end_of_text").get_to(manifest.end_of_text);
    const auto type = json.at("id_type").get<std::string>();
    if (type != "uint16" && type != "uint32")
      throw_input("{}: id_type `{}` is not uint16 or uint32", path.string(), type);
    manifest.id_bytes = type == "uint16" ? 2 : 4;
    json.at("shards").get_to(manifest.shards);
    const auto check = [&](const char* key, int64_t sum) {
      const auto told = json.at(key).get<int64_t>();
      if (told != sum) throw_input("{} is damaged: {} is {}, and its shards have {}", path.string(), key, told, sum);
    };
    check("tokens", manifest.tokens());
    check("documents", manifest.documents());
    check("text_bytes", manifest.text_bytes());
    if (manifest.shards.empty()) throw_input("{} is damaged: it names no shards", path.string());
  } catch (const nlohmann::json::exception& error) {
    throw_input("{} is damaged ({}); `trireme data prepare` with --force makes the data anew", path.string(),
                error.what());
  }
  for (const ShardEntry& shard : manifest.shards) {
    if (shard.file.empty() || std::filesystem::path(shard.file).filename() != shard.file) {
      throw_input("{}: shard file `{}` is not a plain file name", path.string(), shard.file);
    }
  }
  return manifest;
}

void write_manifest(const std::filesystem::path& folder, const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = format_name;
  json["version"] = Manifest::current_version;
  json["tokenizer_hash"] = manifest.tokenizer_hash;
  json["vocab_size"] = manifest.vocab_size;
  json["end_of_text"] = manifest.end_of_text;
  json["id_type"] = id_type(manifest.id_bytes);
  json["tokens"] = manifest.tokens();
  json["documents"] = manifest.documents();
  json["text_bytes"] = manifest.text_bytes();
  json["shards"] = nlohmann::json(manifest.shards);
  write_file_durably(folder / "manifest.json", json.dump(2) + "\n");
}

}  // namespace trireme::data
