// Any layout saves, any other loads, and the checkpoint means the same. Catches wrong boxes, offsets, shares and
// orders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/digest.h"
#include "checkpoint/reader.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(Layout, EveryLayoutLoadsWhatEveryOtherSaved) {
  std::string digest_of_first;
  for (const test::Layout& saved : test::layouts()) {
    const test::TemporaryFolder run;
    ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), saved, 20));
    const auto folder = Store(run.path()).step_folder(20);
    for (const test::Layout& loaded : test::layouts()) {
      EXPECT_EQ(test::load_and_compare(folder, loaded), "") << saved.name << " -> " << loaded.name;
    }
    const std::string text = to_text(digest(CheckpointReader::open(folder)));
    if (digest_of_first.empty()) digest_of_first = text;
    EXPECT_EQ(text, digest_of_first) << saved.name;
  }
}

TEST(Layout, EachElementIsStoredOnce) {
  int64_t logical = 0;
  for (const LogicalTensor& tensor : test::sample_model()) logical += elements(tensor.shape) * size_of(tensor.dtype);
  for (const test::Layout& layout : test::layouts()) {
    SCOPED_TRACE(layout.name);
    const test::TemporaryFolder run;
    ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), layout, 1));
    int64_t stored = 0, largest = 0;
    for (const auto& entry : std::filesystem::directory_iterator(Store(run.path()).step_folder(1))) {
      if (entry.path().extension() != ".safetensors") continue;
      const SafetensorsHeader header = read_header(entry.path());
      stored += header.data_bytes;
      largest = std::max(largest, header.data_bytes);
    }
    EXPECT_EQ(stored, logical);
    // Replicas share the writing by bytes: no one writes much more than its part.
    if (layout.name.ends_with("replicas")) {
      EXPECT_LT(largest, logical / layout.size * 11 / 10);
    }
  }
}

TEST(Layout, OneRankStoresPlainNamesInOneFile) {
  const test::TemporaryFolder run;
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[0], 7));
  const auto folder = Store(run.path()).step_folder(7);
  EXPECT_THAT(test::names_in(folder), ::testing::ElementsAre("index.json", "rank-00000.safetensors"));
  for (const StoredFragment& fragment : read_header(folder / "rank-00000.safetensors").fragments) {
    EXPECT_EQ(fragment.key, fragment.name);
  }
}

TEST(Layout, ARankWithNothingWritesNoFile) {
  const test::TemporaryFolder run;
  const Store store(run.path());
  const std::vector<std::byte> values(16);
  const auto errors = test::on_ranks(3, [&](Coordination& coordination) {
    SaveRequest request{3, {}, {}, {}};
    if (coordination.rank() == 1) {
      request.fragments.push_back({"w", {16}, {{0}, {16}}, DType::u8, values.data(), 0, 1});
    }
    const SaveReport report = save(store, request, coordination);
    EXPECT_EQ(report.rank_bytes > 0, coordination.rank() == 1);
    EXPECT_GT(report.bytes, 16);
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  EXPECT_THAT(test::names_in(store.step_folder(3)), ::testing::ElementsAre("index.json", "rank-00001.safetensors"));
  EXPECT_EQ(CheckpointReader::open(store.step_folder(3)).world_size(), 3);
}

TEST(Layout, WhatTheRunGaveComesBack) {
  const test::TemporaryFolder run;
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[1], 20));
  const CheckpointReader reader = CheckpointReader::open(Store(run.path()).step_folder(20));
  EXPECT_EQ(reader.step(), 20);
  EXPECT_EQ(reader.world_size(), 2);
  EXPECT_EQ(reader.state(), test::sample_state(20));
  EXPECT_EQ(reader.layout().at("name"), "two replicas");
  EXPECT_EQ(reader.tensors().size(), test::sample_model().size());
}

TEST(Layout, AllMismatchesAreListedAtOnce) {
  const test::TemporaryFolder run;
  ASSERT_NO_FATAL_FAILURE(test::must_save_sample(run.path(), test::layouts()[0], 1));
  const CheckpointReader reader = CheckpointReader::open(Store(run.path()).step_folder(1));
  std::vector<LogicalTensor> needed = test::sample_model();
  needed[0].shape = {288, 288};
  needed[1].dtype = DType::f32;
  needed.push_back({"blocks.1.norm.weight", {13}, DType::bf16});
  needed.erase(std::find_if(needed.begin(), needed.end(), [](const auto& t) { return t.name == "cube"; }));
  try {
    reader.require(needed);
    FAIL() << "was accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.faults().size(), 4u) << error.what();
    EXPECT_THAT(error.what(),
                HasSubstr("checkpoint has blocks.0.attention.q.weight as [257, 33] F32, the run needs [288, 288] F32"));
    EXPECT_THAT(error.what(), HasSubstr("checkpoint has blocks.0.norm.weight as [13] BF16, the run needs [13] F32"));
    EXPECT_THAT(error.what(), HasSubstr("checkpoint has no blocks.1.norm.weight"));
    EXPECT_THAT(error.what(), HasSubstr("nearest name is blocks.0.norm.weight"));
    EXPECT_THAT(error.what(), HasSubstr("checkpoint has cube as [5, 3, 7] I32, the run has no such tensor"));
  }
  reader.require(test::sample_model());

  std::vector<std::byte> room(64, std::byte{0xEE});
  const std::vector<Target> targets{{"one", {1}, {{0}, {1}}, DType::f16, room.data()},
                                    {"mask", {4, 2}, {{0, 0}, {4, 2}}, DType::u8, room.data()},
                                    {"mask", {4, 2}, {{0, 0}, {4, 1}}, DType::u8, room.data()},
                                    {"absent", {1}, {{0}, {1}}, DType::u8, room.data()}};
  try {
    reader.read(targets);
    FAIL() << "was accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.faults().size(), 2u) << error.what();
  }
  EXPECT_EQ(room[0], std::byte{0xEE}) << "nothing is read when anything does not fit";
}

TEST(Layout, FragmentsThatDoNotCoverATensorAreRefusedOnAllRanks) {
  struct Row {
    std::string name;
    int64_t begin_of_second, rows_of_second;
    std::vector<int64_t> shape_of_second;
    std::string message;
  };
  const std::vector<Row> rows{{"a gap", 5, 3, {8}, "wrote 7 elements of w [8], which has 8"},
                              {"an overlap", 3, 5, {8}, "wrote 9 elements"},
                              {"two shapes", 4, 4, {9}, "w is [8] U8 on one rank and [9] U8 on another"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const test::TemporaryFolder run;
    const Store store(run.path());
    const std::vector<std::byte> values(16);
    const auto errors = test::on_ranks(2, [&](Coordination& coordination) {
      SaveRequest request{3, {}, {}, {}};
      if (coordination.rank() == 0) {
        request.fragments.push_back({"w", {8}, {{0}, {4}}, DType::u8, values.data(), 0, 1});
      } else {
        const Box box{{row.begin_of_second}, {row.rows_of_second}};
        request.fragments.push_back({"w", row.shape_of_second, box, DType::u8, values.data(), 0, 1});
      }
      save(store, request, coordination);
    });
    EXPECT_THAT(errors[0], HasSubstr(row.message));
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_TRUE(test::names_in(store.folder()).empty());
  }
}

}  // namespace
}  // namespace trireme::checkpoint
