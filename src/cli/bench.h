// The benchmarks of `trireme bench` that have a file of their own.
#pragma once

namespace CLI {
class App;
}

namespace trireme::cli {

void add_bench_collectives(CLI::App& bench);

}  // namespace trireme::cli
