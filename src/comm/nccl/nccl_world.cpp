#include "comm/nccl/nccl_world.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int64_t look_nanoseconds = 100'000'000;
constexpr const char* failure_key = "failure";

// Of a rank, on the board.
struct Introduction {
  ProcessId process;
  uint64_t machine = 0;
  char host[96] = {};
};

// Beside the program, above its tests, or where it is installed.
std::vector<std::filesystem::path> candidates() {
  if (const char* given = std::getenv("TRIREME_NCCL_PLUGIN"); given != nullptr && *given != '\0') return {given};
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  return {folder / nccl_plugin_file, folder.parent_path() / nccl_plugin_file,
          folder.parent_path() / "lib" / "trireme" / nccl_plugin_file};
}

}  // namespace

const NcclTable& load_nccl() {
  static const NcclTable* loaded = nullptr;
  if (loaded != nullptr) return *loaded;
  const auto places = candidates();
  const auto found = std::find_if(places.begin(), places.end(), [](const auto& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  });
  if (found == places.end()) {
    throw_input(
        "comm.backend = nccl needs the plug-in {}, which is not at {}: tools/build-nccl.sh builds it, and it works "
        "with "
        "a program that was built with a CUDA build of torch; without a GPU comm.backend = shm works on one machine, "
        "mpi on several",
        nccl_plugin_file, places.front().string());
  }
  void* library = ::dlopen(found->c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw_input(
        "comm.backend = nccl: the plug-in {} cannot be loaded: {}. Where NCCL or the CUDA runtime has moved, build it "
        "again (tools/build-nccl.sh)",
        found->string(), ::dlerror());
  }
  const auto table = reinterpret_cast<const NcclTable* (*)()>(::dlsym(library, nccl_table_symbol));
  if (table == nullptr || table()->version != NcclTable::current_version) {
    throw_input(
        "comm.backend = nccl: {} is not the plug-in of this build of Trireme: build it again (tools/build-nccl.sh)",
        found->string());
  }
  loaded = table();
  return *loaded;
}

const NcclTable& load_nccl_for(bool on_gpus) {
  const NcclTable& nccl = load_nccl();
  if (nccl.host_memory != 0 && on_gpus)
    throw_input("comm.backend = nccl: this plug-in stands in for NCCL in host memory; run.device = cpu goes with it");
  if (nccl.host_memory == 0 && !on_gpus) {
    throw_input(
        "comm.backend = nccl moves tensors between GPUs, and run.device = cpu; run.device = cuda goes with it, and on "
        "the "
        "CPU comm.backend = shm works on one machine, mpi on several");
  }
  return nccl;
}

NcclWorld::NcclWorld(const NcclTable& nccl, std::shared_ptr<Device> device, std::shared_ptr<Board> board, int64_t rank,
                     int64_t size, milliseconds deadline)
    : nccl_(nccl), device_(std::move(device)), board_(std::move(board)), rank_(rank), size_(size) {
  std::array<char, 256> text{};
  require(nccl_.library(text.data(), static_cast<int>(text.size())), "its version");
  library_ = text.data();
  introduce(deadline);
}

NcclWorld::~NcclWorld() {
  // A device that has failed may answer no more, and the process ends anyway.
  if (failed_) return;
  for (void* event : events_) nccl_.free_event(event);
  for (const auto& [capacity, memory] : pinned_) nccl_.free_pinned(memory);
}

std::string NcclWorld::in_words(int code) const {
  std::array<char, 512> text{};
  nccl_.error_text(code, text.data(), static_cast<int>(text.size()));
  return text.data();
}

void NcclWorld::require(int code, std::string_view what) const {
  if (code != nccl_done && code != nccl_in_progress)
    throw WorkerError(fmt::format("rank {} on {}: {} failed: {}", rank_, host_name(), what, in_words(code)));
}

// Who runs where, so that a rank that is late can be told from one that is dead.
void NcclWorld::introduce(milliseconds deadline) {
  Introduction mine;
  mine.process = this_process();
  mine.machine = this_machine();
  std::strncpy(mine.host, host_name().c_str(), sizeof mine.host - 1);
  post(fmt::format("who/{}", rank_), std::string(reinterpret_cast<const char*>(&mine), sizeof mine));
  const auto end = Clock::now() + deadline;
  for (int64_t r = 0; r < size_; ++r) {
    std::optional<std::string> bytes;
    while (!(bytes = read(fmt::format("who/{}", r)))) {
      if (Clock::now() > end)
        throw WorkerError(fmt::format("rank {} on {}: rank {} did not come within {:.0f} s", rank_, host_name(), r,
                                      std::chrono::duration<double>(deadline).count()));
      std::this_thread::sleep_for(milliseconds(2));
    }
    TRIREME_CHECK(bytes->size() == sizeof(Introduction), "{} bytes", bytes->size());
    Introduction theirs;
    std::memcpy(&theirs, bytes->data(), sizeof theirs);
    hosts_.emplace_back(theirs.host);
    machines_.push_back(theirs.machine);
    processes_.push_back(theirs.process);
  }
}

void NcclWorld::lost_board(const std::string& why) {
  const int64_t dead = first_dead();
  const std::string text =
      fmt::format("rank {} on {}: the store at which the ranks met was lost: {}", rank_, host_name(),
                  dead >= 0 ? fmt::format("{} died", whereabouts(dead))
                            : fmt::format("rank 0, which serves it, died or cannot be reached ({})", why));
  if (!std::exchange(failed_, true)) failure_ = text;
  throw WorkerError(failure_);
}

void NcclWorld::post(const std::string& key, const std::string& value) {
  try {
    board_->set(key, value);
  } catch (const std::exception& error) {
    lost_board(error.what());
  }
}

std::optional<std::string> NcclWorld::read(const std::string& key) {
  try {
    return board_->get(key);
  } catch (const std::exception& error) {
    lost_board(error.what());
  }
}

bool NcclWorld::look(bool now) {
  if (failed_) return true;
  const int64_t time = steady_nanoseconds();
  if (!now && time - looked_ < look_nanoseconds) return false;
  looked_ = time;
  try {
    if (const auto text = board_->get(failure_key)) {
      failed_ = true;
      failure_ = *text;
    }
  } catch (const std::exception&) {
    board_is_lost_ = true;
  }
  return failed_;
}

bool NcclWorld::fail(const std::string& text) noexcept {
  if (std::exchange(failed_, true)) return false;
  try {
    failure_ = text;
    if (!board_->get(failure_key)) board_->set(failure_key, text);
  } catch (const std::exception& error) {
    log::warning("the other ranks could not be told of the failure: {}", error.what());
  }
  return true;
}

ProcessState NcclWorld::state_of_rank(int64_t rank) const {
  const auto index = static_cast<size_t>(rank);
  if (index >= machines_.size() || machines_[index] != machines_[own()]) return ProcessState::unknown;
  return state_of(processes_[index]);
}

std::string NcclWorld::whereabouts(int64_t rank) const {
  return fmt::format("rank {} (pid {} on {})", rank, processes_[static_cast<size_t>(rank)].pid, host(rank));
}

int64_t NcclWorld::first_dead() const {
  for (int64_t r = 0; r < static_cast<int64_t>(machines_.size()); ++r) {
    if (r != rank_ && state_of_rank(r) == ProcessState::dead) return r;
  }
  return -1;
}

void* NcclWorld::take_event() {
  if (!events_.empty()) {
    void* event = events_.back();
    events_.pop_back();
    return event;
  }
  void* made = nullptr;
  require(nccl_.make_event(&made), "making an event");
  return made;
}

NcclWorld::Pinned NcclWorld::take_pinned(int64_t bytes) {
  const auto capacity = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(bytes, 256))));
  if (const auto found = pinned_.find(capacity); found != pinned_.end()) {
    std::byte* data = found->second;
    pinned_.erase(found);
    return {data, capacity};
  }
  void* made = nullptr;
  require(nccl_.make_pinned(&made, capacity), fmt::format("pinning {} bytes", capacity));
  return {static_cast<std::byte*>(made), capacity};
}

void NcclWorld::give_pinned(Pinned memory) { pinned_.emplace(memory.capacity, memory.data); }

}  // namespace trireme::comm
