// What comm.emulate asks for, in numbers.
#pragma once

#include <map>
#include <string>

#include "comm/link.h"
#include "config/config.h"

namespace trireme::train {

/// The links of the axes of a run of `parallel`, resolved, by name: those that are emulated. Hardware is looked up in
/// the planner's catalogue: within its domain the fast links join any two, an axis that is larger goes over the
/// network. Throws InputError for hardware that the catalogue does not have, or whose link it does not know.
std::map<std::string, comm::LinkSpeed> link_speeds(const config::EmulateConfig& emulate,
                                                   const config::ParallelConfig& parallel);

}  // namespace trireme::train
