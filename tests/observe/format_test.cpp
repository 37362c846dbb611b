// Numbers for a person. Catches: a digit too many at a rounding limit (999.96k as "1000k"), a lost separator, minutes
// of 60 seconds.
#include "observe/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme::observe {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInfinity = std::numeric_limits<double>::infinity();

TEST(Format, Thousands) {
  const struct {
    int64_t value;
    const char* text;
  } rows[] = {{0, "0"},
              {7, "7"},
              {999, "999"},
              {1000, "1,000"},
              {16384, "16,384"},
              {-999, "-999"},
              {-1000, "-1,000"},
              {1234567, "1,234,567"},
              {100000, "100,000"},
              {-123456, "-123,456"},
              {std::numeric_limits<int64_t>::min(), "-9,223,372,036,854,775,808"}};
  for (const auto& row : rows) EXPECT_EQ(thousands(row.value), row.text);
}

TEST(Format, ShortNumber) {
  const struct {
    double value;
    const char* text;
  } rows[] = {{0, "0"},          {950, "950"},      {0.5, "0.50"},      {3.14159, "3.14"},
              {999.4, "999"},    {999.6, "1.00k"},  {41234, "41.2k"},   {999499, "999k"},
              {999600, "1.00M"}, {2.1e12, "2.10T"}, {9.996, "10.0"},    {99.96, "100"},
              {1e18, "1000P"},   {kNan, "n/a"},     {kInfinity, "n/a"}, {-41234, "-41.2k"}};
  for (const auto& row : rows) EXPECT_EQ(short_number(row.value), row.text) << row.value;
}

TEST(Format, ShortBytes) {
  const struct {
    int64_t value;
    const char* text;
  } rows[] = {{0, "0 B"},
              {512, "512 B"},
              {999, "999 B"},
              {1000, "0.98 KiB"},
              {1024, "1.00 KiB"},
              {1280, "1.25 KiB"},
              {int64_t{1} << 20, "1.00 MiB"},
              {1288490189, "1.20 GiB"},
              {int64_t{5} << 40, "5.00 TiB"}};
  for (const auto& row : rows) EXPECT_EQ(short_bytes(row.value), row.text) << row.value;
}

TEST(Format, ShortDuration) {
  const struct {
    double seconds;
    const char* text;
  } rows[] = {{0, "0.00s"},      {0.52, "0.52s"},       {0.996, "1.0s"},  {9.94, "9.9s"},    {9.96, "10s"},
              {38, "38s"},       {59.4, "59s"},         {59.6, "1m00s"},  {252, "4m12s"},    {3599.4, "59m59s"},
              {3599.6, "1h00m"}, {7500, "2h05m"},       {86399, "1d00h"}, {273600, "3d04h"}, {-1, "unknown"},
              {kNan, "unknown"}, {kInfinity, "unknown"}};
  for (const auto& row : rows) EXPECT_EQ(short_duration(row.seconds), row.text) << row.seconds;
}

TEST(Format, Percent) {
  EXPECT_EQ(percent(0.381), "38.1%");
  EXPECT_EQ(percent(1, 0), "100%");
  EXPECT_EQ(percent(kNan), "n/a");
}

}  // namespace
}  // namespace trireme::observe
