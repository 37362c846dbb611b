// What the kernels of every instruction-set level are written with: conversion of element types, vectors of 16 lanes,
// exp. Included by the sources that are compiled once per level (TRIREME_KERNEL_LEVEL), and by them alone.
//
// Everything here has internal linkage or lives in the level's namespace: an inline function that the linker shared
// between levels could carry AVX-512 into a portable path. For the same reason only the C library's headers are
// included.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "ops/kernels.h"

namespace trireme::ops {
namespace TRIREME_KERNEL_LEVEL {
namespace {

constexpr int64_t kLanes = 16;

inline float load(Bf16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline float load(F16 x) {
  _Float16 value;
  memcpy(&value, &x.bits, sizeof value);
  return static_cast<float>(value);
}
inline float load(float x) { return x; }
inline double load(double x) { return x; }

// Round to nearest, ties to even; a NaN stays one.
inline void store(Bf16& to, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
}
inline void store(F16& to, float value) {
  const _Float16 half = static_cast<_Float16>(value);
  memcpy(&to.bits, &half, sizeof half);
}
inline void store(float& to, float value) { to = value; }
inline void store(double& to, double value) { to = value; }

// Sums run over 16 lanes, written as vectors: g++ unrolls a loop over an array of lanes before it sees that it could be
// one, and goes on element by element.
template <typename C>
struct LanesOf {
  typedef C type __attribute__((vector_size(kLanes * sizeof(C))));
};
template <typename C>
using Lanes = typename LanesOf<C>::type;

/// Elements [first, first + kLanes) where a number would be one of them: load(x, Block{i}) has all lanes.
struct Block {
  int64_t first;
};

template <typename T>
inline Compute<T> load(const T* x, int64_t i) {
  return load(x[i]);
}
inline Lanes<float> load(const Bf16* x, Block at) {
  typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));
  Halves bits;
  memcpy(&bits, x + at.first, sizeof bits);
  return reinterpret_cast<Lanes<float>>(__builtin_convertvector(bits, Lanes<uint32_t>) << 16);
}
inline Lanes<float> load(const F16* x, Block at) {
  Lanes<float> values;
  for (int64_t lane = 0; lane < kLanes; ++lane) values[lane] = load(x[at.first + lane]);
  return values;
}
inline Lanes<float> load(const float* x, Block at) {
  Lanes<float> values;
  memcpy(&values, x + at.first, sizeof values);
  return values;
}
inline Lanes<double> load(const double* x, Block at) {
  Lanes<double> values;
  memcpy(&values, x + at.first, sizeof values);
  return values;
}

inline int32_t to_integer(float x) { return static_cast<int32_t>(x); }
inline Lanes<int32_t> to_integer(Lanes<float> x) { return __builtin_convertvector(x, Lanes<int32_t>); }

// 2^power times the result is exp(x), to about one unit in the last place: a polynomial on [-ln2/2, ln2/2] (Cephes
// expf's range reduction). For a float or a vector of them.
template <typename F, typename I>
inline F exponential_of_fraction(F x, I& power) {
  const F n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  F r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  power = to_integer(n);
  return p * r * r + r + 1.0f;
}

// The argument is clamped to +-87, where the result is still normal, by its bits: of `x < -87 ? -87 : x` g++ makes a
// branch, goes on with the constant down both sides and computes all of them for every lane. What is then thrown away
// may be subnormal (1 / (1 + e^88)), which costs a hundred cycles.
constexpr int32_t kMostExponent = 0x42AE0000;  // 87.0f
inline float exponential(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof x);
  const int32_t size = bits & 0x7FFFFFFF;
  bits = (size < kMostExponent ? size : kMostExponent) | (bits & static_cast<int32_t>(0x80000000));
  memcpy(&x, &bits, sizeof x);
  int32_t power;
  const float fraction = exponential_of_fraction(x, power);
  const int32_t scale_bits = (power + 127) << 23;
  float scale;
  memcpy(&scale, &scale_bits, sizeof scale);
  return fraction * scale;
}
inline double exponential(double x) { return exp(x); }

inline Lanes<float> exponential(Lanes<float> x) {
  const Lanes<int32_t> size = reinterpret_cast<Lanes<int32_t>>(x) & 0x7FFFFFFF;
  const Lanes<int32_t> clamped = (size < kMostExponent ? size : Lanes<int32_t>{} + kMostExponent) |
                                 (reinterpret_cast<Lanes<int32_t>>(x) & static_cast<int32_t>(0x80000000));
  Lanes<int32_t> power;
  const Lanes<float> fraction = exponential_of_fraction(reinterpret_cast<Lanes<float>>(clamped), power);
  return fraction * reinterpret_cast<Lanes<float>>((power + 127) << 23);
}
inline Lanes<double> exponential(Lanes<double> x) {
  for (int64_t lane = 0; lane < kLanes; ++lane) x[lane] = exp(x[lane]);
  return x;
}

inline double widened(double x) { return x; }
inline Lanes<double> widened(Lanes<float> x) { return __builtin_convertvector(x, Lanes<double>); }
inline Lanes<double> widened(Lanes<double> x) { return x; }

// Adds the lanes pairwise, always in the same order.
template <typename C>
inline C fold(Lanes<C> lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// Sum over i of term(i), which takes an index and a Block.
template <typename C, typename Term>
inline C lane_sum(int64_t count, Term term) {
  Lanes<C> lanes = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) lanes += term(Block{i});
  for (int64_t lane = 0; i + lane < count; ++lane) lanes[lane] += term(i + lane);
  return fold<C>(lanes);
}

}  // namespace
}  // namespace TRIREME_KERNEL_LEVEL
}  // namespace trireme::ops
