// The benchmarks of `trireme bench` that have a file of their own.
#pragma once

#include <c10/core/ScalarType.h>

#include <CLI/Validators.hpp>
#include <string>

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
/// --threads and --seconds of a table of rates.
void add_threads_and_seconds(CLI::App& command, int& threads, double& seconds);
/// Of "bf16", "fp16", "fp32" or "fp64".
at::ScalarType dtype_of(const std::string& name);

}  // namespace trireme::cli
