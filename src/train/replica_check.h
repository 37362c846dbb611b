// Whether ranks that must hold the same do: a bit that flipped in memory, or a kernel that computed something else on
// one machine, would otherwise show as a loss that drifts, if at all.
#pragma once

#include <string>

#include "train/session.h"

namespace trireme::train {

/// Collective. Compares a hash of each master weight, of its copy that computes, its moments and its moving average
/// over the ranks that hold the same, bit for bit. Empty when all agree; otherwise, on every rank, the first parameter
/// that differs and the ranks that stand against the majority, or all of them where there is none.
std::string find_differing_replica(const Session& session);

}  // namespace trireme::train
