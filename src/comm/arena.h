// The arena: one mapping that all ranks of a machine share.
//
// The first rank makes a memfd and hands it to the others over a Unix socket with an abstract address, so there is no
// name in a file system and nothing is left after a SIGKILL (a container's /dev/shm is small, and outlives its users).
// The size is a reservation, as large as the machine's memory: pages exist once they are touched.
//
// Allocation is a bump that never gives back. It needs no meeting of the ranks: the first to come writes what it asked
// for into a log in the arena, the others find it there and get the same offset, or an error that shows both calls.
//
// The arena also carries the poison: the first failure of any rank, which ends every wait of all.
//
// Errors: WorkerError for peers that do not come, InternalError for system calls, InputError when the arena is full.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "comm/process_state.h"

namespace trireme::comm {

struct ArenaHeader;
struct AllocationLog;

inline constexpr int64_t max_arena_ranks = 256;

using Clock = std::chrono::steady_clock;

class Arena {
 public:
  /// A new arena for `ranks` ranks. `reserve_bytes` = 0 reserves as much as the machine has memory.
  static std::shared_ptr<Arena> create(int64_t ranks, int64_t reserve_bytes = 0);
  /// Gets the arena that listens at `address`, trying until `deadline`.
  static std::shared_ptr<Arena> attach(const std::string& address, int64_t rank, Clock::time_point deadline);
  /// An arena that another process made, by its descriptor.
  static std::shared_ptr<Arena> adopt(FileDescriptor fd, int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// An address that nobody can guess, for listen().
  static std::string random_address();
  /// Opens the door; publish the address after it. The socket lives in the network namespace only.
  static FileDescriptor listen(const std::string& address);
  /// Hands the arena to ranks 1 .. ranks()-1. Only processes of this user are let in.
  void hand_out(const FileDescriptor& door, Clock::time_point deadline);

  /// Says who `rank` is, so that the others can watch it.
  void enroll(int64_t rank);
  struct Member {
    ProcessId process;
    std::string host;
  };
  /// Nothing when the rank has not enrolled yet.
  std::optional<Member> member(int64_t rank) const;

  int descriptor() const { return fd_.get(); }
  int64_t reserved_bytes() const { return bytes_; }
  int64_t ranks() const;
  int64_t used_bytes() const;
  std::byte* base() const { return base_; }
  /// Offset of `address`, or -1 when [address, address + bytes) is not in the arena.
  int64_t offset_of(const void* address, int64_t bytes) const;

  /// The block called `name`, found or made: zero at first. `who` is named when a peer asks for another size.
  std::byte* find_or_allocate(std::string_view name, int64_t bytes, int64_t who);
  /// Allocation number `index` of `log`: name and bytes must be those of the other ranks.
  std::byte* allocate(AllocationLog& log, int64_t index, std::string_view name, int64_t bytes, int64_t who);

  /// 0, 1, 2, ... for each call with the same name and rank: tells the second group of an axis from the first.
  int64_t next_instance(const std::string& name, int64_t rank);

  /// Marks the arena as failed; the first message stays. True for the first.
  bool poison(int64_t culprit, std::string_view message) noexcept;
  bool poisoned() const noexcept;
  /// Message of the first failure. Only when poisoned().
  std::string poison_message() const;

 private:
  Arena(FileDescriptor fd, int64_t bytes);
  uint64_t bump(int64_t bytes);

  FileDescriptor fd_;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  ArenaHeader* header_ = nullptr;
  std::mutex instances_mutex_;
  std::map<std::pair<std::string, int64_t>, int64_t> instances_;
};

}  // namespace trireme::comm
