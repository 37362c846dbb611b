#include "comm/nccl/nccl_world.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/host.h"
#include "base/log.h"
#include "comm/plugin_place.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int64_t look_nanoseconds = 100'000'000;
constexpr const char* failure_key = "failure";

}  // namespace

const NcclTable& load_nccl() {
  static const NcclTable* loaded = nullptr;
  if (loaded != nullptr) return *loaded;
  const PluginPlace place = find_plugin("TRIREME_NCCL_PLUGIN", nccl_plugin_file);
  if (!place.exists) {
    throw_input(
        "comm.backend = nccl needs the plug-in {}, which is not at {}: tools/build-nccl.sh builds it, and it works "
        "with "
        "a program that was built with a CUDA build of torch; without a GPU comm.backend = shm works on one machine, "
        "mpi on several",
        nccl_plugin_file, place.path.string());
  }
  void* library = ::dlopen(place.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw_input(
        "comm.backend = nccl: the plug-in {} cannot be loaded: {}. Where NCCL or the CUDA runtime has moved, build it "
        "again (tools/build-nccl.sh)",
        place.path.string(), ::dlerror());
  }
  const auto table = reinterpret_cast<const NcclTable* (*)()>(::dlsym(library, nccl_table_symbol));
  if (table == nullptr || table()->version != NcclTable::current_version) {
    throw_input(
        "comm.backend = nccl: {} is not the plug-in of this build of Trireme: build it again (tools/build-nccl.sh)",
        place.path.string());
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
    : Roster(rank), nccl_(nccl), device_(std::move(device)), board_(std::move(board)), rank_(rank), size_(size) {
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
  const Introduction mine = introduce_this_process();
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
    add(theirs);
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
