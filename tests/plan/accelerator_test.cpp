// The catalogue: names and aliases lead to the right row, figures are those of data sheets, and a wrong name or number
// tells what would do.
#include "plan/accelerator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace trireme::plan {
namespace {

using testing::HasSubstr;

TEST(Accelerator, NamesAndAliasesInAnyCase) {
  const struct {
    const char* name;
    const char* row;
    double bf16_tflops, memory_gib, scale_up_gbs;  // NVIDIA, AMD and Google data sheets
  } rows[] = {
      {"h100-sxm", "H100-80GB-SXM", 989, 80, 450},
      {"H100-SXM", "H100-80GB-SXM", 989, 80, 450},
      {"h100-80gb-sxm", "H100-80GB-SXM", 989, 80, 450},
      {"a100", "A100-80GB-SXM", 312, 80, 300},
      {"A100-40gb", "A100-40GB-SXM", 312, 40, 300},
      {"h200", "H200-141GB-SXM", 989, 141, 450},
      {"gb200", "GB200-NVL72", 2500, 186, 900},
      {"mi300x", "MI300X", 1307, 192, 448},
      {"v5p", "TPU-v5p", 459, 95, 300},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const Accelerator found = accelerator(row.name);
    EXPECT_EQ(found.name, row.row);
    EXPECT_EQ(found.bf16_tflops, row.bf16_tflops);
    EXPECT_EQ(found.memory_gib, row.memory_gib);
    EXPECT_EQ(found.scale_up_gbs, row.scale_up_gbs);
  }
}

TEST(Accelerator, TableIsConsistent) {
  std::set<std::string> names;
  for (const Accelerator& row : accelerators()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second);
    EXPECT_GT(row.bf16_tflops, 0);
    EXPECT_GT(row.memory_gib, 0);
    EXPECT_GT(row.memory_gbs, 0);
    EXPECT_GE(row.scale_up_domain, 1);
    EXPECT_LT(row.matmul_bf16_tflops, row.bf16_tflops) << "measured above the peak";
    EXPECT_FALSE(row.source.empty());
    for (const std::string& alias : accelerator_aliases(row.name)) EXPECT_EQ(accelerator(alias).name, row.name);
  }
  EXPECT_GE(names.size(), 30u);
}

TEST(Accelerator, UnknownNameGetsTheNearest) {
  try {
    accelerator("h100-smx");
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"h100-sxm\"?"));
  }
}

TEST(Accelerator, NumbersAreReplacedAndAllFaultsAreToldAtOnce) {
  Accelerator a100 = accelerator("a100");
  set_values(a100, std::vector<std::string>{"scale_out_gbs=12.5", "price_low=1.5"});
  EXPECT_EQ(a100.scale_out_gbs, 12.5);
  EXPECT_EQ(a100.price_low, 1.5);
  try {
    set_values(a100, std::vector<std::string>{"memory_gb=40", "power_w=much", "scale_up_domain=0"});
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_EQ(error.faults().size(), 3u);
    EXPECT_THAT(error.what(), HasSubstr("did you mean memory_gib?"));
  }
}

}  // namespace
}  // namespace trireme::plan
