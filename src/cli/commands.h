// The commands of the program: each file of this folder adds one to the command line, and main.cpp lists them.
//
// A command's callback loads, checks, calls the libraries and prints. It reports faults by throwing trireme::Error
// (main prints the message and ends with its exit code). To end with a code and no message, such as `stopped` after
// saving, it throws CLI::RuntimeError(static_cast<int>(ExitCode::stopped)).
#pragma once

namespace CLI {
class App;
}

namespace trireme::cli {

void add_train(CLI::App& app);
void add_launch(CLI::App& app);
void add_sbatch(CLI::App& app);
void add_data(CLI::App& app);
void add_generate(CLI::App& app);
void add_eval(CLI::App& app);
void add_convert(CLI::App& app);
void add_inspect(CLI::App& app);
void add_report(CLI::App& app);
void add_plan(CLI::App& app);
void add_bench(CLI::App& app);
void add_config(CLI::App& app);

}  // namespace trireme::cli
