// The command line of the program, for a main that adds to it: every command (train, launch, data, generate, eval,
// inspect, report, bench, config) as `trireme` has it.
#pragma once

namespace trireme::cli {

/// Runs one command line and returns the exit code of the process. Here, and nowhere else, an error becomes a message
/// and an exit code.
///
/// Call it once, from main, before anything that starts threads. `train` starts workers as this very program
/// (/proc/self/exe) with a command line of its own, so main runs in each of them: what it does before this call is done
/// in every worker, and must not depend on arguments that only the launcher gets. Register architectures before it.
int main(int argc, char** argv);

}  // namespace trireme::cli
