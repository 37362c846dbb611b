// What comm.emulate asks for, in numbers.
#pragma once

#include <cstdint>

#include "comm/link.h"
#include "config/config.h"

namespace trireme::train {

/// The link of an axis of `ranks` ranks. Hardware is looked up in the planner's catalogue: within its domain the fast
/// links join any two, an axis that is larger goes over the network. Throws InputError for hardware that the catalogue
/// does not have, or whose link it does not know.
comm::LinkSpeed link_speed(const config::LinkConfig& link, int64_t ranks);

}  // namespace trireme::train
