#include "comm/rendezvous.h"

#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "comm/mpi/mpi_group.h"
#include "comm/nccl/nccl_group.h"
#include "comm/shm_group.h"
#include "comm/torch_device.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;

milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(1));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The store of all ranks, with the deadline and the words for what may go wrong.
class Rendezvous {
 public:
  Rendezvous(const LaunchEnvironment& environment, const ConnectOptions& options)
      : e_(environment),
        deadline_(Clock::now() + options.connect_timeout),
        timeout_(options.connect_timeout),
        cancelled_(options.cancelled) {
    const bool hosts = e_.rank == 0 && !e_.agent_store;
    if (e_.master_addr.empty()) throw_input("MASTER_ADDR is not set: give the host of rank 0");
    int64_t port = e_.master_port;
    if (port == 0 && (options.publish_port == nullptr || options.await_port == nullptr)) {
      throw_input("MASTER_PORT = 0 works with Trireme's own launcher, which passes the port on; give a port");
    }
    if (port == 0 && !hosts) port = options.await_port(left_until(deadline_));
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(port);
    store_options.isServer = hosts;
    store_options.waitWorkers = false;
    at_ = fmt::format("{}:{}", e_.master_addr, port);
    if (!hosts) await_listener(static_cast<uint16_t>(port));
    store_options.timeout = left_until(deadline_);
    try {
      auto store = c10::make_intrusive<c10d::TCPStore>(e_.master_addr, store_options);
      if (e_.master_port == 0 && hosts) {
        at_ = fmt::format("{}:{}", e_.master_addr, store->getPort());
        options.publish_port(store->getPort());
      }
      store_ = c10::make_intrusive<c10d::PrefixStore>(fmt::format("trireme/{}", e_.run_id), std::move(store));
    } catch (const c10::Error& error) {
      explain(error, hosts);
    }
  }

  void set(const std::string& key, const std::string& value) {
    guarded([&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
  }
  int64_t add(const std::string& key) {
    int64_t count = 0;
    guarded([&] { count = store_->add(key, 1); });
    return count;
  }
  /// The values of `stem/RANK` of all ranks; names the ranks that did not come.
  std::vector<std::string> all(const std::string& stem) {
    std::vector<std::string> values;
    for (int64_t r = 0; r < e_.world_size; ++r) values.push_back(get(fmt::format("{}/{}", stem, r), stem));
    return values;
  }
  std::string get(const std::string& key, const std::string& stem = "") {
    std::string value;
    guarded([&] {
      while (!store_->check({key})) pause(stem);
      const auto bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }
  /// All ranks must expect as many ranks; whoever sees that they do not tells those that wait already.
  void agree_on_world_size() {
    const std::string mine = fmt::format("{} ranks, as rank {} on {} expects", e_.world_size, e_.rank, host_name());
    const std::vector<uint8_t> bytes(mine.begin(), mine.end());
    guarded([&] {
      const auto theirs = store_->compareSet("world", {}, bytes);
      const std::string first(theirs.begin(), theirs.end());
      if (first.substr(0, first.find(' ')) == std::to_string(e_.world_size)) return;
      const std::string fault = fmt::format(
          "the launchers do not agree: {}, or {}; --nodes and --workers have to be the same on every machine", first,
          mine);
      set("mismatch", fault);
      refuse(fault);
    });
  }
  Clock::time_point deadline() const { return deadline_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  /// All ranks are here, under one number each.
  void enroll() {
    agree_on_world_size();
    if (add(fmt::format("taken/{}", e_.rank)) != 1)
      throw_input("two workers say that they are rank {} of {}", e_.rank, e_.world_size);
  }

 private:
  template <typename Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (const c10::Error& error) {
      throw WorkerError(fmt::format("rank {} on {}: the store at {} was lost: {}", e_.rank, host_name(), at_,
                                    first_line(error.what_without_backtrace())));
    }
  }

  /// The store ends with the rank that serves it, so that one goes last: others look every few milliseconds.
  [[noreturn]] void refuse(const std::string& fault) const {
    if (e_.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    throw InputError(fault);
  }

  /// Between two looks: ends the wait when it should not go on, says once what is waited for, and sleeps.
  void pause(const std::string& stem) {
    if (store_->check({"mismatch"})) {
      const auto text = store_->get("mismatch");
      refuse(std::string(text.begin(), text.end()));
    }
    wait_a_moment([&] { return missing(stem) + " yet"; });
    if (Clock::now() < deadline_) return;
    throw WorkerError(fmt::format("rank {} on {}: {} at {} within {:.0f} s", e_.rank, host_name(), missing(stem), at_,
                                  std::chrono::duration<double>(timeout_).count()));
  }

  template <typename What>
  void wait_a_moment(const What& what) {
    const auto waited = Clock::now() - began_;
    // A request to stop that comes while workers start is kept for the first step; who waits for long is let go.
    if (waited > kPatience && cancelled_ && cancelled_())
      throw Cancelled(fmt::format("stopped while {}: nothing had begun", what()));
    if (waited > kPatience && !std::exchange(told_, true))
      log::info("rank {}: {} at {}; waiting for at most {:.0f} s", e_.rank, what(), at_,
                std::chrono::duration<double>(timeout_).count());
    std::this_thread::sleep_for(milliseconds(waited < std::chrono::seconds(1) ? 2 : 50));
  }

  /// Until somebody listens at the store's address: the store's own wait can neither be told nor be given up.
  void await_listener(uint16_t port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    for (;;) {
      addrinfo* found = nullptr;
      const int error = ::getaddrinfo(e_.master_addr.c_str(), std::to_string(port).c_str(), &hints, &found);
      const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
      if (error == EAI_NONAME) throw_input("there is no host {} (rendezvous at {})", e_.master_addr, at_);
      for (const addrinfo* a = found; error == 0 && a != nullptr; a = a->ai_next) {
        const FileDescriptor socket(::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (!socket) continue;
        if (::connect(socket.get(), a->ai_addr, a->ai_addrlen) == 0) return;
        if (errno != EINPROGRESS) continue;
        pollfd ready{socket.get(), POLLOUT, 0};
        int fault = 0;
        socklen_t size = sizeof fault;
        if (::poll(&ready, 1, 1000) == 1 && ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &fault, &size) == 0 &&
            fault == 0)
          return;
      }
      wait_a_moment([&] { return std::string("rank 0, which serves the store, does not listen"); });
      if (Clock::now() < deadline_) continue;
      throw WorkerError(fmt::format("rank {} on {}: cannot reach the store of rank 0 at {} within {:.0f} s", e_.rank,
                                    host_name(), at_, std::chrono::duration<double>(timeout_).count()));
    }
  }

  std::string missing(const std::string& stem) {
    std::vector<int64_t> ranks;
    try {
      for (int64_t r = 0; !stem.empty() && r < e_.world_size; ++r) {
        if (!store_->check({fmt::format("{}/{}", stem, r)})) ranks.push_back(r);
      }
    } catch (const c10::Error&) {
      return "rank 0, which serves the store, went away";
    }
    if (ranks.empty()) return "rank 0 did not come";
    return fmt::format("rank{} {} did not come", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
  }

  [[noreturn]] void explain(const c10::Error& error, bool hosts) {
    const std::string why = first_line(error.what_without_backtrace());
    if (!hosts) {
      throw WorkerError(fmt::format("rank {} on {}: cannot reach the store of rank 0 at {} within {:.0f} s: {}",
                                    e_.rank, host_name(), at_, std::chrono::duration<double>(timeout_).count(), why));
    }
    const bool taken = why.find("EADDRINUSE") != std::string::npos || why.find("already in use") != std::string::npos;
    if (taken) {
      throw_input(
          "the port of {} is taken by another program (perhaps another run): give another one (MASTER_PORT, or "
          "torchrun --master-port), or leave it to `trireme train --workers N`, which takes a free one",
          at_);
    }
    throw_input("rank 0 on {} cannot serve the store at {}: {}", host_name(), at_, why);
  }

  static constexpr std::chrono::seconds kPatience{3};

  const LaunchEnvironment& e_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point deadline_;
  milliseconds timeout_;
  std::function<bool()> cancelled_;
  bool told_ = false;
  std::string at_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// Two containers on one machine have two host names, but one boot id.
std::string machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return std::getline(file, id) ? id : host_name();
}

struct Place {
  std::string machine;
  std::string host;
};

Place parse_place(const std::string& text) {
  const size_t first = text.find('|');
  TRIREME_CHECK(first != std::string::npos, "place {}", text);
  return {text.substr(0, first), text.substr(first + 1)};
}

// `ranks 0-1 are on A, 2-3 on B`
std::string list_places(const std::vector<Place>& places) {
  std::string text;
  for (size_t begin = 0; begin < places.size();) {
    size_t end = begin + 1;
    while (end < places.size() && places[end].machine == places[begin].machine) ++end;
    const bool one = end == begin + 1;
    const std::string ranks = one ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1);
    text += begin == 0
                ? fmt::format("rank{} {} {} on {}", one ? "" : "s", ranks, one ? "is" : "are", places[begin].host)
                : fmt::format(", {} on {}", ranks, places[begin].host);
    begin = end;
  }
  return text;
}

void check_places(const std::vector<Place>& places) {
  const bool spread =
      std::any_of(places.begin(), places.end(), [&](const Place& p) { return p.machine != places[0].machine; });
  if (spread) {
    throw_input(
        "comm.backend = shm spans one machine, {}; comm.backend = mpi spans several: start the workers with mpirun",
        list_places(places));
  }
}

// A run goes on without a recorder rather than end because its folder cannot hold one.
std::shared_ptr<const GroupSettings> with_recorder(const LaunchEnvironment& environment,
                                                   const ConnectOptions& options) {
  auto settings = options.settings != nullptr ? options.settings : std::make_shared<GroupSettings>();
  if (options.flight_folder.empty() || options.flight_capacity == 0) return settings;
  try {
    settings->recorder = std::make_shared<FlightRecorder>(options.flight_folder, options.flight_capacity,
                                                          environment.rank, environment.world_size);
  } catch (const Error& error) {
    log::warning("no flight recorder: {}", error.what());
  }
  return settings;
}

// MPI knows who the ranks are, so they need no store.
std::shared_ptr<Communicator> connect_by_mpi(const LaunchEnvironment& environment, const ConnectOptions& options) {
  auto world = MpiWorld::open(environment.rank, environment.world_size, options.connect_timeout);
  GroupOptions group_options;
  group_options.settings = with_recorder(environment, options);
  if (!group_options.settings->links.empty() && !world->on_one_machine()) {
    throw_input(
        "comm.emulate makes a link of one machine slower: the clocks of several machines differ. With comm.backend = "
        "mpi it works while all ranks are on one machine");
  }
  group_options.members.resize(static_cast<size_t>(environment.world_size));
  std::iota(group_options.members.begin(), group_options.members.end(), 0);
  group_options.rank = environment.rank;
  group_options.timeout = options.timeout;
  if (environment.rank == 0) log::info("comm.backend = mpi: {} ranks, {}", environment.world_size, world->library());
  auto communicator = std::make_shared<Communicator>(std::make_shared<MpiGroup>(std::move(world), group_options));
  communicator->barrier();
  return communicator;
}

// The store at which the ranks met, as what they tell each other over NCCL goes over it.
class StoreBoard final : public Board {
 public:
  explicit StoreBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    const auto bytes = store_->get(key);
    return std::string(bytes.begin(), bytes.end());
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// The device of this rank: the GPU whose number is its own on the machine.
std::shared_ptr<Device> nccl_device(const NcclTable& nccl, const LaunchEnvironment& environment) {
  if (nccl.host_memory != 0) return std::make_shared<HostDevice>(nccl);
  auto device = std::make_shared<TorchDevice>(environment.local_rank);
  const int code = nccl.use_device(static_cast<int>(environment.local_rank));
  if (code == nccl_done) return device;
  std::array<char, 512> text{};
  nccl.error_text(code, text.data(), static_cast<int>(text.size()));
  throw_input("comm.backend = nccl: GPU {} cannot be used: {}", environment.local_rank, text.data());
}

std::shared_ptr<Communicator> connect_by_nccl(const LaunchEnvironment& environment, const ConnectOptions& options) {
  const NcclTable& nccl = load_nccl_for(options.on_gpus);
  auto device = nccl_device(nccl, environment);
  GroupOptions group_options;
  group_options.settings = with_recorder(environment, options);
  if (!group_options.settings->links.empty()) {
    throw_input(
        "comm.emulate makes the exchange of CPU workers slower, over comm.backend = shm or mpi; over nccl there is "
        "none");
  }
  if (group_options.settings->check == CheckLevel::all) {
    throw_input(
        "comm.check = all looks for NaN in what is summed, which the host does not read where it lies on a GPU; "
        "\"calls\" "
        "and \"shapes\" work");
  }
  Rendezvous meeting(environment, options);
  meeting.enroll();
  const auto left = std::chrono::duration_cast<milliseconds>(meeting.deadline() - Clock::now());
  auto world = std::make_shared<NcclWorld>(nccl, std::move(device), std::make_shared<StoreBoard>(meeting.store()),
                                           environment.rank, environment.world_size, left);
  group_options.members.resize(static_cast<size_t>(environment.world_size));
  std::iota(group_options.members.begin(), group_options.members.end(), 0);
  group_options.rank = environment.rank;
  group_options.timeout = options.timeout;
  if (environment.rank == 0) log::info("comm.backend = nccl: {} ranks, {}", environment.world_size, world->library());
  auto communicator = std::make_shared<Communicator>(std::make_shared<NcclGroup>(std::move(world), group_options));
  communicator->barrier();
  return communicator;
}

}  // namespace

std::shared_ptr<Communicator> connect(const LaunchEnvironment& environment, const ConnectOptions& options) {
  const std::string_view backend = options.backend != "auto" ? std::string_view(options.backend)
                                   : options.on_gpus         ? "nccl"
                                                             : "shm";
  if (backend != "shm" && backend != "mpi" && backend != "nccl")
    throw_input("comm.backend = {} is not known; auto, shm, mpi and nccl are", backend);
  if (environment.world_size == 1) return Communicator::solo("world");
  if (options.on_gpus && backend != "nccl") {
    throw_input(
        "run.device = cuda with {} workers needs comm.backend = nccl, and comm.backend = {} moves CPU tensors; "
        "\"auto\" is \"nccl\" there, and --workers 1 needs neither",
        environment.world_size, backend);
  }
  if (backend == "mpi") return connect_by_mpi(environment, options);
  if (backend == "nccl") return connect_by_nccl(environment, options);

  Rendezvous meeting(environment, options);
  meeting.enroll();
  meeting.set(fmt::format("place/{}", environment.rank), fmt::format("{}|{}", machine_id(), host_name()));
  std::vector<Place> places;
  for (const std::string& text : meeting.all("place")) places.push_back(parse_place(text));
  check_places(places);

  std::shared_ptr<Arena> arena;
  if (environment.rank == 0) {
    arena = Arena::create(environment.world_size);
    const std::string address = Arena::random_address();
    const FileDescriptor door = Arena::listen(address);
    meeting.set("arena", address);
    arena->hand_out(door, meeting.deadline());
  } else {
    arena = Arena::attach(meeting.get("arena"), environment.rank, meeting.deadline());
  }
  GroupOptions group_options;
  group_options.rank = environment.rank;
  group_options.settings = with_recorder(environment, options);
  group_options.timeout = options.timeout;
  auto world = std::make_shared<Communicator>(std::make_shared<ShmGroup>(std::move(arena), group_options));
  // Nobody needs the store after this, so rank 0 may take it, and its thread, down.
  world->barrier();
  return world;
}

}  // namespace trireme::comm
