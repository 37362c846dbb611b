#include "comm/mpi/mpi_world.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/host.h"
#include "base/log.h"
#include "comm/plugin_place.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int tag_failure = 1;
constexpr int tag_waiting = 2;
constexpr int tag_call = 3;
constexpr int tag_meeting = 4;
// What every MPI library takes along without the receiver's help.
constexpr size_t most_bytes = 3500;

struct Place {
  uint64_t group = 0;
  uint64_t sequence = 0;
};

const MpiTable& load() {
  static const MpiTable* loaded = nullptr;
  if (loaded != nullptr) return *loaded;
  const PluginPlace place = find_plugin("TRIREME_MPI_PLUGIN", mpi_plugin_file);
  if (!place.exists) {
    throw_input(
        "comm.backend = mpi needs the plug-in {}, which is not at {}: it is built where CMake finds MPI. Install the "
        "Debian packages libopenmpi-dev and openmpi-bin (or libmpich-dev and mpich) and build again (make build); on "
        "one machine comm.backend = shm needs nothing",
        mpi_plugin_file, place.path.string());
  }
  // Open MPI loads parts of its own, which look for its symbols among those of the whole process.
  void* library = ::dlopen(place.path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw_input(
        "comm.backend = mpi: the plug-in {} cannot be loaded: {}. Where the MPI library has moved, build again (make "
        "build)",
        place.path.string(), ::dlerror());
  }
  const auto table = reinterpret_cast<const MpiTable* (*)()>(::dlsym(library, mpi_table_symbol));
  if (table == nullptr || table()->version != MpiTable::current_version) {
    throw_input("comm.backend = mpi: {} is not the plug-in of this build of Trireme: build again (make build)",
                place.path.string());
  }
  loaded = table();
  return *loaded;
}

std::string_view bytes_of(const Place& place) { return {reinterpret_cast<const char*>(&place), sizeof place}; }

}  // namespace

std::shared_ptr<MpiWorld> MpiWorld::open(int64_t rank, int64_t size, milliseconds deadline) {
  const MpiTable& mpi = load();
  static bool used = false;
  TRIREME_CHECK(!std::exchange(used, true), "MPI starts once in a process");
  int mpi_rank = 0;
  int mpi_size = 1;
  int threads_at_once = 0;
  if (mpi.initialize(&mpi_rank, &mpi_size, &threads_at_once) != 0)
    throw WorkerError(fmt::format("rank {} on {}: MPI_Init_thread failed", rank, host_name()));
  if (mpi_rank != rank || mpi_size != size) {
    const std::string text = fmt::format(
        "comm.backend = mpi: the variables of the launcher say rank {} of {}, MPI says rank {} of {}; start the "
        "workers with the mpirun of the MPI library that the plug-in was built with (`mpirun -n {} trireme train "
        "run.toml`), or under Slurm with an srun that knows it",
        rank, size, mpi_rank, mpi_size, size);
    if (mpi_size == 1) mpi.finalize();  // nobody else is there to wait for
    throw InputError(text);
  }
  std::shared_ptr<MpiWorld> world(new MpiWorld(mpi, rank, size));
  world->introduce(deadline);
  return world;
}

MpiWorld::MpiWorld(const MpiTable& mpi, int64_t rank, int64_t size)
    : Roster(rank), mpi_(mpi), rank_(rank), size_(size) {
  std::array<char, 256> text{};
  require(mpi_.library(text.data(), static_cast<int>(text.size())), "MPI_Get_library_version");
  library_ = text.data();
  require(mpi_.duplicate_world(&control_), "MPI_Comm_dup");
}

MpiWorld::~MpiWorld() {
  if (failed_ || std::uncaught_exceptions() != 0) return;
  flush();
  mpi_.finalize();
}

void MpiWorld::require(int code, std::string_view what) const {
  if (code != 0)
    throw WorkerError(fmt::format("rank {} on {}: {} failed: {}", rank_, host_name(), what, in_words(code)));
}

std::string MpiWorld::in_words(int code) const {
  std::array<char, 512> text{};
  mpi_.error_text(code, text.data(), static_cast<int>(text.size()));
  return text.data();
}

// Who runs where, so that a rank that is late can be told from one that is dead.
void MpiWorld::introduce(milliseconds deadline) {
  const auto n = static_cast<size_t>(size_);
  std::vector<Introduction> all(n);
  const Introduction& mine = all[static_cast<size_t>(rank_)] = introduce_this_process();
  std::vector<int> counts(n, static_cast<int>(sizeof mine)), starts(n);
  for (size_t r = 0; r < n; ++r) starts[r] = static_cast<int>(r * sizeof mine);
  MpiRequest request;
  require(mpi_.all_gather(all.data(), counts.data(), starts.data(), 1, &control_, &request), "MPI_Iallgatherv");
  const auto end = Clock::now() + deadline;
  for (int done = 0; done == 0;) {
    require(mpi_.test(&request, &done), "MPI_Test");
    if (done == 0 && Clock::now() > end) {
      throw WorkerError(
          fmt::format("rank {} on {}: the {} ranks did not meet within {:.0f} s, although MPI has started", rank_,
                      host_name(), size_, std::chrono::duration<double>(deadline).count()));
    }
    if (done == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  for (const Introduction& other : all) add(other);
}

void MpiWorld::post(int64_t to, int tag, std::string_view bytes) {
  Sent& message = sent_.emplace_back();
  message.bytes = bytes;
  require(mpi_.send(message.bytes.data(), static_cast<int>(message.bytes.size()), 1, static_cast<int>(to), tag,
                    &control_, &message.request),
          "MPI_Isend");
}

void MpiWorld::flush() {
  for (auto message = sent_.begin(); message != sent_.end();) {
    int done = 0;
    if (mpi_.test(&message->request, &done) != 0) done = 1;
    message = done != 0 ? sent_.erase(message) : std::next(message);
  }
}

template <typename Use>
void MpiWorld::drain(int tag, const Use& use) {
  for (;;) {
    int found = 0, from = 0, bytes = 0;
    require(mpi_.probe(tag, &control_, &found, &from, &bytes), "MPI_Iprobe");
    if (found == 0) return;
    std::string text(static_cast<size_t>(bytes), '\0');
    require(mpi_.take(text.data(), bytes, from, tag, &control_), "MPI_Recv");
    use(int64_t{from}, std::move(text));
  }
}

bool MpiWorld::look() {
  if (failed_) return true;
  if (!sent_.empty()) flush();
  const auto place_of = [](const std::string& text) {
    Place place;
    std::memcpy(&place, text.data(), std::min(text.size(), sizeof place));
    return place;
  };
  drain(tag_waiting, [&](int64_t from, const std::string& text) {
    const Place place = place_of(text);
    uint64_t& latest = waiting_[place.group][from];
    latest = std::max(latest, place.sequence);
  });
  drain(tag_call, [&](int64_t from, const std::string& text) {
    const Place place = place_of(text);
    calls_[{place.group, place.sequence}][from] = text.substr(std::min(text.size(), sizeof place));
  });
  drain(tag_meeting, [&](int64_t from, const std::string& text) { ++met_[place_of(text).group][from]; });
  drain(tag_failure, [&](int64_t, const std::string& text) {
    if (std::exchange(failed_, true)) return;
    failure_ = text;
  });
  return failed_;
}

bool MpiWorld::fail(const std::string& text) noexcept {
  if (std::exchange(failed_, true)) return false;
  try {
    failure_ = text;
    const std::string_view told = std::string_view(text).substr(0, most_bytes);
    for (int64_t r = 0; r < size_; ++r) {
      if (r != rank_) post(r, tag_failure, told);
    }
    // The process may end right after this, and nobody else moves its messages.
    const auto end = Clock::now() + milliseconds(200);
    for (flush(); !sent_.empty() && Clock::now() < end; flush()) std::this_thread::sleep_for(milliseconds(1));
  } catch (const std::exception& error) {
    log::warning("the other ranks could not be told of the failure: {}", error.what());
  }
  return true;
}

void MpiWorld::tell_waiting(uint64_t group, uint64_t sequence, const std::vector<int64_t>& members) {
  const Place place{group, sequence};
  for (const int64_t r : members) {
    if (r != rank_) post(r, tag_waiting, bytes_of(place));
  }
}

bool MpiWorld::waits(uint64_t group, uint64_t sequence, int64_t rank) const {
  const auto ranks = waiting_.find(group);
  if (ranks == waiting_.end()) return false;
  const auto found = ranks->second.find(rank);
  return found != ranks->second.end() && found->second >= sequence;
}

void MpiWorld::tell_call(uint64_t group, uint64_t sequence, std::string_view text,
                         const std::vector<int64_t>& members) {
  std::string bytes(bytes_of({group, sequence}));
  bytes += text.substr(0, most_bytes);
  for (const int64_t r : members) {
    if (r != rank_) post(r, tag_call, bytes);
  }
}

const std::string* MpiWorld::call_of(uint64_t group, uint64_t sequence, int64_t rank) const {
  const auto ranks = calls_.find({group, sequence});
  if (ranks == calls_.end()) return nullptr;
  const auto found = ranks->second.find(rank);
  return found == ranks->second.end() ? nullptr : &found->second;
}

void MpiWorld::meet(uint64_t group, const std::vector<int64_t>& members, std::string_view axis, milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  const int64_t first = members.front();
  const Place place{group, 0};
  if (rank_ != first) post(first, tag_meeting, bytes_of(place));
  std::vector<int64_t> missing;
  for (;;) {
    const bool failed = look();
    missing.clear();
    for (const int64_t r : members) {
      const bool awaited = rank_ == first ? r != first : r == first;
      if (awaited && met_[group][r] == 0) missing.push_back(r);
    }
    if (missing.empty()) break;
    const std::string what = fmt::format("rank {} on {}: making the group of axis {}", rank_, host_name(), axis);
    if (failed) throw WorkerError(fmt::format("{} cannot complete, because another rank failed: {}", what, failure_));
    const int64_t dead = first_dead();
    if (dead >= 0 || Clock::now() > end) {
      std::string who;
      for (const int64_t r : missing) who += (who.empty() ? "" : ", ") + whereabouts(r);
      const std::string text = dead >= 0
                                   ? fmt::format("{} failed: {} died", what, whereabouts(dead))
                                   : fmt::format("{} failed: its deadline of {:.1f} s is over. Did not arrive: {}",
                                                 what, std::chrono::duration<double>(deadline).count(), who);
      fail(text);
      throw WorkerError(text);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  for (const int64_t r : members) {
    if (r == rank_) continue;
    if (rank_ == first) post(r, tag_meeting, bytes_of(place));
    if (rank_ == first || r == first) --met_[group][r];
  }
}

}  // namespace trireme::comm
