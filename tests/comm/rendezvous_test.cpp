// Real processes meet at a real store: by a fixed port, by a port that rank 0 takes, as clients of an agent's store,
// and the ways in which they do not. Ranks are this binary, executed again.
#include "comm/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"

extern char** environ;

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;

// argv: folder (port file and outputs), connect timeout in ms. Prints what came out of it into folder/RANK.
int run_rank(const std::string& folder, int64_t connect_timeout_ms) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string result;
  std::string rank = "x";
  try {
    const LaunchEnvironment environment = detect_environment();
    rank = std::to_string(environment.rank);
    ConnectOptions options;
    options.connect_timeout = milliseconds(connect_timeout_ms);
    options.timeout = std::chrono::seconds(60);
    const std::string port_file = folder + "/port";
    options.publish_port = [&](int port) { write_file_durably(port_file, std::to_string(port)); };
    options.await_port = [&](milliseconds limit) {
      for (milliseconds t{0}; t < limit; t += milliseconds(10)) {
        if (std::filesystem::exists(port_file)) return std::stoi(read_file(port_file));
        std::this_thread::sleep_for(milliseconds(10));
      }
      throw WorkerError("no port was published");
    };
    const auto world = connect(environment, options);
    result = fmt::format("sum {}", world->all_reduce_scalar(world->rank() + 1));
  } catch (const std::exception& error) {
    result = error.what();
  }
  write_file_durably(folder + "/" + rank, result);
  return 0;
}

using Variables = std::vector<std::pair<std::string, std::string>>;

class Ranks {
 public:
  explicit Ranks(int64_t connect_timeout_ms = 120'000)
      : folder_(::testing::TempDir() + fmt::format("trireme-rendezvous-{}-{}", ::getpid(), ++count_)),
        timeout_(std::to_string(connect_timeout_ms)) {
    std::filesystem::remove_all(folder_);
    make_directories(folder_);
  }
  ~Ranks() {
    join();
    std::filesystem::remove_all(folder_);
  }
  void start(int64_t rank, int64_t world, const std::string& port, const Variables& more = {}) {
    Variables variables = {{"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", std::to_string(world)},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", port}};
    variables.insert(variables.end(), more.begin(), more.end());
    std::vector<std::string> environment;  // getenv takes the first, so ours come before what the test itself has
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
    std::vector<char*> env;
    for (std::string& e : environment) env.push_back(e.data());
    env.push_back(nullptr);
    std::string self = "/proc/self/exe", flag = "--rank";
    char* argv[] = {self.data(), flag.data(), folder_.data(), timeout_.data(), nullptr};
    pid_t pid = 0;
    ASSERT_EQ(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv, env.data()), 0);
    pids_.push_back(pid);
  }
  void join() {
    for (const pid_t pid : std::exchange(pids_, {})) ::waitpid(pid, nullptr, 0);
  }
  std::string result(int64_t rank) {
    join();
    return read_file(folder_ + "/" + std::to_string(rank));
  }

 private:
  static inline int count_ = 0;
  std::string folder_;
  std::string timeout_;
  std::vector<pid_t> pids_;
};

// A port that was free a moment ago.
struct TakenPort {
  FileDescriptor socket{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port = 0;
  explicit TakenPort(bool listens) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    if (listens) {
      EXPECT_EQ(::listen(socket.get(), 1), 0);
    }
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port = ntohs(address.sin6_port);
  }
};

std::string free_port() { return std::to_string(TakenPort(false).port); }

TEST(Rendezvous, AFreePortThatRankZeroPublishes) {
  Ranks ranks;
  for (int64_t r = 0; r < 3; ++r) ranks.start(r, 3, "0");
  for (int64_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.result(r), "sum 6") << "rank " << r;
}

TEST(Rendezvous, AFixedPort) {
  Ranks ranks;
  const std::string port = free_port();
  for (const int64_t r : {1, 0}) ranks.start(r, 2, port);
  for (int64_t r = 0; r < 2; ++r) EXPECT_EQ(ranks.result(r), "sum 3") << "rank " << r;
}

TEST(Rendezvous, TheAgentsStoreAlsoAfterARestart) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (const char* attempt : {"0", "1"}) {
    Ranks ranks;
    for (int64_t r = 0; r < 2; ++r) {
      ranks.start(r, 2, std::to_string(agent->getPort()),
                  {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", attempt}});
    }
    for (int64_t r = 0; r < 2; ++r) EXPECT_EQ(ranks.result(r), "sum 3") << "attempt " << attempt << " rank " << r;
  }
}

TEST(Rendezvous, AWorldOfOneNeedsNothing) {
  Ranks ranks;
  ranks.start(0, 1, "1");
  EXPECT_EQ(ranks.result(0), "sum 1");
}

TEST(Rendezvous, APortThatIsTakenIsNamed) {
  const TakenPort taken(true);
  Ranks ranks(5'000);
  ranks.start(0, 2, std::to_string(taken.port));
  const std::string text = ranks.result(0);
  EXPECT_NE(text.find(fmt::format("the port of 127.0.0.1:{} is taken", taken.port)), std::string::npos) << text;
}

TEST(Rendezvous, RanksThatDoNotComeAreNamed) {
  Ranks ranks(4'000);
  ranks.start(0, 4, "0");
  ranks.start(2, 4, "0");
  for (const int64_t r : {0, 2}) {
    const std::string text = ranks.result(r);
    EXPECT_TRUE(text.find("ranks 1, 3 did not come") != std::string::npos ||
                (r == 2 && text.find("went away") != std::string::npos) ||
                (r == 2 && text.find("was lost") != std::string::npos))
        << "rank " << r << ": " << text;
  }
}

TEST(Rendezvous, NobodyServesTheStore) {
  Ranks ranks(2'000);
  ranks.start(1, 2, free_port());
  EXPECT_NE(ranks.result(1).find("cannot reach the store of rank 0 at 127.0.0.1:"), std::string::npos)
      << ranks.result(1);
}

TEST(Rendezvous, WhatIsNotBuiltIsRefused) {
  LaunchEnvironment environment;
  ConnectOptions options;
  options.backend = "gloo";
  EXPECT_THROW(connect(environment, options), InputError);
  options.backend = "auto";
  environment.world_size = 2;
  EXPECT_THROW(connect(environment, options), InputError) << "a port of 0 without a launcher";
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--rank") return trireme::comm::run_rank(argv[2], std::stoll(argv[3]));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
