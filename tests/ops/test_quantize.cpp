// Blocks of 8 and 4 bits: kernels against ATen's operators in every bit, and what the format promises.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/quantize.h"

namespace trireme::ops {
namespace {

constexpr QuantizedFormat kFormats[] = {{8, 256}, {4, 256}, {8, 16}, {4, 16}, {4, 34}, {8, 1024}};
constexpr int64_t kSizes[] = {0, 1, 2, 15, 16, 17, 31, 33, 256, 257, 511, 4 * 1024 + 1, 33333};

std::string name(const QuantizedFormat& format, int64_t size) {
  return std::to_string(format.bits) + " bits, blocks of " + std::to_string(format.block) + ", " +
         std::to_string(size) + " elements";
}

at::Tensor packed_for(const QuantizedFormat& format, int64_t size) {
  return at::zeros({format.packed_bytes(size)}, at::kByte);
}

// Magnitudes from 1e-6 to 1e6, from block to block.
at::Tensor sample(int64_t size) {
  return at::randn({size}) * at::pow(10, at::rand({size}) * 2 + at::arange(size) / 3000 % 9 - 6);
}

at::Tensor round_trip(const QuantizedFormat& format, const at::Tensor& values, at::ScalarType type = at::kFloat) {
  const at::Tensor packed = packed_for(format, values.numel());
  quantize(format, values, packed);
  const at::Tensor back = at::full({values.numel()}, NAN, type);
  dequantize(format, packed, back);
  return back;
}

TEST(Quantize, PackedBytesAreThoseOfScalesAndCodes) {
  EXPECT_EQ((QuantizedFormat{8, 256}.packed_bytes(0)), 0);
  EXPECT_EQ((QuantizedFormat{8, 256}.packed_bytes(1)), 8);
  EXPECT_EQ((QuantizedFormat{8, 256}.packed_bytes(256)), 260);
  EXPECT_EQ((QuantizedFormat{8, 256}.packed_bytes(257)), 268);
  EXPECT_EQ((QuantizedFormat{4, 256}.packed_bytes(512)), 264);
  EXPECT_EQ((QuantizedFormat{4, 16}.packed_bytes(17)), 20);
}

TEST(Quantize, KernelsAndOperatorsOfAtenAgreeInEveryBit) {
  at::manual_seed(1);
  for (const QuantizedFormat& format : kFormats) {
    for (const int64_t size : kSizes) {
      at::Tensor values = sample(size);
      if (size > 300) {  // a block of zeros, one with a NaN, one with an infinity, one of tiny numbers
        values.narrow(0, 0, std::min(format.block, size / 3)).zero_();
        values[size / 2] = std::numeric_limits<float>::infinity();
        values[size - 1] = NAN;
      }
      for (const bool feedback : {false, true}) {
        const at::Tensor packed = packed_for(format, size), expected = packed_for(format, size);
        const at::Tensor residual = feedback ? at::randn({size}) * 0.01 : at::Tensor();
        const at::Tensor residual_expected = feedback ? residual.clone() : at::Tensor();
        quantize(format, values, packed, residual);
        reference::quantize(format, values, expected, residual_expected);
        EXPECT_TRUE(packed.equal(expected)) << name(format, size) << (feedback ? ", residual" : "");
        if (feedback) {
          EXPECT_TRUE(residual.equal(residual_expected)) << name(format, size);
        }
      }
      const at::Tensor packed = packed_for(format, size);
      quantize(format, values, packed);
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor back = at::full({size}, NAN, type), expected = at::full({size}, NAN, type);
        dequantize(format, packed, back);
        reference::dequantize(format, packed, expected);
        EXPECT_TRUE(back.nan_to_num(7).equal(expected.nan_to_num(7))) << name(format, size) << c10::toString(type);
      }
      std::vector<at::Tensor> parts;
      for (int i = 0; i < 3; ++i) {
        parts.push_back(packed_for(format, size));
        quantize(format, sample(size), parts.back());
      }
      for (const bool accumulate : {false, true}) {
        const at::Tensor sum = sample(size), expected = sum.clone();
        sum_dequantized(format, parts, sum, accumulate);
        reference::sum_dequantized(format, parts, expected, accumulate);
        EXPECT_TRUE(sum.equal(expected)) << name(format, size) << (accumulate ? ", added" : "");
      }
    }
  }
}

TEST(Quantize, NoElementIsOffByMoreThanHalfAScale) {
  at::manual_seed(2);
  for (const QuantizedFormat& format : kFormats) {
    const int64_t size = 8 * 1024 + 1;
    const at::Tensor values = sample(size), back = round_trip(format, values);
    const double levels = format.bits == 8 ? 127 : 7;
    bool differs = false;
    for (int64_t first = 0; first < size; first += format.block) {
      const int64_t count = std::min(format.block, size - first);
      const at::Tensor block = values.narrow(0, first, count).to(at::kDouble);
      const double scale = block.abs().max().item<double>() / levels;
      const at::Tensor error = (block - back.narrow(0, first, count).to(at::kDouble)).abs();
      EXPECT_LE(error.max().item<double>(), scale * 0.500001) << name(format, size) << " from " << first;
      // The largest one comes back as it was, to rounding.
      EXPECT_LE(error[block.abs().argmax()].item<double>(), scale * 1e-4) << name(format, size) << " from " << first;
      differs = differs || error.max().item<double>() > scale * 0.2;
    }
    EXPECT_TRUE(differs) << "rounding that loses nothing was not done: " << name(format, size);
  }
}

// torch's own quantisation by a given scale, of one block.
TEST(Quantize, EightBitsAreWhatTorchQuantizesTo) {
  at::manual_seed(3);
  const at::Tensor values = at::randn({256});
  const double scale = values.abs().max().item<float>() * (1.0F / 127);
  const at::Tensor expected = at::quantize_per_tensor(values, scale, 0, at::kQInt8).int_repr();
  const QuantizedFormat format{8, 256};
  const at::Tensor packed = packed_for(format, 256);
  quantize(format, values, packed);
  const at::Tensor codes = packed.narrow(0, 4, 256).view(at::kChar);
  EXPECT_LE((codes.to(at::kInt) - expected.to(at::kInt)).abs().max().item<int>(), 1);  // where halves round apart
  EXPECT_GE((codes == expected).sum().item<int64_t>(), 250);
}

TEST(Quantize, WhatIsNotFiniteStaysVisibleAndStaysInItsBlock) {
  for (const QuantizedFormat& format : kFormats) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      const int64_t size = 3 * format.block + 5;
      for (const int64_t at : {int64_t{0}, format.block - 1, 2 * format.block + 1, size - 1}) {
        at::Tensor values = at::ones({size});
        values[at] = bad;
        const at::Tensor residual = at::full({size}, 0.25);
        const at::Tensor packed = packed_for(format, size);
        quantize(format, values, packed, residual);
        EXPECT_TRUE(residual.isfinite().all().item<bool>()) << "the next step would be lost too";
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
          const at::Tensor back = at::zeros({size}, type);
          dequantize(format, packed, back);
          const int64_t first = at / format.block * format.block, count = std::min(format.block, size - first);
          EXPECT_TRUE(back.narrow(0, first, count).isnan().all().item<bool>()) << name(format, size) << " at " << at;
          EXPECT_EQ(back.isnan().sum().item<int64_t>(), count) << name(format, size) << " at " << at;
        }
        const at::Tensor sum = at::zeros({size});
        sum_dequantized(format, {packed, packed}, sum, true);
        EXPECT_FALSE(std::isfinite(sum.square().sum().item<float>()));
      }
    }
  }
}

TEST(Quantize, ZerosAndTheSmallestAndLargestNumbers) {
  for (const QuantizedFormat& format : kFormats) {
    EXPECT_TRUE(round_trip(format, at::zeros({100})).equal(at::zeros({100})));
    EXPECT_EQ(round_trip(format, at::full({100}, 1e-42)).abs().max().item<float>(), 0);
    EXPECT_NEAR(round_trip(format, at::full({100}, 1e-30)).max().item<float>() / 1e-30, 1, 1e-5);
    EXPECT_NEAR(round_trip(format, at::full({100}, -3e38)).min().item<float>() / 3e38, -1, 1e-5);
    // One outlier takes the others of its block, and of no other.
    at::Tensor values = at::full({2 * format.block}, 1e-3);
    values[0] = 1e6;
    const at::Tensor back = round_trip(format, values);
    EXPECT_EQ(back[1].item<float>(), 0);
    EXPECT_NEAR(back[format.block].item<float>(), 1e-3, 1e-8);
  }
}

// What was sent over 50 steps is what should have been, to one residual: the error does not grow.
TEST(Quantize, ErrorFeedbackLosesNothingForGood) {
  at::manual_seed(4);
  for (const QuantizedFormat& format : {QuantizedFormat{8, 64}, QuantizedFormat{4, 64}}) {
    const int64_t size = 1000;
    const at::Tensor residual = at::zeros({size}), packed = packed_for(format, size), back = at::empty({size});
    const at::Tensor drift = at::randn({size});
    at::Tensor meant = at::zeros({size}, at::kDouble), sent = meant.clone(), sent_without = meant.clone();
    double largest = 0;
    for (int step = 1; step <= 50; ++step) {
      const at::Tensor gradient = drift + 0.1 * at::randn({size});
      meant += gradient;
      quantize(format, gradient, packed, residual);
      dequantize(format, packed, back);
      sent += back;
      sent_without += round_trip(format, gradient);
      const double bound = (gradient + residual).abs().max().item<double>() / (format.bits == 8 ? 127 : 7);
      largest = std::max(largest, bound);
      EXPECT_LE((meant - sent).abs().max().item<double>(), largest) << "step " << step;
    }
    // Without it, what is rounded the same way each time adds up.
    EXPECT_GT((meant - sent_without).abs().max().item<double>(), 4 * (meant - sent).abs().max().item<double>());
  }
}

}  // namespace
}  // namespace trireme::ops
