// The arithmetic of a reduction against a plain loop: rounding, NaN, and that every instruction set gives the same
// bits.
#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "comm/reduce_kernels.h"

namespace trireme::comm {
namespace {

float widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, 4);
  return value;
}

TEST(Reduce, Bf16IsSummedInFloatAndRoundedOnce) {
  // 256 + 1 + 1 + 1: rounding after each step to 8 bits would stay at 256.
  const std::vector<std::vector<uint16_t>> inputs = {{0x4380}, {0x3f80}, {0x3f80}, {0x3f80}};
  std::vector<const void*> in;
  for (const auto& v : inputs) in.push_back(v.data());
  uint16_t out = 0;
  void* output = &out;
  reduce({&output, 1}, in, 1, DType::bf16, ReduceOp::sum);
  EXPECT_EQ(widen(out), 260.0F);  // 259 lies between 258 and 260: a tie, to even
}

TEST(Reduce, NotANumberWinsWhereverItIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    for (int at = 0; at < 3; ++at) {
      std::array<float, 3> values = {1, 2, 3};
      values[static_cast<size_t>(at)] = nan;
      for (const size_t ranks : {size_t{2}, size_t{3}}) {
        if (static_cast<size_t>(at) >= ranks) continue;
        std::array<const void*, 3> in = {&values[0], &values[1], &values[2]};
        float out = 0;
        void* output = &out;
        reduce({&output, 1}, {in.data(), ranks}, 1, DType::f32, op);
        EXPECT_TRUE(std::isnan(out)) << name_of(op) << " at " << at << " of " << ranks;
      }
    }
  }
}

TEST(Reduce, EveryInstructionSetGivesTheSameBits) {
  for (const DType dtype : {DType::u8, DType::i32, DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (const int64_t ranks : {2, 3, 5}) {
      for (const int64_t count : {1, 17, 1021}) {
        std::vector<std::vector<std::byte>> inputs;
        std::vector<const void*> in;
        uint64_t state = 88172645463325252ULL + static_cast<uint64_t>(count);
        for (int64_t r = 0; r < ranks; ++r) {
          std::vector<std::byte> bytes(static_cast<size_t>(count * size_of(dtype)));
          for (std::byte& b : bytes) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            b = static_cast<std::byte>(state >> 24);
          }
          inputs.push_back(std::move(bytes));
        }
        for (const auto& v : inputs) in.push_back(v.data());
        const bool integers = dtype == DType::u8 || dtype == DType::i32 || dtype == DType::i64;
        // 0.3 is no power of two: a product and a sum in one instruction would round once in place of twice.
        for (const Reduction how : {Reduction(ReduceOp::sum), Reduction(ReduceOp::max), Reduction(ReduceOp::min),
                                    Reduction(ReduceOp::avg), Reduction(ReduceOp::sum, 0.3)}) {
          if (integers && (how.op == ReduceOp::avg || how.factor != 1)) continue;
          std::vector<std::byte> a(inputs[0].size()), b(inputs[0].size());
          void* pa = a.data();
          void* pb = b.data();
          reduce({&pa, 1}, in, count, dtype, how);
          reduce_baseline.reduce(&pb, 1, in.data(), ranks, count, dtype, how);
          // Payloads of NaNs may differ; whether it is one may not.
          for (int64_t i = 0; i < count; ++i) {
            const auto* x = a.data() + i * size_of(dtype);
            const auto* y = b.data() + i * size_of(dtype);
            if (std::memcmp(x, y, static_cast<size_t>(size_of(dtype))) == 0) continue;
            double vx = 0, vy = 0;
            if (dtype == DType::f64) std::memcpy(&vx, x, 8), std::memcpy(&vy, y, 8);
            if (dtype == DType::f32 || dtype == DType::bf16) {
              float fx = 0, fy = 0;
              std::memcpy(reinterpret_cast<char*>(&fx) + (dtype == DType::bf16 ? 2 : 0), x,
                          static_cast<size_t>(size_of(dtype)));
              std::memcpy(reinterpret_cast<char*>(&fy) + (dtype == DType::bf16 ? 2 : 0), y,
                          static_cast<size_t>(size_of(dtype)));
              vx = fx, vy = fy;
            }
            if (dtype == DType::f16) {
              _Float16 hx = 0, hy = 0;
              std::memcpy(&hx, x, 2), std::memcpy(&hy, y, 2);
              vx = static_cast<double>(hx), vy = static_cast<double>(hy);
            }
            EXPECT_TRUE(std::isnan(vx) && std::isnan(vy))
                << name_of(dtype) << " " << name_of(how.op) << " x " << how.factor << " ranks " << ranks << " at " << i;
          }
        }
      }
    }
  }
}

// Sums of 3 to 9 inputs: by recursion in plain code, and such that halves could have been summed elsewhere.
TEST(Reduce, TreesAddPairsOfNeighbours) {
  const std::function<float(std::span<const float>)> plain = [&](std::span<const float> v) -> float {
    if (v.size() == 1) return v[0];
    const size_t half = std::bit_floor(v.size() - 1);
    return plain(v.first(half)) + plain(v.subspan(half));
  };
  constexpr int64_t count = 1300;  // more than a block
  for (size_t ranks = 1; ranks <= 9; ++ranks) {
    std::vector<std::vector<float>> inputs(ranks, std::vector<float>(count));
    uint64_t state = 7;
    for (auto& input : inputs) {
      for (float& value : input) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        value = static_cast<float>(static_cast<int64_t>(state >> 30)) * 1e-9F;
      }
    }
    std::vector<const void*> in;
    for (const auto& input : inputs) in.push_back(input.data());
    std::vector<float> expected, in_row(count), tree(count);
    for (int64_t i = 0; i < count; ++i) {
      std::vector<float> terms;
      for (const auto& input : inputs) terms.push_back(input[static_cast<size_t>(i)]);
      expected.push_back(plain(terms));
    }
    void* row = in_row.data();
    reduce({&row, 1}, in, count, DType::f32, ReduceOp::sum);
    // In place, into all of them but the first, and into another.
    std::vector<void*> outputs = {tree.data()};
    for (size_t r = 1; r < ranks; ++r) outputs.push_back(inputs[r].data());
    reduce(outputs, in, count, DType::f32, Reduction::in_tree());
    EXPECT_EQ(tree, expected) << ranks;
    for (size_t r = 1; r < ranks; ++r) EXPECT_EQ(inputs[r], expected) << ranks;
    EXPECT_EQ(in_row == tree, ranks <= 3) << "the order would not show with " << ranks;
  }
}

// Half of the distance between two bfloat16 around 1 is 2^-8: ties go to the even one, and a NaN stays one.
TEST(Reduce, CastsRoundToNearestEvenOnEveryInstructionSet) {
  EXPECT_TRUE(converts(DType::f32, DType::bf16) && converts(DType::f32, DType::f16));
  EXPECT_FALSE(converts(DType::f64, DType::bf16) || converts(DType::bf16, DType::f32));
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> from = {1.0F + 0x1p-8F, 1.0F + 0x3p-8F, 1.0F + 0x1.8p-8F, -infinity, nan, 3.4e38F, 0x1p-140F};
  const std::vector<uint16_t> bf16 = {0x3f80, 0x3f82, 0x3f81, 0xff80, 0x7fc0, 0x7f80, 0x0000};
  from.resize(1021, 0.1F);  // beyond a vector, and a remainder
  for (const DType to : {DType::bf16, DType::f16}) {
    std::vector<uint16_t> got(from.size()), plain(from.size());
    convert(got.data(), to, from.data(), DType::f32, static_cast<int64_t>(from.size()));
    reduce_baseline.narrow(plain.data(), to, from.data(), static_cast<int64_t>(from.size()));
    EXPECT_EQ(got, plain) << name_of(to);
    if (to == DType::bf16) {
      for (size_t i = 0; i < 6; ++i) EXPECT_EQ(got[i], bf16[i]) << from[i];
    } else {
      for (size_t i = 0; i < from.size(); ++i)
        EXPECT_EQ(got[i], std::bit_cast<uint16_t>(static_cast<_Float16>(from[i]))) << from[i];
    }
  }
}

}  // namespace
}  // namespace trireme::comm
