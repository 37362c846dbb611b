// What the kernels of every instruction-set level are written with: conversion of element types, vectors of 16 lanes,
// exp. Included by the sources that are compiled once per level (TRIREME_KERNEL_LEVEL), and by them alone.
//
// Everything here has internal linkage or lives in the level's namespace: an inline function that the linker shared
// between levels could carry AVX-512 into a portable path. For the same reason only the C library's headers are
// included, and the compiler's for instructions that it does not choose by itself (those functions are always inlined).
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

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
#ifdef __AVX512BF16__  // as all lanes at once, which flushes subnormal numbers
  const __m128bh narrow = _mm_cvtneps_pbh(_mm_set_ss(value));
  memcpy(&to.bits, &narrow, sizeof to.bits);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
#endif
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

using Words = Lanes<uint32_t>;
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));

// Of this conversion, and of minima of integers, g++ makes several instructions.
inline Words widened(Halves x) {
#ifdef __AVX512F__
  return reinterpret_cast<Words>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(x)));
#else
  return __builtin_convertvector(x, Words);
#endif
}
inline uint32_t lower_of(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline Words lower_of(Words a, Words b) {
#ifdef __AVX512F__
  return reinterpret_cast<Words>(_mm512_min_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#else
  return a < b ? a : b;
#endif
}

inline Lanes<float> load(const Bf16* x, Block at) {
  Halves bits;
  memcpy(&bits, x + at.first, sizeof bits);
  return reinterpret_cast<Lanes<float>>(widened(bits) << 16);
}
inline Lanes<float> load(const F16* x, Block at) {
#ifdef __AVX512F__
  __m256i bits;
  memcpy(&bits, x + at.first, sizeof bits);
  return reinterpret_cast<Lanes<float>>(_mm512_cvtph_ps(bits));
#else
  Lanes<float> values;
  for (int64_t lane = 0; lane < kLanes; ++lane) values[lane] = load(x[at.first + lane]);
  return values;
#endif
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

// The bits of bf16 numbers, rounded to nearest, ties to even; a NaN stays one.
inline Words rounded(Lanes<float> x) {
  const Words bits = reinterpret_cast<Words>(x);
  const Words nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? Words{} + 0x7FC0 : nearest;
}
inline Halves narrowed(Lanes<float> x) {
#ifdef __AVX512BF16__
  return reinterpret_cast<Halves>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(x)));
#else
  return __builtin_convertvector(rounded(x), Halves);
#endif
}
// even[0], odd[0], even[1], ...
inline Words in_pairs(Lanes<float> even, Lanes<float> odd) {
#ifdef __AVX512BF16__
  const __m512bh both = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(odd), reinterpret_cast<__m512>(even));
  alignas(64) static constexpr uint16_t kOrder[2 * kLanes] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                              21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                              11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return reinterpret_cast<Words>(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), reinterpret_cast<__m512i>(both)));
#else
  return rounded(even) | (rounded(odd) << 16);
#endif
}

// As store(), of a number or of all lanes.
template <typename T>
inline void put(T* to, int64_t i, Compute<T> value) {
  store(to[i], value);
}
inline void put(Bf16* to, Block at, Lanes<float> value) {
  const Halves halves = narrowed(value);
  memcpy(to + at.first, &halves, sizeof halves);
}
inline void put(F16* to, Block at, Lanes<float> value) {
#ifdef __AVX512F__
  const __m256i halves =
      _mm512_cvtps_ph(reinterpret_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  memcpy(to + at.first, &halves, sizeof halves);
#else
  for (int64_t lane = 0; lane < kLanes; ++lane) store(to[at.first + lane], value[lane]);
#endif
}
template <typename C>
inline void put(C* to, Block at, Lanes<C> value) {
  memcpy(to + at.first, &value, sizeof value);
}

// body(i) for all i below count, which is a Block or a number.
template <typename Body>
inline __attribute__((always_inline)) void each(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(Block{i});
  for (; i < count; ++i) body(i);
}

inline float square_root(float x) { return sqrtf(x); }
inline double square_root(double x) { return sqrt(x); }
inline Lanes<float> square_root(Lanes<float> x) {
#ifdef __AVX512F__
  return reinterpret_cast<Lanes<float>>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#else
  float values[kLanes];
  memcpy(values, &x, sizeof values);
  for (float& value : values) value = sqrtf(value);
  memcpy(&x, values, sizeof x);
  return x;
#endif
}
inline Lanes<double> square_root(Lanes<double> x) {
  for (int64_t lane = 0; lane < kLanes; ++lane) x[lane] = sqrt(x[lane]);
  return x;
}

// exp(x) to less than one unit in the last place, for |x| <= 87. For a float or a vector of them, with the unsigned
// integers of its size. Adding 1.5 * 2^23 rounds x / ln(2) to an integer n, which then stands in the last bits of the
// sum: shifted to where the exponent is and added to a number's bits, it multiplies that by 2^n. ln(2) in two parts, of
// which the first has few bits, so that r = x - n ln(2) is right also where no instruction multiplies and adds. The
// polynomial is exp(r) on [-ln(2)/2, ln(2)/2], its largest relative error (2e-9) made as small as its degree allows.
template <typename U, typename F>
inline F exponential_of_clamped(F x) {
  const F shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  F r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F p = r * 1.3843623681e-03f + 8.3741492899e-03f;
  p = p * r + 4.1668002165e-02f;
  p = p * r + 1.6666431333e-01f;
  p = p * r + 4.9999994210e-01f;
  p = p * r + 1.0000000321e+00f;
  p = p * r + 1.0f;
  U bits, power;
  memcpy(&bits, &p, sizeof bits);
  memcpy(&power, &shifted, sizeof power);
  bits += power << 23;
  memcpy(&p, &bits, sizeof p);
  return p;
}

// The argument is clamped to +-87, where the result is still normal, by its bits: of `x < -87 ? -87 : x` g++ makes a
// branch, goes on with the constant down both sides and computes all of them for every lane. What is then thrown away
// may be subnormal (1 / (1 + e^88)), which costs a hundred cycles.
constexpr uint32_t kMostExponent = 0x42AE0000;  // 87.0f
template <typename U, typename F>
inline F exponential(F x) {
  U bits;
  memcpy(&bits, &x, sizeof x);
  const U size = bits & 0x7FFFFFFFu, sign = bits & 0x80000000u;
  bits = lower_of(size, U{} + kMostExponent) | sign;
  memcpy(&x, &bits, sizeof x);
  return exponential_of_clamped<U>(x);
}
inline float exponential(float x) { return exponential<uint32_t>(x); }
inline Lanes<float> exponential(Lanes<float> x) { return exponential<Lanes<uint32_t>>(x); }
inline double exponential(double x) { return exp(x); }
inline Lanes<double> exponential(Lanes<double> x) {
  for (int64_t lane = 0; lane < kLanes; ++lane) x[lane] = exp(x[lane]);
  return x;
}

// The same where x is at most 87, as where the highest of many is taken off: as unsigned integers, negative numbers are
// the larger the smaller they are.
template <typename U, typename F>
inline F exponential_of_low(F x) {
  constexpr uint32_t kLeast = kMostExponent | 0x80000000u;
  U bits;
  memcpy(&bits, &x, sizeof x);
  bits = lower_of(bits, U{} + kLeast);
  memcpy(&x, &bits, sizeof x);
  return exponential_of_clamped<U>(x);
}
inline float exponential_of_low(float x) { return exponential_of_low<uint32_t>(x); }
inline Lanes<float> exponential_of_low(Lanes<float> x) { return exponential_of_low<Lanes<uint32_t>>(x); }
inline double exponential_of_low(double x) { return exp(x); }
inline Lanes<double> exponential_of_low(Lanes<double> x) { return exponential(x); }

// Into the second-level cache.
template <typename T>
inline void prefetch(const T* from, Block at) {
  __builtin_prefetch(from + at.first, 0, 2);
}
template <typename T>
inline void prefetch(const T*, int64_t) {}

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
