// What all MpiGroups of a process share: the plug-in, the other ranks' processes, and how a failure gets around.
//
// Control messages go over a communicator of their own and are looked for by whoever waits or makes progress: that a
// rank has failed, and why; that a rank waits, for which call of which group, so that a deadline can name those that do
// not; and what a rank calls, once calls are known to differ.
//
// One thread at a time uses it. Errors: InputError for what the user can mend (no plug-in, no mpirun), WorkerError for
// the rest.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/table.h"
#include "comm/roster.h"

namespace trireme::comm {

class MpiWorld : public Roster {
 public:
  /// Loads the plug-in and starts MPI, once in a process. Collective: all ranks call it. `rank` and `size` are what the
  /// launcher's variables say; MPI must say the same.
  static std::shared_ptr<MpiWorld> open(int64_t rank, int64_t size, std::chrono::milliseconds deadline);
  /// MPI_Finalize, unless a rank has failed or an exception is under way: then the others may never come to it.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  const MpiTable& mpi() const { return mpi_; }
  const MpiComm& control() const { return control_; }
  const std::string& library() const { return library_; }
  /// WorkerError with MPI's words unless `code` is 0.
  void require(int code, std::string_view what) const;
  std::string in_words(int code) const;

  /// Takes what control messages have come; true when a rank, this one or another, has failed.
  bool look();
  const std::string& failure() const { return failure_; }
  /// Tells every other rank; the first text stays. Returns whether this was it. Never throws.
  bool fail(const std::string& text) noexcept;

  /// This rank waits for call `sequence` of a group.
  void tell_waiting(uint64_t group, uint64_t sequence, const std::vector<int64_t>& members);
  /// Whether `rank` has said that it waits for that call or a later one.
  bool waits(uint64_t group, uint64_t sequence, int64_t rank) const;
  /// What this rank calls, to the members of a group whose calls differ.
  void tell_call(uint64_t group, uint64_t sequence, std::string_view text, const std::vector<int64_t>& members);
  /// What `rank` has told of it; null: nothing yet.
  const std::string* call_of(uint64_t group, uint64_t sequence, int64_t rank) const;

  /// All `members` have come to the making of a group; the first of them collects and answers. WorkerError names who
  /// did not come in time.
  void meet(uint64_t group, const std::vector<int64_t>& members, std::string_view axis,
            std::chrono::milliseconds deadline);

  /// How many groups of that name there were before.
  int64_t next_instance(const std::string& name) { return instances_[name]++; }

 private:
  MpiWorld(const MpiTable& mpi, int64_t rank, int64_t size);
  void introduce(std::chrono::milliseconds deadline);
  void post(int64_t to, int tag, std::string_view bytes);
  void flush();
  template <typename Use>
  void drain(int tag, const Use& use);

  const MpiTable& mpi_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
  MpiComm control_;
  std::string library_;

  struct Sent {
    std::string bytes;
    MpiRequest request;
  };
  std::list<Sent> sent_;  // control messages under way
  bool failed_ = false;
  std::string failure_;
  std::map<uint64_t, std::map<int64_t, uint64_t>> waiting_;                        // group -> rank -> sequence
  std::map<std::pair<uint64_t, uint64_t>, std::map<int64_t, std::string>> calls_;  // (group, sequence) -> rank
  std::map<uint64_t, std::map<int64_t, int64_t>> met_;                             // group -> rank -> times
  std::map<std::string, int64_t> instances_;
};

}  // namespace trireme::comm
