#include "cli/worker.h"

#include <CLI/Error.hpp>
#include <new>
#include <string>
#include <utility>

namespace trireme::cli {
namespace {

[[noreturn]] void fail(resilience::WorkerContext& context, ExitCode code, const std::string& message) {
  if (!context.status) throw Error(code, message);
  context.status->report_error(code, message);
  throw CLI::RuntimeError(static_cast<int>(code));
}

}  // namespace

ExitCode be_worker(comm::LaunchEnvironment environment,
                   const std::function<ExitCode(resilience::WorkerContext&)>& work) {
  resilience::WorkerContext context = resilience::make_worker_context(std::move(environment));
  try {
    const ExitCode code = work(context);
    // Tells an end from a library's call of exit(0).
    if (context.status) context.status->set_phase(resilience::Phase::done);
    return code;
  } catch (const Error& error) {
    fail(context, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    fail(context, ExitCode::internal, "out of memory");
  } catch (const std::exception& error) {
    fail(context, ExitCode::internal, error.what());
  }
}

}  // namespace trireme::cli
