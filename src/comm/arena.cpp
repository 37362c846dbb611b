#include "comm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/host.h"
#include "comm/allocation_log.h"
#include "comm/local_socket.h"

namespace trireme::comm {

using std::chrono::milliseconds;

struct ArenaHeader {
  static constexpr uint64_t expected_magic = 0x3130656d65726954;  // "Trireme01"; changes with the layout

  uint64_t magic;
  uint64_t header_bytes;
  int64_t ranks;
  alignas(64) std::atomic<uint64_t> next;  // first free byte

  struct Poison {
    std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 ready
    int64_t culprit;
    char message[8192];
  };
  alignas(64) Poison poison;

  struct Member {
    std::atomic<uint32_t> ready;
    ProcessId process;
    char host[72];
  };
  Member members[max_arena_ranks];
  AllocationLog blocks;
};

namespace {

constexpr uint64_t huge_page = 2 << 20;
constexpr uint64_t page = 4096;  // the strictest alignment of what lies in the arena (control.h)
constexpr uint64_t line = 128;   // adjacent lines are fetched in pairs
constexpr uint64_t arena_full = ~uint64_t{0};

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

void copy_text(char* to, size_t capacity, std::string_view from) {
  const size_t length = std::min(from.size(), capacity - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

struct Hello {
  uint64_t magic = ArenaHeader::expected_magic;
  int64_t rank = 0;
};

}  // namespace

Arena::Arena(FileDescriptor fd, int64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {
  // NORESERVE: the size is address space, and the kernel must not count it as memory that will be used.
  void* at =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (at == MAP_FAILED)
    throw_errno("map", fmt::format("an arena of {} bytes (is there a limit: ulimit -v?)", bytes), errno);
  ::madvise(at, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish: the kernel may have it off for shared memory
  base_ = static_cast<std::byte*>(at);
  header_ = reinterpret_cast<ArenaHeader*>(base_);
}

Arena::~Arena() {
  if (base_ != nullptr) ::munmap(base_, static_cast<size_t>(bytes_));
}

std::shared_ptr<Arena> Arena::create(int64_t ranks, int64_t reserve_bytes) {
  if (ranks < 1 || ranks > max_arena_ranks) {
    throw_input("comm.backend = shm serves 1 to {} ranks on a machine; this run has {}", max_arena_ranks, ranks);
  }
  if (reserve_bytes == 0) reserve_bytes = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  reserve_bytes =
      static_cast<int64_t>(round_up(static_cast<uint64_t>(std::max<int64_t>(reserve_bytes, 1 << 30)), huge_page));
  FileDescriptor fd(::memfd_create("trireme-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("make", "the shared arena (memfd)", errno);
  if (::ftruncate(fd.get(), reserve_bytes) != 0) {
    throw_errno("reserve", fmt::format("{} bytes for the shared arena (is there a limit: ulimit -f?)", reserve_bytes),
                errno);
  }
  // Nobody can cut it short under the others, which would be a SIGBUS.
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  auto arena = std::shared_ptr<Arena>(new Arena(std::move(fd), reserve_bytes));
  arena->header_->magic = ArenaHeader::expected_magic;
  arena->header_->header_bytes = sizeof(ArenaHeader);
  arena->header_->ranks = ranks;
  arena->header_->next = round_up(sizeof(ArenaHeader), huge_page);
  return arena;
}

std::string Arena::random_address() {
  uint64_t bits[2] = {};
  if (::getrandom(bits, sizeof bits, 0) != sizeof bits) throw_errno("read", "random bytes", errno);
  return fmt::format("trireme-{:016x}{:016x}", bits[0], bits[1]);
}

FileDescriptor Arena::listen(const std::string& address) {
  FileDescriptor door = listen_at(address);
  if (!door) throw_errno("listen at", fmt::format("the abstract socket {}", address), errno);
  return door;
}

void Arena::hand_out(const FileDescriptor& door, Clock::time_point deadline) {
  const auto start = Clock::now();
  std::vector<bool> came(static_cast<size_t>(ranks()), false);
  came[0] = true;
  while (std::count(came.begin(), came.end(), false) != 0) {
    if (!readable(door.get(), deadline)) {
      std::string missing;
      for (size_t r = 0; r < came.size(); ++r) {
        if (!came[r]) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
      }
      throw WorkerError(fmt::format("rank 0 on {}: ranks that did not come for the shared arena in {:.1f} s: {}",
                                    host_name(), std::chrono::duration<double>(Clock::now() - start).count(), missing));
    }
    const FileDescriptor peer = accept_same_user(door);
    if (!peer) continue;
    Hello hello{0, -1};
    // A stranger that connects and says nothing may not hold up the others for long.
    if (!readable(peer.get(), std::min(deadline, Clock::now() + std::chrono::seconds(5)))) continue;
    if (::recv(peer.get(), &hello, sizeof hello, 0) != static_cast<ssize_t>(sizeof hello)) continue;
    if (hello.magic != ArenaHeader::expected_magic || hello.rank < 1 || hello.rank >= ranks()) continue;
    if (!send_descriptor(peer.get(), fd_.get(), &bytes_, sizeof bytes_))
      throw_errno("hand the arena to", "a local rank", errno);
    came[static_cast<size_t>(hello.rank)] = true;
  }
}

std::shared_ptr<Arena> Arena::adopt(FileDescriptor fd, int64_t bytes) {
  auto arena = std::shared_ptr<Arena>(new Arena(std::move(fd), bytes));
  const ArenaHeader& header = *arena->header_;
  if (header.magic != ArenaHeader::expected_magic || header.header_bytes != sizeof(ArenaHeader)) {
    throw InputError("the ranks run different builds of trireme: their shared memory is laid out differently");
  }
  return arena;
}

std::shared_ptr<Arena> Arena::attach(const std::string& address, int64_t rank, Clock::time_point deadline) {
  const auto start = Clock::now();
  for (;;) {
    const FileDescriptor socket = connect_to(address);
    if (socket) {
      Hello hello;
      hello.rank = rank;
      int64_t bytes = 0;
      FileDescriptor fd;
      if (::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello) &&
          readable(socket.get(), deadline)) {
        fd = receive_descriptor(socket.get(), &bytes, sizeof bytes);
      }
      if (fd) return adopt(std::move(fd), bytes);
    }
    if (Clock::now() >= deadline) {
      throw WorkerError(fmt::format(
          "rank {} on {}: rank 0 did not hand over the shared arena in {:.1f} s; all ranks of a machine must "
          "share one network namespace (the same container)",
          rank, host_name(), std::chrono::duration<double>(Clock::now() - start).count()));
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
}

void Arena::enroll(int64_t rank) {
  TRIREME_CHECK(rank >= 0 && rank < ranks(), "rank {} of {}", rank, ranks());
  ArenaHeader::Member& member = header_->members[rank];
  if (member.ready.load(std::memory_order_acquire) != 0) return;  // a second group of the same process
  member.process = this_process();
  copy_text(member.host, sizeof member.host, host_name());
  member.ready.store(1, std::memory_order_release);
}

std::optional<Arena::Member> Arena::member(int64_t rank) const {
  const ArenaHeader::Member& member = header_->members[rank];
  if (member.ready.load(std::memory_order_acquire) == 0) return std::nullopt;
  return Member{member.process, member.host};
}

int64_t Arena::ranks() const { return header_->ranks; }
int64_t Arena::used_bytes() const { return static_cast<int64_t>(header_->next.load(std::memory_order_relaxed)); }

int64_t Arena::offset_of(const void* address, int64_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(base_);
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at < begin || at + static_cast<uint64_t>(bytes) > begin + static_cast<uint64_t>(bytes_)) return -1;
  return static_cast<int64_t>(at - begin);
}

uint64_t Arena::bump(int64_t bytes) {
  const auto size = static_cast<uint64_t>(bytes);
  const uint64_t alignment = size >= huge_page ? huge_page : size >= page ? page : line;
  uint64_t old = header_->next.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t start = round_up(old, alignment);
    const uint64_t end = start + round_up(static_cast<uint64_t>(bytes), line);
    if (end > static_cast<uint64_t>(bytes_)) return arena_full;
    if (header_->next.compare_exchange_weak(old, end, std::memory_order_relaxed)) return start;
  }
}

namespace {

// True for the rank that must fill in the entry; the others return once it is ready.
bool claim(AllocationLog::Entry& entry) {
  uint32_t state = entry.state.load(std::memory_order_acquire);
  if (state == 0 && entry.state.compare_exchange_strong(state, 1, std::memory_order_acquire)) return true;
  // The writer needs a microsecond; that it is killed in there is the one case in which this ends by the deadline.
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (entry.state.load(std::memory_order_acquire) != 2) {
    if (Clock::now() > deadline) throw WorkerError("a rank died while it allocated shared memory");
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

std::byte* Arena::find_or_allocate(std::string_view name, int64_t bytes, int64_t who) {
  for (uint64_t probe = 0, at = hash64(name); probe < AllocationLog::capacity; ++probe, ++at) {
    AllocationLog& log = header_->blocks;
    const auto index = static_cast<int64_t>(at % AllocationLog::capacity);
    AllocationLog::Entry& entry = log.entries[index];
    if (entry.state.load(std::memory_order_acquire) != 0) {
      claim(entry);  // waits until it can be read
      if (name.substr(0, sizeof entry.name - 1) != entry.name) continue;
    } else if (claim(entry)) {
      entry.first_rank = static_cast<int32_t>(who);
      entry.bytes = bytes;
      entry.offset = bump(bytes);
      copy_text(entry.name, sizeof entry.name, name);
      entry.state.store(2, std::memory_order_release);
    } else if (name.substr(0, sizeof entry.name - 1) != entry.name) {
      continue;  // another name was faster at this place
    }
    return allocate(log, index, name, bytes, who);
  }
  throw_internal("the arena holds {} named blocks, its limit", AllocationLog::capacity);
}

std::byte* Arena::allocate(AllocationLog& log, int64_t index, std::string_view name, int64_t bytes, int64_t who) {
  TRIREME_CHECK(bytes >= 0, "{} bytes", bytes);
  if (index >= AllocationLog::capacity) {
    throw_internal("more than {} shared allocations: allocate one buffer and cut it", AllocationLog::capacity);
  }
  AllocationLog::Entry& entry = log.entries[index];
  if (claim(entry)) {
    entry.first_rank = static_cast<int32_t>(who);
    entry.bytes = bytes;
    entry.offset = bump(bytes);
    copy_text(entry.name, sizeof entry.name, name);
    entry.state.store(2, std::memory_order_release);
  }
  if (entry.bytes != bytes || name.substr(0, sizeof entry.name - 1) != entry.name) {
    const std::string text = fmt::format(
        "shared allocation {} differs: rank {} asks for \"{}\", {} bytes; rank {} asked for \"{}\", {} bytes", index,
        who, name, bytes, entry.first_rank, entry.name, entry.bytes);
    poison(who, text);
    throw WorkerError(text);
  }
  if (entry.offset == arena_full) {
    throw_input("the shared arena is full: \"{}\" needs {} bytes, {} of {} are in use", name, bytes, used_bytes(),
                bytes_);
  }
  return base_ + entry.offset;
}

int64_t Arena::next_instance(const std::string& name, int64_t rank) {
  const std::lock_guard lock(instances_mutex_);
  return instances_[{name, rank}]++;
}

bool Arena::poison(int64_t culprit, std::string_view message) noexcept {
  ArenaHeader::Poison& poison = header_->poison;
  uint32_t none = 0;
  if (!poison.state.compare_exchange_strong(none, 1)) return false;
  poison.culprit = culprit;
  copy_text(poison.message, sizeof poison.message, message);
  poison.state.store(2);
  return true;
}

bool Arena::poisoned() const noexcept { return header_->poison.state.load(std::memory_order_acquire) == 2; }
std::string Arena::poison_message() const { return header_->poison.message; }

}  // namespace trireme::comm
