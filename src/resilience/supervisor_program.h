// The supervisor as a program of its own.
//
// A process that links LibTorch holds some 55 MiB before it does anything: what LibTorch registers when it is loaded,
// and the pages that relocation has written. `trireme train` needs LibTorch to check a run, and afterwards only
// watches its workers; so it hands over to a small program, in the same process (same number, terminal and signals).
#pragma once

#include <filesystem>

#include "resilience/supervisor.h"

namespace trireme::resilience {

/// The file's name. It has the version in it: another version's would not understand what it is told.
inline constexpr const char* supervisor_program = "trireme-supervisor-" TRIREME_VERSION;

/// Replaces this process by `program`, which supervises as supervise() does, tells the user what it would return, and
/// ends with that code. Patience is what SupervisorOptions has by default. Returns, with a warning, when it cannot be:
/// the caller supervises by itself then.
void become_supervisor(const std::filesystem::path& program, SupervisorOptions options);

/// What `program` does: the main of trireme-supervisor.
int supervisor_main(int argc, char** argv);

}  // namespace trireme::resilience
