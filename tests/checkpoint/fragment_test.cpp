// Boxes: copies between any two boxes of a tensor, and the shares of replicas.
#include "checkpoint/fragment.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support.h"

namespace trireme::checkpoint {
namespace {

struct CopyRow {
  std::string name;
  std::vector<int64_t> shape;
  Box source, target;
};

TEST(Fragment, CopiesTheCommonPartAndNothingElse) {
  const std::vector<CopyRow> rows{
      {"scalar", {}, {{}, {}}, {{}, {}}},
      {"vector", {9}, {{2}, {5}}, {{4}, {5}}},
      {"rows", {7, 3}, {{1, 0}, {4, 3}}, {{3, 0}, {4, 3}}},
      {"columns", {7, 5}, {{0, 1}, {7, 3}}, {{0, 2}, {7, 3}}},
      {"corner", {7, 5}, {{0, 0}, {4, 4}}, {{3, 3}, {4, 2}}},
      {"cube", {5, 3, 7}, {{1, 0, 2}, {3, 3, 5}}, {{0, 1, 0}, {5, 2, 6}}},
      {"inner run", {4, 3, 5}, {{1, 0, 0}, {2, 3, 5}}, {{0, 0, 0}, {4, 3, 5}}},
      {"apart", {9}, {{0}, {3}}, {{5}, {4}}},
  };
  for (const CopyRow& row : rows) {
    SCOPED_TRACE(row.name);
    const LogicalTensor tensor{"t", row.shape, DType::i32};
    const auto source = test::values_of(tensor, row.source);
    const auto right = test::values_of(tensor, row.target);
    std::vector<std::byte> target(right.size(), std::byte{0xEE});
    const std::optional<Box> part = intersect(row.source, row.target);
    ASSERT_EQ(part.has_value(), row.name != "apart");
    if (!part) continue;
    copy_box(*part, row.source, source.data(), row.target, target.data(), 4);
    int64_t copied = 0;
    for (size_t i = 0; i < right.size(); i += 4) {
      const bool same = std::equal(right.begin() + i, right.begin() + i + 4, target.begin() + i);
      const bool untouched =
          std::all_of(target.begin() + i, target.begin() + i + 4, [](std::byte b) { return b == std::byte{0xEE}; });
      EXPECT_TRUE(same || untouched) << "element " << i / 4;
      copied += same;
    }
    EXPECT_EQ(copied, elements(*part));
  }
}

TEST(Fragment, ReplicasShareEachElementOnce) {
  for (const int64_t rows : {0, 1, 2, 5, 64, 257}) {
    for (const int64_t replicas : {1, 2, 3, 4, 7}) {
      for (const int64_t split_bytes : {0, 1000, 1 << 20}) {
        SCOPED_TRACE(fmt::format("{} rows, {} replicas, split at {}", rows, replicas, split_bytes));
        std::vector<int> seen(static_cast<size_t>(rows), 0);
        int64_t largest = 0;
        for (int64_t replica = 0; replica < replicas; ++replica) {
          Fragment fragment{"w", {rows + 10, 8}, {{3, 0}, {rows, 8}}, DType::f32, nullptr, replica, replicas};
          const auto share = share_of_replica(fragment, split_bytes);
          if (!share) continue;
          EXPECT_EQ(share->size[1], 8);
          largest = std::max(largest, share->size[0]);
          for (int64_t r = 0; r < share->size[0]; ++r) ++seen[static_cast<size_t>(share->offset[0] - 3 + r)];
        }
        EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
        if (split_bytes == 0 && rows >= replicas) {
          EXPECT_LE(largest, (rows + replicas - 1) / replicas);
        }
      }
    }
  }
}

TEST(Fragment, SmallTensorsAreDealtOverReplicas) {
  std::vector<int> writes(4, 0);
  for (int i = 0; i < 200; ++i) {
    for (int64_t replica = 0; replica < 4; ++replica) {
      Fragment fragment{fmt::format("w{}", i), {8}, whole(std::vector<int64_t>{8}), DType::f32, nullptr, replica, 4};
      if (share_of_replica(fragment)) ++writes[static_cast<size_t>(replica)];
    }
  }
  for (const int count : writes) EXPECT_NEAR(count, 50, 25);
}

TEST(Fragment, BoxesOutsideTheShapeAreRefused) {
  const std::byte data{};
  struct Row {
    std::string name;
    Fragment fragment;
  };
  const std::vector<Row> rows{
      {"past the end", {"w", {4}, {{2}, {3}}, DType::u8, &data, 0, 1}},
      {"negative", {"w", {4}, {{-1}, {2}}, DType::u8, &data, 0, 1}},
      {"dimensions", {"w", {4, 1}, {{0}, {4}}, DType::u8, &data, 0, 1}},
      {"replica", {"w", {4}, {{0}, {4}}, DType::u8, &data, 2, 2}},
      {"no data", {"w", {4}, {{0}, {4}}, DType::u8, nullptr, 0, 1}},
  };
  for (const Row& row : rows) EXPECT_THROW(check_fragment(row.fragment), InternalError) << row.name;
}

}  // namespace
}  // namespace trireme::checkpoint
