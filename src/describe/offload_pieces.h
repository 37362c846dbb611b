// How what is offloaded passes through an update (optim/offloaded_state.h).
#pragma once

#include <cstdint>

namespace trireme::describe {

inline constexpr int64_t kOffloadPieceElements = 1 << 20;  ///< of each tensor: master weights, both moments
/// From disk: one that is read, one that is updated, one that is written.
inline constexpr int64_t kDiskPieces = 3;

}  // namespace trireme::describe
