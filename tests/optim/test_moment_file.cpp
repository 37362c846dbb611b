// AdamW with its moments on disk learns the same bits as with them in memory, in pieces of every kind, and what is read
// and written between updates is what the next one finds.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "memory/caching_allocator.h"
#include "optim/adamw.h"

namespace trireme::optim {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  // Where files are on a disk, as /tmp may not be.
  Folder() : path_(fs::path(TRIREME_BINARY_DIR) / ("moments." + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

config::OptimizerConfig on_disk(bool yes) {
  config::OptimizerConfig config;
  config.lr = 1e-2;
  config.offload = yes ? config::Offload::disk : config::Offload::none;
  return config;
}

// Parameters of less than a piece, of more, of exactly two, of several logical tensors with and without decay, of
// nothing.
struct Model {
  explicit Model(at::ScalarType dtype) {
    const auto tensor = [](const char* name, int64_t rows, int64_t cols, bool decay) {
      return nn::LogicalTensor{name, {rows, cols}, {nn::Init::Kind::truncated_normal, 0.5}, decay};
    };
    using Parts = std::vector<nn::LogicalTensor>;
    for (const Parts& parts : {Parts{tensor("small", 3, 5, true)}, Parts{tensor("large", 1237, 2111, true)},
                               Parts{tensor("none", 0, 7, true)}, Parts{tensor("two", 2048, 1024, false)},
                               Parts{tensor("q", 700, 1024, true), tensor("k", 701, 1024, false)}})
      parameters.push_back(std::make_unique<nn::Parameter>(parts, dtype));
    for (const auto& parameter : parameters) {
      at::manual_seed(parameter->elements());
      const at::Tensor master = at::randn(parameter->shape(), dtype == at::kDouble ? at::kDouble : at::kFloat);
      parameter->bind(dtype == master.scalar_type() ? master : master.to(dtype), master, at::randn_like(master));
    }
  }
  std::vector<nn::Parameter*> all() const {
    std::vector<nn::Parameter*> pointers;
    for (const auto& parameter : parameters) pointers.push_back(parameter.get());
    return pointers;
  }
  std::vector<std::unique_ptr<nn::Parameter>> parameters;
};

void expect_equal(const Model& a, const Adamw& first, const Model& b, const Adamw& second) {
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    const auto name = std::string(a.parameters[i]->name());
    EXPECT_TRUE(a.parameters[i]->master().equal(b.parameters[i]->master())) << name;
    EXPECT_TRUE(a.parameters[i]->value().equal(b.parameters[i]->value())) << name;
    EXPECT_TRUE(first.moments()[i].exp_avg.equal(second.moments()[i].exp_avg)) << name;
    EXPECT_TRUE(first.moments()[i].exp_avg_sq.equal(second.moments()[i].exp_avg_sq)) << name;
  }
}

TEST(MomentFile, LearnsTheSameBits) {
  const Folder folder;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Model a(dtype), b(dtype);
    Adamw memory(a.all(), on_disk(false)), disk(b.all(), on_disk(true), folder.path());
    EXPECT_TRUE(fs::is_empty(folder.path())) << "the file has no name";
    for (int step = 0; step < 3; ++step) {
      memory.step(1e-2, 0.7);
      if (step == 1) {  // in pieces, of which the last comes first
        disk.begin_step(1e-2, 0.7);
        const std::vector<nn::Parameter*> all = b.all();
        disk.update(std::span(all).subspan(2));
        disk.update(std::span(all).first(2));
      } else {
        disk.step(1e-2, 0.7);
      }
      // Read between two updates, and not.
      if (step != 1) expect_equal(a, memory, b, disk);
    }
    EXPECT_GT(disk.moments()[1].exp_avg_sq.min().item<double>(), 0);
  }
}

TEST(MomentFile, FindsWhatWasLoaded) {
  const Folder folder;
  const Model a(at::kFloat), b(at::kFloat);
  Adamw memory(a.all(), on_disk(false)), disk(b.all(), on_disk(true), folder.path());
  memory.step(1e-2, 1);
  disk.step(1e-2, 1);
  for (Adamw* each : {&memory, &disk}) {
    at::manual_seed(8);
    for (const Moments& moments : each->moments()) {
      moments.exp_avg.copy_(at::randn_like(moments.exp_avg));
      moments.exp_avg_sq.copy_(at::rand_like(moments.exp_avg_sq) + 0.1);
    }
  }
  memory.step(1e-2, 1);
  disk.step(1e-2, 1);
  expect_equal(a, memory, b, disk);
}

TEST(MomentFile, MemoryHoldsPiecesAlone) {
  memory::install_caching_allocator();
  const Folder folder;
  const Model model(at::kFloat);
  const auto moments = [] { return memory::of(memory::allocator_statistics().live, memory::Purpose::moments); };
  const int64_t before = moments();
  Adamw disk(model.all(), on_disk(true), folder.path());
  const int64_t pieces = describe::kMomentPieces * 2 * describe::kMomentPieceElements * 4;
  EXPECT_GE(disk.moment_file()->bytes(), 2 * 4 * (1237 * 2111 + 2048 * 1024 + 1401 * 1024));
  EXPECT_LT(pieces, disk.moment_file()->bytes());
  EXPECT_NEAR(static_cast<double>(moments() - before), static_cast<double>(pieces), 0.02 * static_cast<double>(pieces));
}

// An error of the thread that writes comes out of the update.
TEST(MomentFile, TellsThatAWriteFailed) {
  const Folder folder;
  const Model model(at::kFloat);
  Adamw disk(model.all(), on_disk(true), folder.path());
  disk.step(1e-2, 1);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit tight { 1 << 20, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  try {
    disk.step(1e-2, 1);
    ADD_FAILURE() << "the file may not be written";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("File too large"), testing::HasSubstr("write")));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old);
}

TEST(MomentFile, PassesThePageCache) {
  const Folder folder;
  const Model model(at::kFloat);
  const Adamw disk(model.all(), on_disk(true), folder.path());
  if (!disk.moment_file()->direct()) GTEST_SKIP() << folder.path() << " is on a file system without direct I/O";
}

TEST(MomentFile, TellsThatTheDiskIsTooSmall) {
  const Folder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=8m") != 0) GTEST_SKIP() << "mounting needs privileges";
  const Model model(at::kFloat);
  try {
    const Adamw disk(model.all(), on_disk(true), folder.path());
    ADD_FAILURE() << "45 MB do not fit into 8";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("bytes of moments"), testing::HasSubstr("No space left"),
                               testing::HasSubstr(folder.path().string())));
  }
  EXPECT_EQ(::umount2(folder.path().c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace trireme::optim
