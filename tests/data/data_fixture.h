// What the tests of prepared data share: a temporary folder, a small tokenizer, prepared sets.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/prepare.h"
#include "data/tokenizer.h"

namespace trireme::data::testing {

class DataTest : public ::testing::Test {
 protected:
  DataTest();
  ~DataTest() override;

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  /// Writes texts/NAME.
  void write(const std::string& name, std::string_view content) const;
  /// Options that prepare texts/ into `out`.
  PrepareOptions options(const std::string& out = "out") const;
  /// Prepares `texts` (name to content) and opens the result.
  std::shared_ptr<const Dataset> dataset(const std::map<std::string, std::string>& texts,
                                         int64_t shard_tokens = 1 << 20) const;
  /// The stream of a set.
  static std::vector<int32_t> stream(const Dataset& dataset);
  /// What the stream should be: ids of the texts, each with end-of-text.
  std::vector<int32_t> expected_stream(const std::vector<std::string>& texts) const;
  /// Name to content of all files below a folder.
  static std::map<std::string, std::string> tree(const std::filesystem::path& folder);
  /// Inverts the bits of one byte.
  static void flip_byte(const std::filesystem::path& file, int64_t offset);
  /// Message of the InputError that `call` throws; fails the test when it throws none.
  template <typename Call>
  static std::string fault_of(Call&& call);

  Tokenizer tokenizer_;
  std::filesystem::path folder_;
};

std::string message_of_current_exception();

template <typename Call>
std::string DataTest::fault_of(Call&& call) {
  try {
    call();
  } catch (...) {
    return message_of_current_exception();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Deterministic words, `bytes` of them or a little more; different for each `seed`.
std::string some_text(uint64_t seed, int64_t bytes);

}  // namespace trireme::data::testing
