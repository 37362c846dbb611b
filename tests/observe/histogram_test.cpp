// Histograms against counting by hand, bucket for bucket, and the bytes that TensorBoard reads. Catches: a value at a
// border in the wrong bucket, a sign mixed up, a value that is not finite and spoils the sums.
#include "observe/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "observe/tensorboard.h"

namespace trireme::observe {
namespace {

using testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kMost = std::numeric_limits<double>::max();

std::vector<double> positive_limits() {
  std::vector<double> limits;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) limits.push_back(limit);
  return limits;
}

// Limits as the format has them: those of all buckets.
std::vector<double> all_limits() {
  std::vector<double> limits = {-kMost, 0, kMost};
  for (const double limit : positive_limits()) limits.insert(limits.end(), {limit, -limit});
  std::ranges::sort(limits);
  return limits;
}

void expect_counted(const std::vector<double>& values) {
  const Histogram h = histogram(values);
  const std::vector<double> limits = all_limits();
  ASSERT_FALSE(h.limits.empty());
  ASSERT_EQ(h.limits.size(), h.counts.size());
  EXPECT_GT(h.counts.front(), 0);
  EXPECT_GT(h.counts.back(), 0);
  auto limit = std::ranges::find(limits, h.limits.front());
  ASSERT_NE(limit, limits.end());
  double total = 0;
  for (size_t i = 0; i < h.limits.size(); ++i, ++limit) {
    ASSERT_EQ(h.limits[i], *limit);
    const double low = limit == limits.begin() ? -kInfinity : *(limit - 1);
    const auto inside = std::ranges::count_if(
        values, [&](double v) { return v >= low && (v < *limit || (v == kMost && *limit == kMost)); });
    EXPECT_EQ(h.counts[i], static_cast<double>(inside)) << "[" << low << ", " << *limit << ")";
    total += h.counts[i];
  }
  EXPECT_EQ(total, static_cast<double>(values.size()));
  EXPECT_EQ(h.count, static_cast<int64_t>(values.size()));
  EXPECT_EQ(h.min, std::ranges::min(values));
  EXPECT_EQ(h.max, std::ranges::max(values));
}

TEST(Histogram, EveryValueOnceInItsBucket) {
  const random::Key key = random::make_key(1, "histogram");
  std::vector<double> values;
  for (uint64_t i = 0; i < 4001; ++i) {
    const double size = std::pow(10, -14 + 36 * random::uniform(key, 2 * i));
    values.push_back(random::uniform(key, 2 * i + 1) < 0.5 ? -size : size);
  }
  expect_counted(values);
  // One of each sign beside every limit, and on it.
  values.clear();
  for (const double limit : positive_limits())
    for (const double value : {std::nextafter(limit, 0.0), limit, std::nextafter(limit, kInfinity)})
      values.insert(values.end(), {value, -value});
  expect_counted(values);
  for (int exponent = -60; exponent < 80; ++exponent)
    for (const double value : {std::ldexp(1.0, exponent), std::nextafter(std::ldexp(1.0, exponent), 0.0)})
      values.insert(values.end(), {value, -value});
  expect_counted(values);
  expect_counted({0.0});
  expect_counted({-0.0, 0.0, 5e-324, -5e-324});
  expect_counted({kMost, -kMost, 1e300, -1e300});
  expect_counted({3.5});
  expect_counted({-3.5});
}

TEST(Histogram, Sums) {
  const std::vector<float> values = {0.5F, -2.0F, NAN, 3.0F, INFINITY, -INFINITY};
  const Histogram h = histogram(values);
  EXPECT_EQ(h.count, 3);
  EXPECT_EQ(h.min, -2);
  EXPECT_EQ(h.max, 3);
  EXPECT_EQ(h.sum, 1.5);
  EXPECT_EQ(h.sum_of_squares, 13.25);
  EXPECT_EQ(histogram(std::vector<float>{}).count, 0);
  const Histogram broken = histogram(std::vector<float>{NAN});
  EXPECT_EQ(broken.count, 0);
  EXPECT_EQ(broken.max, 0);
  EXPECT_TRUE(broken.limits.empty());
}

// By hand from event.proto and summary.proto: the numbers of the fields, and doubles packed.
TEST(Histogram, Event) {
  const NamedHistogram named{
      "w", {.count = 2, .min = 1, .max = 2, .sum = 3, .sum_of_squares = 5, .limits = {1.5, 2.5}, .counts = {1, 1}}};
  const auto number = [](double value) {
    std::string bytes(8, '\0');
    std::copy_n(reinterpret_cast<const char*>(&value), 8, bytes.begin());
    return bytes;
  };
  const std::string histo = "\x09" + number(1) + "\x11" + number(2) + "\x19" + number(2) + "\x21" + number(3) + "\x29" +
                            number(5) + "\x32\x10" + number(1.5) + number(2.5) + "\x3a\x10" + number(1) + number(1);
  ASSERT_EQ(histo.size(), 81U);
  EXPECT_EQ(tensorboard::histogram_event(1.5e9, 7, named),
            "\x09" + number(1.5e9) + "\x10\x07\x2a\x58\x0a\x56\x0a\x01w\x2a\x51" + histo);
}

}  // namespace
}  // namespace trireme::observe
