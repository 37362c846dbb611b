// The flight recorder: what is read after its process was killed, and what is said about who is behind.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "comm/flight_log.h"
#include "comm/flight_recorder.h"
#include "comm/shm_group.h"
#include "processes.h"
#include "ranks.h"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::make_call;
using testing::Rank;

class Folder {
 public:
  Folder() : path_(::testing::TempDir() + fmt::format("trireme-flight-{}-{}", ::getpid(), ++count_)) {
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

// args: address, rank, ranks, folder. Reduces for ever, and fails when a peer does.
int run_rank(const std::vector<std::string>& args) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int64_t rank = std::stoll(args[1]), ranks = std::stoll(args[2]);
  try {
    const auto settings = std::make_shared<GroupSettings>();
    settings->recorder = std::make_shared<FlightRecorder>(args[3], 50, rank, ranks);
    GroupOptions options;
    options.axis = "data";
    options.rank = rank;
    options.settings = settings;
    ShmGroup group(testing::meet(args[0], rank, ranks), options);
    std::vector<float> data(20'000);
    for (int64_t i = 0;; ++i) {
      Call call = make_call(Kind::all_reduce, DType::f32, 20'000, data.data(), data.data());
      call.shape = {200, 100};
      group.run(std::move(call));
      if (i == 200) {
        std::printf("ready\n");
        std::fflush(stdout);
      }
    }
  } catch (const std::exception&) {
    return 3;
  }
}

TEST(FlightRecorder, IsReadAfterItsProcessWasKilled) {
  const Folder folder;
  const std::string address = Arena::random_address();
  std::vector<Rank> job;
  for (int64_t r = 0; r < 3; ++r) {
    job.emplace_back(std::vector<std::string>{address, std::to_string(r), "3", folder.path().string()});
  }
  for (Rank& rank : job) ASSERT_EQ(rank.line(seconds(60)), "ready");
  // While they run, too.
  for (const FlightLog& log : read_flight_logs(folder.path())) EXPECT_EQ(log.process, ProcessState::alive);
  job[1].signal(SIGKILL);
  job[1].wait();
  for (const size_t r : {size_t{0}, size_t{2}}) EXPECT_EQ(WEXITSTATUS(job[r].wait()), 3);

  const std::vector<FlightLog> logs = read_flight_logs(folder.path());
  ASSERT_EQ(logs.size(), 3U);
  for (int64_t r = 0; r < 3; ++r) {
    const FlightLog& log = logs[static_cast<size_t>(r)];
    EXPECT_EQ(log.rank, r);
    EXPECT_EQ(log.process, ProcessState::dead);
    EXPECT_GT(log.recorded, 200);
    ASSERT_GE(log.records.size(), 49U);
    ASSERT_LE(log.records.size(), 50U);
    for (size_t i = 0; i + 1 < log.records.size(); ++i) {
      const FlightRecord& record = log.records[i];
      EXPECT_EQ(record.number + 1, log.records[i + 1].number);
      EXPECT_EQ(record.sequence, static_cast<uint64_t>(record.number));
      EXPECT_EQ(record.state, FlightState::done) << "rank " << r << " #" << record.sequence;
      EXPECT_EQ(record.bytes, 80'000);
      EXPECT_EQ(record.shape, (std::vector<int64_t>{200, 100}));
      EXPECT_LE(record.posted, record.started);
      EXPECT_LE(record.started, record.finished);
    }
    const FlightRecord& last = log.records.back();
    if (r == 1) {
      EXPECT_EQ(log.failure, "") << "it had no time for words";
    } else {
      EXPECT_EQ(last.state, FlightState::failed);
      EXPECT_NE(log.failure.find("rank 1"), std::string::npos) << log.failure;
    }
  }
  const nlohmann::json dump = to_json(logs);
  EXPECT_EQ(dump.at("ranks").size(), 3U);
  EXPECT_EQ(dump.at("ranks")[1].at("operations").back().at("operation"), "all_reduce");
  EXPECT_EQ(dump.at("groups")[0].at("axis"), "data");
  EXPECT_EQ(dump.at("groups")[0].at("ranks"), nlohmann::json({0, 1, 2}));
}

// Three recorders as a hang leaves them.
struct Scene {
  Folder folder;
  std::vector<std::unique_ptr<FlightRecorder>> recorders;
  std::vector<int32_t> groups;

  Scene() {
    for (int64_t r = 0; r < 3; ++r) {
      recorders.push_back(std::make_unique<FlightRecorder>(folder.path(), 10, r, 3));
      groups.push_back(recorders.back()->add_group({"shard", r, {0, 1, 2}, 0, 0}));
    }
  }
  void post(int64_t rank, const Call& call, uint64_t sequence, bool done) {
    FlightRecord record;
    record.group = groups[static_cast<size_t>(rank)];
    record.packed = pack(call, 3);
    record.sequence = sequence;
    record.count = call.count;
    record.posted = 1000;
    FlightRecorder& recorder = *recorders[static_cast<size_t>(rank)];
    const int64_t number = recorder.add(record);
    if (done) recorder.finished(number, 2000);
  }
};

TEST(FlightReport, NamesTheRankThatIsBehindAndTheOperation) {
  Scene scene;
  const Call gather = make_call(Kind::all_gather, DType::bf16, 64, nullptr, nullptr);
  const Call sum = make_call(Kind::all_reduce, DType::f32, 8, nullptr, nullptr);
  for (int64_t r = 0; r < 3; ++r) scene.post(r, sum, 1, true);
  for (const int64_t r : {0, 2}) scene.post(r, gather, 2, false);
  const auto logs = read_flight_logs(scene.folder.path());
  EXPECT_EQ(flight_summary(logs, "  "),
            "  axis shard: rank 1 has not come to #2 all_gather(BF16 x 64), where rank 0 is\n");
  const std::string report = flight_report(logs);
  for (const char* line :
       {"axis shard, ranks 0, 1, 2\n", "  rank 0    posted #2 all_gather(BF16 x 64), done up to #1\n",
        "  rank 1    posted #1 all_reduce(sum, F32 x 8), done up to #1\n",
        "  behind: rank 1 has not come to #2 all_gather(BF16 x 64), where rank 0 is\n"}) {
    EXPECT_NE(report.find(line), std::string::npos) << "no \"" << line << "\" in:\n" << report;
  }
  EXPECT_EQ(to_json(logs).at("groups")[0].at("behind"), nlohmann::json({1}));
}

TEST(FlightReport, NamesCallsThatDifferAndRanksWithoutRecords) {
  Scene scene;
  for (const int64_t r : {0, 2}) {
    scene.post(r, make_call(Kind::all_reduce, DType::f32, r == 0 ? 8 : 9, nullptr, nullptr), 1, false);
  }
  std::filesystem::remove(flight_path(scene.folder.path(), 1));
  const std::string report = flight_report(read_flight_logs(scene.folder.path()));
  EXPECT_NE(report.find("  no record of rank 1\n"), std::string::npos) << report;
  EXPECT_NE(
      report.find("calls differ: #1: rank 0 calls all_reduce(sum, F32 x 8), rank 2 calls all_reduce(sum, F32 x 9)"),
      std::string::npos)
      << report;
}

TEST(FlightReport, TellsAHangInsideAnOperationFromARankThatHasNotCome) {
  Scene scene;
  for (int64_t r = 0; r < 3; ++r) {
    scene.post(r, make_call(Kind::all_reduce, DType::f32, 8, nullptr, nullptr), 1, r != 2);
  }
  scene.post(1, make_call(Kind::recv, DType::f32, 4, nullptr, nullptr, 2), 1, false);
  const auto logs = read_flight_logs(scene.folder.path());
  EXPECT_EQ(flight_summary(logs, ""), "");
  const std::string report = flight_report(logs);
  EXPECT_NE(report.find("all have come to #1 all_reduce(sum, F32 x 8); not complete for rank 2"), std::string::npos)
      << report;
  EXPECT_NE(report.find("message of rank 1: recv(F32 x 4, from 2) #1 is posted"), std::string::npos) << report;
}

TEST(FlightLog, WhatIsNoRecordIsRefused) {
  const Folder folder;
  EXPECT_THROW(read_flight_logs(folder.path()), InputError);
  make_directories(folder.path());
  write_file_durably(flight_path(folder.path(), 0), "not a record");
  EXPECT_THROW(read_flight_logs(folder.path()), InputError);
  write_file_durably(flight_path(folder.path(), 0), std::string(200'000, 'x'));
  EXPECT_THROW(read_flight_logs(folder.path()), InputError);
}

TEST(FlightLog, FilesOfALifeBeforeAreTakenAway) {
  const Folder folder;
  for (int64_t r = 0; r < 4; ++r) FlightRecorder(folder.path(), 5, r, 4);
  remove_flight_logs(folder.path(), 0, 1, 2);  // this launcher starts rank 0 of two
  EXPECT_FALSE(std::filesystem::exists(flight_path(folder.path(), 0)));
  EXPECT_TRUE(std::filesystem::exists(flight_path(folder.path(), 1))) << "another launcher's";
  EXPECT_FALSE(std::filesystem::exists(flight_path(folder.path(), 2)));
  EXPECT_FALSE(std::filesystem::exists(flight_path(folder.path(), 3)));
  const std::filesystem::path dump = dump_flight(folder.path(), "a test");
  EXPECT_EQ(nlohmann::json::parse(read_file(dump)).at("why"), "a test");
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--rank") return trireme::comm::run_rank({argv + 2, argv + argc});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
