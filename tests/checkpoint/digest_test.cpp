// The digest: layout, folder and time do not show in it, every value and every logical state entry does. (Equal digests
// of all layouts: layout_test.cpp.)
#include "checkpoint/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/reader.h"
#include "checkpoint/statistics.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

std::map<std::string, std::string> digest_of(const std::vector<Fragment>& fragments, const nlohmann::json& state,
                                             int64_t step = 5) {
  const test::TemporaryFolder run;
  Alone alone;
  const SaveReport report = save(Store(run.path()), {step, fragments, state, {}}, alone);
  std::map<std::string, std::string> lines;
  for (const DigestLine& line : digest(CheckpointReader::open(report.folder))) lines[line.name] = line.hex;
  return lines;
}

TEST(Digest, LinesAreSortedAndEndWithAll) {
  const test::TemporaryFolder run;
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[0], 5));
  const auto lines = digest(CheckpointReader::open(Store(run.path()).step_folder(5)));
  ASSERT_EQ(lines.size(), test::sample_model().size() + 5);  // step, tokens, schedule, loader, all
  EXPECT_TRUE(std::is_sorted(lines.begin(), lines.end() - 1, [](auto& a, auto& b) { return a.name < b.name; }));
  EXPECT_EQ(lines.back().name, "all");
  for (const DigestLine& line : lines) EXPECT_EQ(line.hex.size(), 32u);
  EXPECT_EQ(to_text(lines).find(lines[0].hex + "  " + lines[0].name + "\n"), 0u);
}

TEST(Digest, ShowsWhatMattersAndNothingElse) {
  std::vector<std::byte> values(8, std::byte{1}), other = values;
  other[7] = std::byte{2};
  const Fragment w{"w", {2, 4}, {{0, 0}, {2, 4}}, DType::u8, values.data(), 0, 1};
  Fragment changed = w, reshaped = w, retyped = w;
  changed.data = other.data();
  reshaped.shape = reshaped.box.size = {4, 2};
  retyped.dtype = DType::bf16, retyped.shape = retyped.box.size = {2, 2};
  const nlohmann::json state = test::sample_state(5);
  nlohmann::json elsewhere = state, more_tokens = state, horizon = state, position = state;
  elsewhere["config"]["run"]["dir"] = "another";
  elsewhere["started"] = "today";
  more_tokens["tokens"] = 1;
  horizon["schedule"]["horizon"] = 41;
  position["loader"]["position"] = 41;
  struct Row {
    std::string name;
    std::map<std::string, std::string> lines;
    std::string differs;  // the one line, besides all
  };
  const auto base = digest_of({w}, state);
  const std::vector<Row> rows{{"the same", digest_of({w}, state), ""},
                              {"path and time", digest_of({w}, elsewhere), ""},
                              {"a value", digest_of({changed}, state), "w"},
                              {"the shape", digest_of({reshaped}, state), "w"},
                              {"the type", digest_of({retyped}, state), "w"},
                              {"tokens", digest_of({w}, more_tokens), "state.tokens"},
                              {"schedule", digest_of({w}, horizon), "state.schedule"},
                              {"loader", digest_of({w}, position), "state.loader"},
                              {"step", digest_of({w}, state, 6), "state.step"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    ASSERT_EQ(row.lines.size(), base.size());
    for (const auto& [name, hex] : base) {
      const bool should_differ = !row.differs.empty() && (name == row.differs || name == "all");
      EXPECT_EQ(row.lines.at(name) != hex, should_differ) << name;
    }
  }
}

TEST(Statistics, OfEachType) {
  const std::vector<float> f32{-2, 1, 4, std::numeric_limits<float>::quiet_NaN(), 1};
  const std::vector<double> f64{-2, 1, 4, std::numeric_limits<double>::infinity(), 1};
  const std::vector<uint16_t> bf16{0xC000, 0x3F80, 0x4080, 0x7FC0, 0x3F80}, f16{0xC000, 0x3C00, 0x4400, 0x7C00, 0x3C00};
  const test::TemporaryFolder run;
  Alone alone;
  const Box box{{0}, {5}};
  const auto bytes = [](const auto& values) { return reinterpret_cast<const std::byte*>(values.data()); };
  save(Store(run.path()),
       {1,
        {{"f32", {5}, box, DType::f32, bytes(f32), 0, 1},
         {"f64", {5}, box, DType::f64, bytes(f64), 0, 1},
         {"bf16", {5}, box, DType::bf16, bytes(bf16), 0, 1},
         {"f16", {5}, box, DType::f16, bytes(f16), 0, 1}},
        {},
        {}},
       alone);
  const CheckpointReader reader = CheckpointReader::open(Store(run.path()).step_folder(1));
  for (const LogicalTensor& tensor : reader.tensors()) {
    SCOPED_TRACE(tensor.name);
    const Statistics found = statistics(reader, tensor);
    EXPECT_EQ(found.minimum, -2);
    EXPECT_EQ(found.maximum, 4);
    EXPECT_EQ(found.mean, 1);
    EXPECT_DOUBLE_EQ(found.root_mean_square, std::sqrt(22.0 / 4));
    EXPECT_EQ(found.not_finite, 1);
  }
}

}  // namespace
}  // namespace trireme::checkpoint
