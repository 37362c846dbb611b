// How moments that are kept on disk pass through memory (optim/moment_file.h).
#pragma once

#include <cstdint>

namespace trireme::describe {

inline constexpr int64_t kMomentPieceElements = 1 << 20;  ///< of each of the two moments
/// One that is read, one that is updated, one that is written.
inline constexpr int64_t kMomentPieces = 3;

}  // namespace trireme::describe
