// This machine's memory bandwidth: what passes over memory are measured against.
//
// The triad of STREAM (McCalpin, 1995), a[i] = b[i] + s * c[i], on this process's thread team, over arrays that do not
// fit caches of common size. Counted as STREAM counts it: three arrays moved, although a processor also reads what it
// overwrites. What fits a cache runs faster than this.
#pragma once

#include <cstdint>

namespace trireme::observe {

/// Bytes a second: the best of the passes that fit `seconds`, three at least. Takes three arrays of `array_bytes`.
double measure_memory_bandwidth(double seconds = 0.5, int64_t array_bytes = int64_t{256} << 20);

}  // namespace trireme::observe
