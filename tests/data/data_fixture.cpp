#include "data_fixture.h"

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"

namespace trireme::data::testing {
namespace {

namespace fs = std::filesystem;

Tokenizer small_tokenizer() {
  TokenizerParts parts;
  parts.pattern = "gpt2";
  for (int byte = 0; byte < 256; ++byte) parts.ranks.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* merged : {" t", "he", " the", "in", "er", "an", " a", "re", "on", " w"})
    parts.ranks.push_back(merged);
  parts.specials = {{"<|endoftext|>"}};
  parts.end_of_text = "<|endoftext|>";
  return Tokenizer(parts);
}

}  // namespace

std::string message_of_current_exception() {
  try {
    throw;
  } catch (const InputError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an InputError: " << error.what();
  }
  return "";
}

DataTest::DataTest() : tokenizer_(small_tokenizer()) {
  std::string pattern = (fs::temp_directory_path() / "trireme-data-XXXXXX").string();
  folder_ = ::mkdtemp(pattern.data());
  tokenizer_.save(path("tokenizer"));
  fs::create_directories(path("texts"));
}

DataTest::~DataTest() { fs::remove_all(folder_); }

void DataTest::write(const std::string& name, std::string_view content) const {
  fs::create_directories((path("texts") / name).parent_path());
  std::ofstream(path("texts") / name, std::ios::binary) << content;
}

PrepareOptions DataTest::options(const std::string& out) const {
  PrepareOptions options;
  options.tokenizer = path("tokenizer");
  options.out = path(out);
  options.inputs = {path("texts").string()};
  options.threads = 2;
  return options;
}

std::shared_ptr<const Dataset> DataTest::dataset(const std::map<std::string, std::string>& texts,
                                                 int64_t shard_tokens) const {
  for (const auto& [name, content] : texts) write(name, content);
  PrepareOptions prepared = options();
  prepared.shard_tokens = shard_tokens;
  prepare(prepared);
  return Dataset::open(prepared.out);
}

std::vector<int32_t> DataTest::stream(const Dataset& dataset) {
  std::vector<int32_t> ids(static_cast<size_t>(dataset.token_count()));
  dataset.copy_tokens(0, ids);
  return ids;
}

std::vector<int32_t> DataTest::expected_stream(const std::vector<std::string>& texts) const {
  std::vector<int32_t> ids;
  for (const std::string& text : texts) {
    tokenizer_.encode(text, ids);
    ids.push_back(tokenizer_.end_of_text());
  }
  return ids;
}

std::map<std::string, std::string> DataTest::tree(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().lexically_relative(folder).string()] = read_file(entry.path());
  }
  return files;
}

void DataTest::flip_byte(const fs::path& file, int64_t offset) {
  std::string content = read_file(file);
  content.at(static_cast<size_t>(offset)) = static_cast<char>(~content.at(static_cast<size_t>(offset)));
  std::ofstream(file, std::ios::binary) << content;
}

std::string some_text(uint64_t seed, int64_t bytes) {
  static const std::vector<std::string> words{"the", "rain", "in",    "Spain", "answers", "when", "another",
                                              "é",   "wren", "often", "sings", "1905,",   "\n",   "“on the water”"};
  const random::Key key = random::make_key(seed, "test text");
  std::string text;
  for (uint64_t i = 0; static_cast<int64_t>(text.size()) < bytes; ++i) {
    text += words[random::below(key, i, words.size())] + " ";
  }
  return text;
}

}  // namespace trireme::data::testing
