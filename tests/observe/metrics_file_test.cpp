// metrics.jsonl. Catches: a number that does not read back to its bits, a line that is not JSON, keys in another order,
// a step that appears twice after a resume, a user's own line lost, a full disk that stops training or leaves half a
// line.
#include "observe/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace trireme::observe {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

class MetricsFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trireme-metrics-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    path_ = folder_ / "metrics.jsonl";
  }
  void TearDown() override { fs::remove_all(folder_); }
  void put(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string text() { return read_file(path_); }

  fs::path folder_, path_;
};

StepRecord step_at(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 1.0 / static_cast<double>(step);
  return record;
}

std::vector<std::string> keys(const std::string& line) {
  std::vector<std::string> result;
  const auto json = ordered_json::parse(line);
  for (const auto& item : json.items()) result.push_back(item.key());
  return result;
}

TEST(MetricsLine, KeysInOrder) {
  using testing::ElementsAre;
  StepRecord record = step_at(3);
  EXPECT_THAT(keys(to_json_line(record)),
              ElementsAre("step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "mfu", "step_time_s",
                          "data_time_s", "comm_exposed_s", "peak_memory_bytes"));
  record.layer_grad_norms = {{"z", 1.5}, {"a", std::nan("")}};
  record.skipped = true;
  record.skipped_parameter = "blocks.0.attention.q.weight";
  const std::string line = to_json_line(record);
  EXPECT_THAT(keys(line), ElementsAre("step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "mfu",
                                      "step_time_s", "data_time_s", "comm_exposed_s", "peak_memory_bytes",
                                      "layer_grad_norms", "skipped", "skipped_parameter"));
  const auto json = ordered_json::parse(line);
  EXPECT_EQ(json["layer_grad_norms"].dump(), R"({"z":1.5,"a":"NaN"})");
  EXPECT_EQ(json["skipped"], true);
  EXPECT_EQ(json["skipped_parameter"], "blocks.0.attention.q.weight");
  EXPECT_THAT(keys(to_json_line(EvalRecord{.step = 3})),
              ElementsAre("step", "eval_loss", "eval_bits_per_byte", "eval_tokens", "eval_bytes"));
  EXPECT_THAT(keys(to_json_line(EvalRecord{.step = 3, .set = "wiki"})),
              ElementsAre("step", "eval_loss/wiki", "eval_bits_per_byte/wiki", "eval_tokens/wiki", "eval_bytes/wiki"));
  EXPECT_THAT(keys(to_json_line(ChoiceRecord{.step = 3, .suite = "arc"})),
              ElementsAre("step", "eval_acc/arc", "eval_acc_norm/arc", "eval_questions/arc"));
}

TEST(MetricsLine, FloatsReadBackToTheirBits) {
  const double rows[] = {0.0,
                         -0.0,
                         1.0,
                         0.1,
                         1.0 / 3,
                         2e-3,
                         6.931471805599453,
                         static_cast<double>(3.4521f),
                         1e23,
                         9007199254740993.0,
                         std::nextafter(1.0, 2.0),
                         std::numeric_limits<double>::min(),
                         std::numeric_limits<double>::denorm_min(),
                         std::numeric_limits<double>::max()};
  for (const double value : rows) {
    StepRecord record = step_at(1);
    record.loss = value;
    record.lr = -value;
    const auto json = nlohmann::json::parse(to_json_line(record));
    EXPECT_EQ(std::bit_cast<uint64_t>(json["loss"].get<double>()), std::bit_cast<uint64_t>(value)) << value;
    EXPECT_EQ(std::bit_cast<uint64_t>(json["lr"].get<double>()), std::bit_cast<uint64_t>(-value)) << value;
  }
}

TEST(MetricsLine, NonFiniteNumbersAreStrings) {
  StepRecord record = step_at(1);
  record.loss = std::nan("");
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.mfu = -std::numeric_limits<double>::infinity();
  const auto json = nlohmann::json::parse(to_json_line(record));
  EXPECT_EQ(json["loss"], "NaN");
  EXPECT_EQ(json["grad_norm"], "Infinity");
  EXPECT_EQ(json["mfu"], "-Infinity");
}

TEST(MetricsLine, NameThatIsNoUtf8) {
  StepRecord record = step_at(1);
  record.skipped = true;
  record.skipped_parameter = "bad\xff\nname";
  const std::string line = to_json_line(record);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(line)["skipped_parameter"], "bad\xef\xbf\xbd\nname");
}

TEST_F(MetricsFileTest, RewindTable) {
  const struct {
    const char* name;
    std::string before;
    int64_t step;
    std::string after;
    int64_t removed;
  } rows[] = {
      {"empty", "", 5, "", 0},
      {"nothing after", "{\"step\":1}\n{\"step\":2}\n", 2, "{\"step\":1}\n{\"step\":2}\n", 0},
      {"steps after", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n", 1, "{\"step\":1}\n", 2},
      {"evaluations too", "{\"step\":2}\n{\"step\":2,\"eval_loss\":1.0}\n{\"step\":4,\"eval_loss\":1.0}\n", 2,
       "{\"step\":2}\n{\"step\":2,\"eval_loss\":1.0}\n", 1},
      {"step 0 keeps the evaluation before training", "{\"step\":0,\"eval_loss\":9.0}\n{\"step\":1}\n", 0,
       "{\"step\":0,\"eval_loss\":9.0}\n", 1},
      {"-1 removes all of ours", "{\"step\":0,\"eval_loss\":9.0}\n{\"step\":1}\nnote\n", -1, "note\n", 2},
      {"torn last line", "{\"step\":1}\n{\"step\":2,\"lo", 5, "{\"step\":1}\n", 1},
      {"torn within the number", "{\"step\":1}\n{\"step\":1", 5, "{\"step\":1}\n", 1},
      {"only the newline is missing", "{\"step\":1}\n{\"step\":2}", 5, "{\"step\":1}\n{\"step\":2}\n", 0},
      {"whole but later, without newline", "{\"step\":1}\n{\"step\":9}", 5, "{\"step\":1}\n", 1},
      {"zeros after a power failure", std::string("{\"step\":1}\n") + std::string(7, '\0'), 5, "{\"step\":1}\n", 1},
      {"foreign lines stay", "# mine\n\n{\"step\":\"9\"}\n[9]\n{\"note\":9}\n{\"step\":9}\n", 5,
       "# mine\n\n{\"step\":\"9\"}\n[9]\n{\"note\":9}\n", 1},
      {"out of order", "{\"step\":3}\n{\"step\":1}\n{\"step\":2}\n", 2, "{\"step\":1}\n{\"step\":2}\n", 1},
      {"spaces and other key order", "{ \"loss\": 1, \"step\": 7 }\n{ \"loss\": 1, \"step\": 5 }\n", 5,
       "{ \"loss\": 1, \"step\": 5 }\n", 1},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    put(row.before);
    MetricsFile file(path_);
    EXPECT_EQ(file.rewind(row.step), row.removed);
    EXPECT_EQ(text(), row.after);
    // The descriptor leads to the new file, and its end.
    file.append(EvalRecord{.step = 77});
    EXPECT_EQ(text(), row.after + to_json_line(EvalRecord{.step = 77}) + "\n");
    EXPECT_FALSE(fs::exists(path_.string() + ".tmp"));
  }
}

// What a resumed run looks for, to evaluate what a stop has cut off and nothing else.
TEST_F(MetricsFileTest, HasTheNumberOfASet) {
  put("note\n{\"step\":2}\n");
  MetricsFile file(path_);
  file.append(EvalRecord{.step = 2});
  file.append(EvalRecord{.step = 4, .set = "wiki"});
  EXPECT_TRUE(file.has(2, "eval_loss"));
  EXPECT_FALSE(file.has(2, "eval_loss/wiki"));
  EXPECT_TRUE(file.has(4, "eval_loss/wiki"));
  EXPECT_FALSE(file.has(4, "eval_loss"));
  EXPECT_FALSE(file.has(4, "eval_loss/wik"));
}

TEST_F(MetricsFileTest, MissingFileIsMadeAndRewindsToNothing) {
  MetricsFile file(path_);
  EXPECT_EQ(file.rewind(10), 0);
  EXPECT_EQ(text(), "");
}

TEST_F(MetricsFileTest, NoStepTwiceAfterAResume) {
  {
    MetricsFile file(path_);
    file.rewind(-1);
    for (int64_t step = 1; step <= 9; ++step) file.append(step_at(step));
  }
  MetricsFile file(path_);
  EXPECT_EQ(file.rewind(5), 4);
  for (int64_t step = 6; step <= 10; ++step) file.append(step_at(step));
  file.sync();
  std::ifstream lines(path_);
  int64_t expected = 0;
  for (std::string line; std::getline(lines, line);) EXPECT_EQ(nlohmann::json::parse(line)["step"], ++expected);
  EXPECT_EQ(expected, 10);
}

TEST_F(MetricsFileTest, CannotBeOpened) {
  const fs::path nowhere = folder_ / "missing" / "metrics.jsonl";
  try {
    MetricsFile file(nowhere);
    FAIL() << "opened";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(nowhere.string()));
  }
}

// A full disk: a limit on the file's size gives the same short write and the same failure, without one.
TEST_F(MetricsFileTest, FullDiskLosesLinesButNeverTearsThem) {
  MetricsFile file(path_);
  file.append(step_at(1));
  const std::string first = text();
  ASSERT_FALSE(first.empty());
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = first.size() + 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  testing::internal::CaptureStderr();
  file.append(step_at(2));  // a short write
  file.append(step_at(3));
  const std::string warnings = testing::internal::GetCapturedStderr();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(text(), first);
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_THAT(warnings, testing::HasSubstr(path_.string()));
  file.append(step_at(4));  // there is room again
  EXPECT_EQ(text(), first + to_json_line(step_at(4)) + "\n");
}

}  // namespace
}  // namespace trireme::observe
