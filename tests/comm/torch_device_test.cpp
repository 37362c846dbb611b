// Sums that a NcclGroup has made by torch's operations, against those of the other backends (comm/reduce.h): the same
// bits. On the CPU, whose additions are those of a GPU; no test has a GPU.
#include "comm/torch_device.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "comm/reduce.h"

namespace trireme::comm {
namespace {

at::ScalarType type_of(DType dtype) {
  return dtype == DType::f32    ? at::kFloat
         : dtype == DType::f64  ? at::kDouble
         : dtype == DType::bf16 ? at::kBFloat16
         : dtype == DType::f16  ? at::kHalf
         : dtype == DType::i32  ? at::kInt
         : dtype == DType::i64  ? at::kLong
                                : at::kByte;
}

TEST(TorchDevice, SumsHaveTheBitsOfTheOtherBackends) {
  at::manual_seed(5);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    const bool floats = dtype != DType::i32 && dtype != DType::i64 && dtype != DType::u8;
    const bool wide = dtype == DType::f32 || dtype == DType::f64;
    for (const int64_t ranks : {1, 2, 3, 5, 8}) {
      for (const int64_t count : {0, 1, 37, 4099}) {
        std::vector<Reduction> ways = {Reduction(), Reduction(ReduceOp::max), Reduction(ReduceOp::min)};
        if (floats) ways.insert(ways.end(), {Reduction(ReduceOp::avg), Reduction(ReduceOp::sum, 0.3)});
        if (wide) ways.push_back(Reduction::in_tree());
        for (const Reduction& how : ways) {
          std::vector<at::Tensor> inputs;
          std::vector<const void*> terms;
          for (int64_t r = 0; r < ranks; ++r) {
            at::Tensor values = at::randn({count}, at::kDouble) * 100;
            if (floats && r == 1 && count > 30) values[30] = std::numeric_limits<double>::quiet_NaN();
            inputs.push_back((floats ? values : values.abs()).to(type_of(dtype)));
          }
          for (const at::Tensor& input : inputs) terms.push_back(input.const_data_ptr());
          at::Tensor expected = at::empty({count}, type_of(dtype)), found = at::empty({count}, type_of(dtype));
          void* to = expected.data_ptr();
          reduce({&to, 1}, terms, count, dtype, how);
          reduce_by_torch(found.data_ptr(), terms, count, dtype, how, at::kCPU);
          EXPECT_TRUE(at::equal(at::nan_to_num(found), at::nan_to_num(expected)) &&
                      at::equal(at::isnan(found), at::isnan(expected)))
              << name_of(dtype) << " x " << count << " of " << ranks << " ranks, " << name_of(how.op) << " factor "
              << how.factor << (how.tree ? ", in a tree" : "");
          // In place, as a rank's own share of an all_reduce is summed.
          if (ranks > 1) {
            reduce_by_torch(inputs[1].data_ptr(), terms, count, dtype, how, at::kCPU);
            EXPECT_TRUE(at::equal(at::nan_to_num(inputs[1]), at::nan_to_num(expected)));
          }
        }
      }
    }
  }
}

TEST(TorchDevice, WithoutCudaItSaysWhatToBuild) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is CUDA";
  try {
    TorchDevice device(0);
    ADD_FAILURE() << "a GPU without CUDA";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("cmake --preset cuda"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("tools/build-nccl.sh"));
  }
}

}  // namespace
}  // namespace trireme::comm
