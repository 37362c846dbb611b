// What all NcclGroups of a process share: the plug-in, the device, the other ranks' processes, and how a failure gets
// around.
//
// NCCL moves data between devices; everything else goes over a board, a store of keys and values that all ranks reach
// (the c10d::TCPStore at which they met): the ids of communicators, that a rank has failed and why, and which ranks
// wait for which call, so that a deadline can name those that do not. A rank that waits looks at the board, and at the
// processes of its own machine, ten times a second: whoever dies is named by a neighbour, to the ranks of all machines.
//
// One thread at a time uses it. Errors: InputError for what the user can mend (no plug-in), WorkerError for the rest.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/nccl/device.h"
#include "comm/nccl/table.h"
#include "comm/roster.h"

namespace trireme::comm {

/// Keys and values that all ranks see. Both calls throw Error when it cannot be reached.
class Board {
 public:
  virtual ~Board() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// At once; nothing when the key has not been set.
  virtual std::optional<std::string> get(const std::string& key) = 0;
};

/// Loads the plug-in, once in a process: from TRIREME_NCCL_PLUGIN, beside the program, or where it is installed.
const NcclTable& load_nccl();

/// The same for tensors that lie on GPUs or not; InputError where the plug-in moves the others.
const NcclTable& load_nccl_for(bool on_gpus);

class NcclWorld : public Roster {
 public:
  /// Collective: the ranks introduce themselves. `nccl` lives as long as the process.
  NcclWorld(const NcclTable& nccl, std::shared_ptr<Device> device, std::shared_ptr<Board> board, int64_t rank,
            int64_t size, std::chrono::milliseconds deadline);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  const NcclTable& nccl() const { return nccl_; }
  Device& device() const { return *device_; }
  const std::string& library() const { return library_; }
  std::string in_words(int code) const;
  /// WorkerError in the library's words, unless the code says that the call is done or in progress.
  void require(int code, std::string_view what) const;

  /// On the board; a board that is lost is a failure of the world, which these tell by throwing.
  void post(const std::string& key, const std::string& value);
  std::optional<std::string> read(const std::string& key);

  /// True when a rank, this one or another, has failed. Looks at the board at most every 100 ms unless `now`.
  bool look(bool now = false);
  const std::string& failure() const { return failure_; }
  /// A look found no board. A rank that has ended well may have taken it down, so only who waits in vain minds.
  bool board_is_lost() const { return board_is_lost_; }
  /// Tells every other rank; the first text stays. Returns whether this was it. Never throws.
  bool fail(const std::string& text) noexcept;

  /// How many groups of that name there were before.
  int64_t next_instance(const std::string& name) { return instances_[name]++; }

  /// Events and pinned memory are dear to make, so they are used again.
  void* take_event();
  void give_event(void* event) { events_.push_back(event); }
  struct Pinned {
    std::byte* data = nullptr;
    int64_t capacity = 0;
  };
  Pinned take_pinned(int64_t bytes);
  void give_pinned(Pinned memory);

 private:
  void introduce(std::chrono::milliseconds deadline);
  [[noreturn]] void lost_board(const std::string& why);

  const NcclTable& nccl_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Board> board_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
  std::string library_;

  bool failed_ = false;
  bool board_is_lost_ = false;
  std::string failure_;
  int64_t looked_ = 0;
  std::map<std::string, int64_t> instances_;
  std::vector<void*> events_;
  std::multimap<int64_t, std::byte*> pinned_;
};

}  // namespace trireme::comm
