// The benchmarks of `trireme bench` that have a file of their own.
#pragma once

#include <CLI/Validators.hpp>

namespace CLI {
class App;
}

namespace trireme::cli {

void add_bench_collectives(CLI::App& bench);
void add_bench_memory(CLI::App& bench);
void add_bench_ops(CLI::App& bench);
void add_bench_step(CLI::App& bench);

/// Seconds to measure for.
CLI::Validator is_duration();

}  // namespace trireme::cli
