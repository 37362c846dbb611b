// Communicators of ranks as threads, over shared memory or a stand-in for NCCL, or of processes that mpirun has
// started.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "mpi_ranks.h"
#include "nccl_ranks.h"
#include "ranks.h"

namespace trireme::comm::testing {

/// Runs `body` on `ranks` threads or processes, none of which may throw; of one rank, on this thread without an arena.
inline void on_ranks(int64_t ranks, const std::function<void(Communicator&)>& body) {
  if (ranks == 1) return body(*Communicator::solo("data"));
  if (under_mpi()) {
    return run_processes(ranks, [&](const std::shared_ptr<Group>& group) {
      Communicator communicator(group);
      body(communicator);
    });
  }
  if (over_nccl()) {
    return expect_no_errors(run_nccl_ranks(ranks, [&](const std::shared_ptr<NcclGroup>& group) {
      Communicator communicator(group);
      body(communicator);
    }));
  }
  expect_no_errors(run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    Communicator communicator(group);
    body(communicator);
  }));
}

}  // namespace trireme::comm::testing
