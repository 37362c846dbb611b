// Rendezvous: from the launcher's variables to a communicator of all ranks.
//
// The ranks meet at a c10d::TCPStore, compare their machines, and the first hands the arena to the others over a Unix
// socket; over NCCL they go on using the store, and over MPI they need none. A world of one rank needs none of it.
// Errors: InputError for what the user can mend (port taken, ranks on several machines), WorkerError for a peer that
// did not come before the deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/launch_environment.h"

namespace trireme::comm {

struct ConnectOptions {
  std::string backend = "auto";                       ///< comm.backend: auto, shm, mpi or nccl
  bool on_gpus = false;                               ///< what ranks exchange lies on GPUs: auto is nccl then
  std::chrono::milliseconds timeout{600'000};         ///< deadline of each wait of the communicator
  std::chrono::milliseconds connect_timeout{60'000};  ///< deadline of the whole rendezvous
  std::shared_ptr<GroupSettings> settings;            ///< of all groups of this process; null: the defaults
  /// Where the flight recorder writes (RUN/flight), and how many operations; without either there is none.
  std::filesystem::path flight_folder;
  int64_t flight_capacity = 0;
  /// With master_port = 0: how rank 0 tells the port that it got, and how the others learn it (a status page of the
  /// launcher). await_port throws when the time is over.
  std::function<void(int)> publish_port;
  std::function<int(std::chrono::milliseconds)> await_port;
  /// Asked while this rank waits for the others: true ends the wait with Cancelled. None: never.
  std::function<bool()> cancelled;
};

/// The wait for the other ranks was given up on request; nothing has begun.
class Cancelled : public Error {
 public:
  explicit Cancelled(const std::string& message) : Error(ExitCode::stopped, message) {}
};

/// The communicator of all ranks, axis name "world". Collective.
std::shared_ptr<Communicator> connect(const LaunchEnvironment& environment, const ConnectOptions& options);

}  // namespace trireme::comm
