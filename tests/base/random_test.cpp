// Random numbers: the generator against its authors' vectors, and the properties that layouts rest on.
#include "base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "base/error.h"

namespace trireme::random {
namespace {

TEST(Philox, KnownAnswers) {
  // Random123, tests/kat_vectors, philox4x32 with 10 rounds: counter words, key words, result words.
  const struct {
    const char* name;
    std::array<uint32_t, 4> counter;
    std::array<uint32_t, 2> key;
    std::array<uint32_t, 4> result;
  } rows[] = {
      {"zeros", {0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {"ones",
       {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {"pi",
       {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& row : rows) {
    const auto wide = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
    EXPECT_EQ(philox({wide(row.key[0], row.key[1])}, wide(row.counter[0], row.counter[1]),
                     wide(row.counter[2], row.counter[3])),
              row.result)
        << row.name;
  }
}

TEST(Keys, DifferByPurposeSeedAndNumber) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (const char* purpose : {"", "init", "order", "dropout"}) {
      const Key key = make_key(seed, purpose);
      EXPECT_TRUE(keys.insert(key.value).second) << seed << purpose;
      for (uint64_t number = 0; number < 4; ++number) {
        EXPECT_TRUE(keys.insert(derive(key, number).value).second) << seed << purpose << number;
      }
    }
  }
}

TEST(Keys, AreGolden) {
  // Checkpoints and runs rest on these bits: a change of the hash or of its seeding must not go unnoticed.
  EXPECT_EQ(make_key(1, "init").value, 0x4ba01e745abda3d8u);
  EXPECT_EQ(derive(make_key(1, "init"), 7).value, 0x43cded98a12248efu);
  EXPECT_EQ(bits64(make_key(1, "init"), 3), 0xd834909d1576aac9u);
}

TEST(Uniform, StaysInsideTheOpenIntervalWithTheRightMoments) {
  const Key key = make_key(5, "uniform");
  double sum = 0, squares = 0;
  constexpr int count = 100000;
  for (int i = 0; i < count; ++i) {
    const double value = uniform(key, static_cast<uint64_t>(i));
    ASSERT_GT(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
    squares += value * value;
  }
  // Five standard errors: sqrt(1/12 / n) and sqrt(4/45 / n).
  EXPECT_NEAR(sum / count, 0.5, 5 * std::sqrt(1.0 / 12 / count));
  EXPECT_NEAR(squares / count, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / count));
}

TEST(Below, IsInRangeAndEven) {
  for (const uint64_t bound :
       {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{7}, (uint64_t{1} << 63) + 1, ~uint64_t{0}}) {
    const Key key = make_key(bound, "below");
    std::vector<int> counts(8);
    for (uint64_t i = 0; i < 7000; ++i) {
      const uint64_t value = below(key, i, bound);
      ASSERT_LT(value, bound);
      if (bound <= 7) ++counts[value];
    }
    if (bound != 7) continue;
    double chi_square = 0;
    for (int i = 0; i < 7; ++i) chi_square += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000.0;
    EXPECT_LT(chi_square, 22.46);  // 6 degrees of freedom, one in a thousand; the draw is fixed
  }
  EXPECT_THROW(below({1}, 0, 0), InternalError);
}

TEST(InverseNormalCdf, MatchesKnownQuantilesAndIsOdd) {
  const struct {
    double p, x;
  } rows[] = {
      // Wichura, algorithm AS 241, test values, and standard tables to all digits of a double.
      {0.25, -0.67448975019608174}, {0.001, -3.0902323061678132},
      {1e-20, -9.2623400897984076}, {0.5, 0.0},
      {0.975, 1.9599639845400538},  {0.02425, -1.9729610513118848},
      {0.84134474606854293, 1.0},   {1e-9, -5.9978070150076865},
  };
  for (const auto& row : rows)
    EXPECT_NEAR(inverse_normal_cdf(row.p), row.x, 2e-14 * std::max(1.0, std::abs(row.x))) << row.p;
  for (double p = 0.0005; p < 0.5; p += 0.0007) {
    EXPECT_NEAR(inverse_normal_cdf(p), -inverse_normal_cdf(1 - p), 1e-12) << p;
    EXPECT_NEAR(0.5 * std::erfc(-inverse_normal_cdf(p) / std::sqrt(2.0)), p, 1e-15 + 4e-15 * p) << p;
  }
}

TEST(TruncatedNormal, IsCutAndHasTheRightSpread) {
  const Key key = make_key(9, "truncated");
  double sum = 0, squares = 0;
  constexpr int count = 2'000'000;
  for (int i = 0; i < count; ++i) {
    const double value = truncated_normal(key, static_cast<uint64_t>(i), 3);
    ASSERT_LE(std::abs(value), 3);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / count, 0, 5 / std::sqrt(count));
  // Variance of a standard normal cut at 3: 1 - 6 phi(3) / (2 Phi(3) - 1) = 0.97334.
  // The fourth moment is 2.7, so 2e6 draws tell it to 0.0009; values moved to the edge instead would give 0.995.
  EXPECT_NEAR(squares / count, 0.97334, 0.004);
}

TEST(Permutation, IsABijection) {
  for (const uint64_t size : {1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 4099, 16384}) {
    const Permutation permutation(make_key(3, "order"), size);
    std::vector<bool> seen(size);
    uint64_t fixed = 0;
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[image]) << size << ": " << image << " twice";
      seen[image] = true;
      fixed += image == i;
    }
    // A random permutation has one fixed point on average; the identity would have all.
    if (size >= 16) {
      EXPECT_LT(fixed, 8u) << size;
    }
    EXPECT_THROW(permutation(size), InternalError);
  }
}

TEST(Permutation, DependsOnTheKeyAndWorksForHugeSizes) {
  const uint64_t size = (uint64_t{1} << 62) + 12345;
  const Permutation a(make_key(1, "order"), size), b(make_key(2, "order"), size);
  std::set<uint64_t> images;
  int same = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_LT(a(i), size);
    images.insert(a(i));
    same += a(i) == b(i);
  }
  EXPECT_EQ(images.size(), 1000u);
  EXPECT_EQ(same, 0);
}

}  // namespace
}  // namespace trireme::random
