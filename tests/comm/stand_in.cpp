// A stand-in for NCCL and CUDA without a GPU: a plug-in whose device memory is the host's, and whose streams are
// threads. Ranks are processes of this machine, or threads of one.
//
// It behaves as NCCL's documentation says where that can go wrong for a caller:
//  - a communicator is not ready when it has been made, and after each call it is in progress for a few looks at its
//    state; only then is the work on its stream. An event that is recorded before that says nothing about the call.
//  - what is on a stream runs when all ranks have come to it, and otherwise never ends, until the communicator is
//    aborted. Then the stream goes on and the memory holds anything.
//  - a send is done only with its receive, and sends and receives outside of a group follow one another.
//  - an error that comes later is told by state() alone. TRIREME_STAND_IN_FAULT=RANK,CALL makes one: from its call
//  number
//    CALL on, rank RANK's communicators of more than one call are broken.
//  - a peer that dies is noticed by nobody.
// Data goes through a mapped file for each communicator, with a ring for each ordered pair of ranks.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/nccl/table.h"

namespace {

using trireme::comm::nccl_done;
using trireme::comm::nccl_id_bytes;
using trireme::comm::nccl_in_progress;
using trireme::comm::NcclInteger;
using trireme::comm::NcclOp;
using trireme::comm::NcclTable;

constexpr int remote_error = 6;  // ncclRemoteError
constexpr int invalid_usage = 5;
constexpr int looks_in_progress = 2;

// ---- streams and events

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    bell_.notify_all();
    thread_.join();
  }
  void put(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    bell_.notify_all();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        bell_.wait(lock, [this] { return over_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable bell_;
  std::deque<std::function<void()>> tasks_;
  bool over_ = false;
  std::thread thread_;
};

// Recorded again and again: each time has a number.
struct Event {
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> passed{0};
};

Stream* stream_of(void* stream) { return static_cast<Stream*>(stream); }

// ---- what ranks share

struct Ring {
  static constexpr uint64_t capacity = 64 << 10;
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) unsigned char bytes[capacity];
};

struct Shared {
  std::atomic<int> joined;
  alignas(64) unsigned char rings[1];  // [size * size] of Ring
};

struct Transfer {
  bool sends = false;
  int peer = 0;
  unsigned char* data = nullptr;
  uint64_t bytes = 0;
  uint64_t moved = 0;
};

struct Comm {
  int rank = 0, size = 1;
  std::string path;
  size_t mapped = 0;
  Shared* shared = nullptr;
  bool ready = false;
  int looks = 0;                               // until the last call is not in progress any more
  std::vector<std::function<void()>> waiting;  // what goes on its streams then
  int calls = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> running{0};  // tasks on streams
  std::atomic<int> error{0};

  Ring& ring(int from, int to) const {
    return reinterpret_cast<Ring*>(
        shared->rings)[static_cast<size_t>(from) * static_cast<size_t>(size) + static_cast<size_t>(to)];
  }
};

Comm* comm_of(void* comm) { return static_cast<Comm*>(comm); }

void pause_a_little(int& idle) {
  if (++idle < 64)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(30));
}

bool move(const Comm& comm, Transfer& t) {
  Ring& ring = t.sends ? comm.ring(comm.rank, t.peer) : comm.ring(t.peer, comm.rank);
  const uint64_t written = ring.written.load(std::memory_order_acquire);
  const uint64_t read = ring.read.load(std::memory_order_acquire);
  const uint64_t place = (t.sends ? written : read) % Ring::capacity;
  const uint64_t there = t.sends ? Ring::capacity - (written - read) : written - read;
  const uint64_t n = std::min({there, t.bytes - t.moved, Ring::capacity - place});
  if (n == 0) return false;
  if (t.sends) {
    std::memcpy(ring.bytes + place, t.data + t.moved, n);
    ring.written.store(written + n, std::memory_order_release);
  } else {
    std::memcpy(t.data + t.moved, ring.bytes + place, n);
    ring.read.store(read + n, std::memory_order_release);
  }
  t.moved += n;
  return true;
}

// All at the same time; of one pair and direction in order. A send ends once it has been read.
void run_transfers(Comm& comm, std::vector<Transfer> transfers) {
  int idle = 0;
  while (!comm.aborted && comm.error == 0) {
    std::map<std::pair<bool, int>, bool> taken;
    bool all = true, moved = false;
    for (Transfer& t : transfers) {
      if (t.moved == t.bytes) continue;
      all = false;
      if (taken.emplace(std::pair(t.sends, t.peer), true).second) moved |= move(comm, t);
    }
    if (all) break;
    if (moved)
      idle = 0;
    else
      pause_a_little(idle);
  }
  for (const Transfer& t : transfers) {
    if (!t.sends) continue;
    const Ring& ring = comm.ring(comm.rank, t.peer);
    while (!comm.aborted && comm.error == 0 && ring.read.load() != ring.written.load()) pause_a_little(idle);
  }
  // What is broken never ends by itself.
  while (comm.error != 0 && !comm.aborted) pause_a_little(idle);
}

// ---- groups

struct Queued {
  Comm* comm = nullptr;
  Stream* stream = nullptr;
  std::function<void(Comm&)> collective;  // or a transfer
  Transfer transfer;
};

thread_local int depth = 0;
thread_local std::vector<Queued> queued;

void broken_on_purpose(Comm& comm) {
  const char* fault = std::getenv("TRIREME_STAND_IN_FAULT");
  int rank = 0, call = 0;
  if (fault == nullptr || std::sscanf(fault, "%d,%d", &rank, &call) != 2) return;
  if (rank == comm.rank && comm.calls >= call) comm.error = remote_error;
}

int begin(std::vector<Queued> calls) {
  if (calls.empty()) return nccl_done;
  Comm& comm = *calls.front().comm;
  Stream* stream = calls.front().stream;
  std::vector<Transfer> transfers;
  std::vector<std::function<void(Comm&)>> collectives;
  for (Queued& call : calls) {
    if (call.comm != &comm || call.stream != stream) return invalid_usage;  // not what Trireme does
    if (call.collective)
      collectives.push_back(std::move(call.collective));
    else
      transfers.push_back(call.transfer);
  }
  if (comm.looks != 0) return invalid_usage;  // the last call is still in progress
  ++comm.calls;
  broken_on_purpose(comm);
  comm.looks = looks_in_progress;
  comm.waiting.emplace_back([&comm, stream, transfers, collectives] {
    ++comm.running;
    stream->put([&comm, transfers, collectives] {
      for (const auto& collective : collectives) collective(comm);
      if (!transfers.empty()) run_transfers(comm, transfers);
      --comm.running;
    });
  });
  return nccl_in_progress;
}

int add(Queued call) {
  queued.push_back(std::move(call));
  if (depth != 0) return nccl_done;
  return begin(std::exchange(queued, {}));
}

// Every rank's `input` at every rank, in `all`.
void gather_all(Comm& comm, const void* input, unsigned char* all, uint64_t bytes) {
  unsigned char* own = all + static_cast<uint64_t>(comm.rank) * bytes;
  if (own != input) std::memcpy(own, input, bytes);
  std::vector<Transfer> transfers;
  for (int r = 0; r < comm.size; ++r) {
    if (r == comm.rank) continue;
    transfers.push_back({true, r, own, bytes, 0});
    transfers.push_back({false, r, all + static_cast<uint64_t>(r) * bytes, bytes, 0});
  }
  run_transfers(comm, transfers);
}

template <typename T>
void combine(unsigned char* total, const unsigned char* more, int64_t count, NcclOp op) {
  for (int64_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, total + i * static_cast<int64_t>(sizeof a), sizeof a);
    std::memcpy(&b, more + i * static_cast<int64_t>(sizeof b), sizeof b);
    a = op == NcclOp::max   ? std::max(a, b)
        : op == NcclOp::min ? std::min(a, b)
                            : static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    std::memcpy(total + i * static_cast<int64_t>(sizeof a), &a, sizeof a);
  }
}

void reduce_all(Comm& comm, const void* input, void* output, int64_t count, NcclInteger type, NcclOp op) {
  const uint64_t width = type == NcclInteger::u8 ? 1 : type == NcclInteger::i32 ? 4 : 8;
  const uint64_t bytes = static_cast<uint64_t>(count) * width;
  std::vector<unsigned char> all(bytes * static_cast<uint64_t>(comm.size));
  gather_all(comm, input, all.data(), bytes);
  if (output == nullptr) return;
  // From the last rank on: NCCL promises no order.
  std::vector<unsigned char> total(all.end() - static_cast<int64_t>(bytes), all.end());
  for (int r = comm.size - 2; r >= 0; --r) {
    const unsigned char* more = all.data() + static_cast<uint64_t>(r) * bytes;
    if (width == 1)
      combine<uint8_t>(total.data(), more, count, op);
    else if (width == 4)
      combine<int32_t>(total.data(), more, count, op);
    else
      combine<int64_t>(total.data(), more, count, op);
  }
  std::memcpy(output, total.data(), bytes);
}

// ---- the table

int library(char* text, int capacity) {
  std::snprintf(text, static_cast<size_t>(capacity), "a stand-in for NCCL, in host memory");
  return nccl_done;
}
void error_text(int code, char* text, int capacity) {
  std::snprintf(text, static_cast<size_t>(capacity), "%s",
                code == remote_error    ? "remote process exited or there was a network error"
                : code == invalid_usage ? "invalid usage"
                                        : "unhandled system error");
}
int use_device(int) { return nccl_done; }
// As a driver, it knows what it has given out: after a failure that is left to the end of the process.
struct GivenOut {
  std::mutex mutex;
  std::unordered_set<void*> all;
};
GivenOut& given_out() {
  static auto* const all = new GivenOut;  // threads outlive static objects
  return *all;
}
void* give(void* what) {
  const std::lock_guard lock(given_out().mutex);
  given_out().all.insert(what);
  return what;
}
void take_back(void* what) {
  const std::lock_guard lock(given_out().mutex);
  given_out().all.erase(what);
}

int make_event(void** event) {
  *event = give(new Event);
  return nccl_done;
}
void free_event(void* event) {
  take_back(event);
  delete static_cast<Event*>(event);
}
int record(void* event, void* stream) {
  auto* e = static_cast<Event*>(event);
  const uint64_t number = ++e->recorded;
  if (stream == nullptr)
    e->passed = number;
  else
    stream_of(stream)->put([e, number] { e->passed = number; });
  return nccl_done;
}
int wait_event(void* stream, void* event) {
  auto* e = static_cast<Event*>(event);
  stream_of(stream)->put([e, number = e->recorded.load()] {
    for (int idle = 0; e->passed < number;) pause_a_little(idle);
  });
  return nccl_done;
}
int query(void* event, int* done) {
  const auto* e = static_cast<Event*>(event);
  *done = e->passed == e->recorded ? 1 : 0;
  return nccl_done;
}
int copy(void* to, const void* from, int64_t bytes, void* stream) {
  stream_of(stream)->put([to, from, bytes] { std::memmove(to, from, static_cast<size_t>(bytes)); });
  return nccl_done;
}
int make_pinned(void** memory, int64_t bytes) {
  *memory = give(std::malloc(static_cast<size_t>(bytes)));
  return *memory != nullptr ? nccl_done : 1;
}
void free_pinned(void* memory) {
  take_back(memory);
  std::free(memory);
}
int make_stream(void** stream) {
  *stream = new Stream;
  return nccl_done;
}
void free_stream(void* stream) { delete stream_of(stream); }
int run_on(void* stream, void (*task)(void*), void* argument) {
  stream_of(stream)->put([task, argument] { task(argument); });
  return nccl_done;
}

int make_id(unsigned char* id) {
  static std::atomic<int> count{0};
  const char* folder = std::getenv("TMPDIR");
  std::memset(id, 0, nccl_id_bytes);
  const int length = std::snprintf(reinterpret_cast<char*>(id), nccl_id_bytes, "%s/trireme-stand-in-%d-%d",
                                   folder != nullptr ? folder : "/tmp", ::getpid(), ++count);
  return length < nccl_id_bytes ? nccl_done : invalid_usage;
}

int make_comm(const unsigned char* id, int rank, int size, void** comm) {
  auto made = std::make_unique<Comm>();
  made->rank = rank;
  made->size = size;
  made->path = reinterpret_cast<const char*>(id);
  made->mapped = sizeof(Shared) + 64 + sizeof(Ring) * static_cast<size_t>(size) * static_cast<size_t>(size);
  const int fd = ::open(made->path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(made->mapped)) != 0) return 2;
  void* memory = ::mmap(nullptr, made->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) return 2;
  made->shared = static_cast<Shared*>(memory);
  if (++made->shared->joined == size) ::unlink(made->path.c_str());  // all have it open
  made->looks = looks_in_progress;
  *comm = made.release();
  return nccl_in_progress;
}

int state(void* comm) {
  Comm& c = *comm_of(comm);
  if (c.error != 0) return c.error;
  if (!c.ready) {
    if (c.shared->joined.load() < c.size) return nccl_in_progress;
    c.ready = true;
  }
  if (c.looks != 0 && --c.looks != 0) return nccl_in_progress;
  for (const auto& task : std::exchange(c.waiting, {})) task();
  return nccl_done;
}

void end(Comm* comm) {
  comm->aborted = true;
  while (comm->running != 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  if (comm->shared->joined.load() < comm->size) ::unlink(comm->path.c_str());
  ::munmap(comm->shared, comm->mapped);
  delete comm;
}
void abort_comm(void* comm) { end(comm_of(comm)); }
void free_comm(void* comm) {
  for (int i = 0; i < 5000 && comm_of(comm)->running != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  end(comm_of(comm));
}

int start_group() {
  ++depth;
  return nccl_done;
}
int end_group() { return --depth == 0 ? begin(std::exchange(queued, {})) : nccl_done; }

int send(const void* data, int64_t bytes, int to, void* comm, void* stream) {
  auto* from = const_cast<unsigned char*>(static_cast<const unsigned char*>(data));
  return add({comm_of(comm), stream_of(stream), {}, {true, to, from, static_cast<uint64_t>(bytes), 0}});
}
int receive(void* data, int64_t bytes, int from, void* comm, void* stream) {
  auto* to = static_cast<unsigned char*>(data);
  return add({comm_of(comm), stream_of(stream), {}, {false, from, to, static_cast<uint64_t>(bytes), 0}});
}
int all_gather(const void* input, void* output, int64_t bytes, void* comm, void* stream) {
  return add({comm_of(comm),
              stream_of(stream),
              [=](Comm& c) { gather_all(c, input, static_cast<unsigned char*>(output), static_cast<uint64_t>(bytes)); },
              {}});
}
int broadcast(void* data, int64_t bytes, int root, void* comm, void* stream) {
  return add(
      {comm_of(comm),
       stream_of(stream),
       [=](Comm& c) {
         auto* at = static_cast<unsigned char*>(data);
         std::vector<Transfer> transfers;
         for (int r = 0; r < c.size; ++r) {
           if (r != root && (c.rank == root || c.rank == r))
             transfers.push_back({c.rank == root, c.rank == root ? r : root, at, static_cast<uint64_t>(bytes), 0});
         }
         run_transfers(c, transfers);
       },
       {}});
}
int all_reduce(const void* input, void* output, int64_t count, NcclInteger type, NcclOp op, void* comm, void* stream) {
  return add({comm_of(comm), stream_of(stream), [=](Comm& c) { reduce_all(c, input, output, count, type, op); }, {}});
}
int reduce(const void* input, void* output, int64_t count, NcclInteger type, NcclOp op, int root, void* comm,
           void* stream) {
  return add({comm_of(comm),
              stream_of(stream),
              [=](Comm& c) { reduce_all(c, input, c.rank == root ? output : nullptr, count, type, op); },
              {}});
}

// TRIREME_STAND_IN_APART=1: tensors of the host go by way of what is taken for the device's memory.
int32_t kind_of_memory() {
  const char* apart = std::getenv("TRIREME_STAND_IN_APART");
  return apart != nullptr && std::strcmp(apart, "1") == 0 ? 2 : 1;
}

const NcclTable table = {
    .version = NcclTable::current_version,
    .host_memory = kind_of_memory(),
    .library = library,
    .error_text = error_text,
    .use_device = use_device,
    .make_event = make_event,
    .free_event = free_event,
    .record = record,
    .wait_event = wait_event,
    .query = query,
    .copy = copy,
    .make_pinned = make_pinned,
    .free_pinned = free_pinned,
    .make_stream = make_stream,
    .free_stream = free_stream,
    .run_on = run_on,
    .make_id = make_id,
    .make_comm = make_comm,
    .state = state,
    .abort_comm = abort_comm,
    .free_comm = free_comm,
    .start_group = start_group,
    .end_group = end_group,
    .send = send,
    .receive = receive,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .all_reduce = all_reduce,
    .reduce = reduce,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const NcclTable* trireme_nccl_table() { return &table; }
