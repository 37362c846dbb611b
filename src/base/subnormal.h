// Numbers too small for the normal range.
#pragma once

namespace trireme {

/// From now on, this thread and those that it starts take subnormal numbers (below 1.2e-38 in float) for zero and
/// produce none. An operation with one costs a hundred cycles, and training makes them: the moments of a weight that
/// has no gradient, such as the row of a token that does not occur, shrink until they are subnormal and stay so. AMX
/// does the same without being told. Call before the first thread is started. On x86-64 and AArch64; elsewhere nothing
/// happens.
void flush_subnormals();

}  // namespace trireme
