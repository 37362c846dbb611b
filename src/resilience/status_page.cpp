#include "resilience/status_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "base/clock.h"
#include "base/file.h"

namespace trireme::resilience {
namespace {

constexpr uint64_t kMagic = 0x31656761'70737274;  // "trspage1"
constexpr size_t kMessageBytes = 8192, kNoteBytes = 512;

enum ErrorState : uint32_t { kNone, kWriting, kWritten };

struct Header {
  uint64_t magic;
  uint32_t workers;
  std::atomic<uint32_t> port;
};

/// Written by one worker, read by the launcher. Every field is an atomic of its own: a reader may see a new step with
/// an old phase, which a report can live with.
struct alignas(64) Slot {
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> phase;
  std::atomic<int64_t> last_step;
  std::atomic<int64_t> heartbeat_ns;
  std::atomic<uint32_t> error_state;
  std::atomic<int32_t> error_code;
  std::atomic<int64_t> error_time_ns;
  uint32_t message_bytes;
  char message[kMessageBytes];
  // The one that is written next is not the one that is read.
  std::atomic<uint32_t> note;
  char notes[2][kNoteBytes];
};

// Lock-free atomics are the only ones that work between processes.
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

constexpr size_t kSlotsOffset = 64;
static_assert(sizeof(Header) <= kSlotsOffset);

size_t page_bytes(size_t workers) { return kSlotsOffset + workers * sizeof(Slot); }

int environment_number(const char* name) {
  const char* text = std::getenv(name);
  int value = -1;
  if (text == nullptr) throw_internal("the launcher set {} but not {}", StatusPage::kEnvironmentVariable, name);
  const char* end = text + std::strlen(text);
  if (const auto [stop, error] = std::from_chars(text, end, value); error != std::errc{} || stop != end || value < 0) {
    throw_internal("{}={} is not a number of 0 or more", name, text);
  }
  return value;
}

}  // namespace

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::starting:
      return "starting";
    case Phase::loading:
      return "loading";
    case Phase::training:
      return "training";
    case Phase::evaluating:
      return "evaluating";
    case Phase::saving:
      return "saving a checkpoint";
    case Phase::done:
      return "ending";
  }
  return "in an unknown phase";
}

struct StatusPage::Mapping {
  FileDescriptor fd;
  void* base = nullptr;
  size_t bytes = 0;
  int own_slot = -1;  ///< -1 in the launcher

  ~Mapping() {
    if (base != nullptr) munmap(base, bytes);
  }
  Header& header() const { return *static_cast<Header*>(base); }
  Slot& slot(int local_rank) const {
    TRIREME_CHECK(local_rank >= 0 && local_rank < static_cast<int>(header().workers), "slot {} of {}", local_rank,
                  header().workers);
    return reinterpret_cast<Slot*>(static_cast<char*>(base) + kSlotsOffset)[local_rank];
  }
  Slot& own() const { return slot(own_slot); }
  void map(size_t size) {
    base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (base == MAP_FAILED) {
      base = nullptr;
      throw_internal("cannot map the status page ({} bytes): {}", size, std::strerror(errno));
    }
    bytes = size;
  }
};

StatusPage::StatusPage(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
StatusPage::StatusPage(StatusPage&&) noexcept = default;
StatusPage& StatusPage::operator=(StatusPage&&) noexcept = default;
StatusPage::~StatusPage() = default;

StatusPage StatusPage::create(int local_workers) {
  TRIREME_CHECK(local_workers > 0, "{} workers", local_workers);
  auto mapping = std::make_unique<Mapping>();
  mapping->fd.reset(memfd_create("trireme-status", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const size_t bytes = page_bytes(static_cast<size_t>(local_workers));
  if (!mapping->fd || ftruncate(mapping->fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw_internal("cannot make the status page ({} bytes): {}", bytes, std::strerror(errno));
  }
  // A size that nobody can change: a worker cannot be hit by SIGBUS through it.
  fcntl(mapping->fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  mapping->map(bytes);
  auto* header = new (mapping->base) Header{};
  header->workers = static_cast<uint32_t>(local_workers);
  for (int i = 0; i < local_workers; ++i) {
    auto* slot = new (&mapping->slot(i)) Slot{};
    slot->last_step = -1;
  }
  header->magic = kMagic;
  return StatusPage(std::move(mapping));
}

std::optional<StatusPage> StatusPage::from_environment() {
  if (std::getenv(kEnvironmentVariable) == nullptr) return std::nullopt;
  const int fd = environment_number(kEnvironmentVariable);
  const int slot = environment_number("LOCAL_RANK");
  struct stat status {};
  if (fstat(fd, &status) != 0 || status.st_size < static_cast<off_t>(page_bytes(1))) {
    throw_internal("{}={} is not the descriptor of a status page; was the variable kept from another run?",
                   kEnvironmentVariable, fd);
  }
  auto mapping = std::make_unique<Mapping>();
  mapping->fd.reset(fd);
  mapping->map(static_cast<size_t>(status.st_size));
  const Header& header = mapping->header();
  if (header.magic != kMagic || mapping->bytes < page_bytes(header.workers)) {
    throw_internal("descriptor {} is not a status page of this version of Trireme", fd);
  }
  if (slot >= static_cast<int>(header.workers)) {
    throw_internal("LOCAL_RANK={} on a status page of {} workers", slot, header.workers);
  }
  // What the worker starts in turn must not write into its slot.
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  unsetenv(kEnvironmentVariable);
  mapping->own_slot = slot;
  StatusPage page(std::move(mapping));
  page.mapping_->own().pid = getpid();
  page.heartbeat();
  return page;
}

StatusPage StatusPage::duplicate() const {
  auto mapping = std::make_unique<Mapping>();
  mapping->fd.reset(fcntl(mapping_->fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!mapping->fd) throw_internal("cannot duplicate the status page's descriptor: {}", std::strerror(errno));
  mapping->map(mapping_->bytes);
  mapping->own_slot = mapping_->own_slot;
  return StatusPage(std::move(mapping));
}

void StatusPage::set_step(int64_t step) {
  mapping_->own().last_step.store(step, std::memory_order_release);
  heartbeat();
}

void StatusPage::set_phase(Phase phase) {
  mapping_->own().phase.store(static_cast<uint32_t>(phase), std::memory_order_release);
  heartbeat();
}

void StatusPage::set_memory(std::string_view text) {
  Slot& slot = mapping_->own();
  const uint32_t next = 1 - slot.note.load(std::memory_order_relaxed);
  const size_t bytes = std::min(text.size(), kNoteBytes - 1);
  std::memcpy(slot.notes[next], text.data(), bytes);
  slot.notes[next][bytes] = '\0';
  slot.note.store(next, std::memory_order_release);
}

void StatusPage::heartbeat() { mapping_->own().heartbeat_ns.store(steady_nanoseconds(), std::memory_order_release); }

bool StatusPage::report_error(ExitCode code, std::string_view message) {
  Slot& slot = mapping_->own();
  uint32_t expected = kNone;
  if (!slot.error_state.compare_exchange_strong(expected, kWriting)) return false;
  const size_t bytes = std::min(message.size(), kMessageBytes);
  std::memcpy(slot.message, message.data(), bytes);
  slot.message_bytes = static_cast<uint32_t>(bytes);
  slot.error_code = static_cast<int32_t>(code);
  slot.error_time_ns = steady_nanoseconds();
  slot.error_state.store(kWritten, std::memory_order_release);
  heartbeat();
  return true;
}

void StatusPage::publish_port(uint16_t port) { mapping_->header().port.store(port, std::memory_order_release); }

uint16_t StatusPage::await_port(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (const uint32_t port = mapping_->header().port.load(std::memory_order_acquire); port != 0) {
      return static_cast<uint16_t>(port);
    }
    if (has_error(0)) throw WorkerError("rank 0 failed before it opened the store: " + read(0).error);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw WorkerError(fmt::format("rank 0 (pid {}) did not open the store within {} s; it is {}", read(0).pid,
                                    static_cast<double>(timeout.count()) / 1000, to_string(read(0).phase)));
    }
    // Start-up only, and rank 0 needs the core more: a coarse poll is enough.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

WorkerStatus StatusPage::read(int local_rank) const {
  const Slot& slot = mapping_->slot(local_rank);
  WorkerStatus status;
  status.pid = slot.pid;
  status.last_step = slot.last_step.load(std::memory_order_acquire);
  status.phase = static_cast<Phase>(slot.phase.load(std::memory_order_acquire));
  if (const int64_t beat = slot.heartbeat_ns.load(std::memory_order_acquire); beat != 0) {
    status.silent_for = std::chrono::nanoseconds(std::max<int64_t>(0, steady_nanoseconds() - beat));
  }
  const char* note = slot.notes[slot.note.load(std::memory_order_acquire) & 1];
  status.memory.assign(note, strnlen(note, kNoteBytes));
  status.has_error = has_error(local_rank);
  if (status.has_error) {
    status.error_code = static_cast<ExitCode>(slot.error_code.load());
    status.error.assign(slot.message, std::min<size_t>(slot.message_bytes, kMessageBytes));
    status.error_time = std::chrono::nanoseconds(slot.error_time_ns.load());
  }
  return status;
}

bool StatusPage::has_error(int local_rank) const {
  return mapping_->slot(local_rank).error_state.load(std::memory_order_acquire) == kWritten;
}

int StatusPage::fd() const { return mapping_->fd.get(); }

}  // namespace trireme::resilience
