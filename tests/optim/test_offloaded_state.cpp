// AdamW whose state is on disk, or in the host's tier, learns the same bits as with it beside the weights, in pieces of
// every kind, and what is read and written between updates is what the next one finds.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "describe/offload_pieces.h"
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

config::OptimizerConfig with(config::Offload offload) {
  config::OptimizerConfig config;
  config.lr = 1e-2;
  config.offload = offload;
  return config;
}

memory::FileTensors file_in(const fs::path& folder) { return {folder, "the optimizer's state", "an option"}; }

// Parameters of less than a piece, of more, of exactly two, of several logical tensors with and without decay, of
// nothing.
struct Model {
  explicit Model(at::ScalarType dtype, memory::FileTensors* file = nullptr) {
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
      at::Tensor master = at::randn(parameter->shape(), dtype == at::kDouble ? at::kDouble : at::kFloat);
      const bool one = dtype == master.scalar_type();
      const at::Tensor value = one ? master : master.to(dtype), gradient = at::randn_like(master);
      if (file != nullptr && !one) master = file->zeros(master.sizes(), master.scalar_type()).copy_(master);
      parameter->bind(value, master, gradient);
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

TEST(OffloadedState, LearnsTheSameBits) {
  const Folder folder;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    memory::FileTensors file = file_in(folder.path());
    const Model a(dtype), b(dtype, &file), c(dtype);
    Adamw beside(a.all(), with(config::Offload::none)), disk(b.all(), with(config::Offload::disk), &file),
        host(c.all(), with(config::Offload::host));
    EXPECT_TRUE(fs::is_empty(folder.path())) << "the file has no name";
    for (int step = 0; step < 3; ++step) {
      beside.step(1e-2, 0.7);
      for (const auto& [model, adamw] : {std::pair(&b, &disk), std::pair(&c, &host)}) {
        if (step == 1) {  // in pieces, of which the last comes first
          adamw->begin_step(1e-2, 0.7);
          const std::vector<nn::Parameter*> all = model->all();
          adamw->update(std::span(all).subspan(2));
          adamw->update(std::span(all).first(2));
        } else {
          adamw->step(1e-2, 0.7);
        }
        // Read between two updates, and not.
        if (step != 1) expect_equal(a, beside, *model, *adamw);
      }
    }
    EXPECT_GT(disk.moments()[1].exp_avg_sq.min().item<double>(), 0);
  }
}

TEST(OffloadedState, FindsWhatWasLoaded) {
  const Folder folder;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    memory::FileTensors file = file_in(folder.path());
    const Model a(dtype), b(dtype, &file), c(dtype);
    Adamw beside(a.all(), with(config::Offload::none)), disk(b.all(), with(config::Offload::disk), &file),
        host(c.all(), with(config::Offload::host));
    const auto each = {std::pair(&a, &beside), std::pair(&b, &disk), std::pair(&c, &host)};
    for (const auto& [model, adamw] : each) {
      adamw->step(1e-2, 1);
      at::manual_seed(8);
      for (const Moments& moments : adamw->moments()) {
        moments.exp_avg.copy_(at::randn_like(moments.exp_avg));
        moments.exp_avg_sq.copy_(at::rand_like(moments.exp_avg_sq) + 0.1);
      }
      for (const nn::Parameter* parameter : model->all()) parameter->master().mul_(1.5);
      adamw->step(1e-2, 1);
    }
    expect_equal(a, beside, b, disk);
    expect_equal(a, beside, c, host);
  }
}

TEST(OffloadedState, MemoryHoldsPiecesAlone) {
  memory::install_caching_allocator();
  const Folder folder;
  const int64_t elements = 15 + 1237 * 2111 + 2048 * 1024 + 1401 * 1024;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const int64_t tensors = dtype == at::kFloat ? 2 : 3;
    memory::FileTensors file = file_in(folder.path());
    const Model model(dtype, &file);
    const int64_t before = memory::total(memory::allocator_statistics().live);
    Adamw disk(model.all(), with(config::Offload::disk), &file);
    disk.step(1e-2, 1);
    const auto pieces = static_cast<double>(describe::kDiskPieces * tensors * describe::kOffloadPieceElements * 4);
    EXPECT_GE(file.bytes(), tensors * 4 * elements);
    EXPECT_LT(pieces, static_cast<double>(file.bytes()));
    EXPECT_NEAR(static_cast<double>(memory::total(memory::allocator_statistics().live) - before), pieces,
                0.02 * pieces);
  }
}

// What is in the host's tier is not the device's, but for an instant.
TEST(OffloadedState, TheHostHoldsWhatTheDeviceDoesNot) {
  memory::install_caching_allocator();
  const int64_t elements = 15 + 1237 * 2111 + 2048 * 1024 + 1401 * 1024;
  const Model model(at::kBFloat16);
  const memory::AllocatorStatistics before = memory::allocator_statistics();
  memory::reset_peak();
  Adamw host(model.all(), with(config::Offload::host));
  host.step(1e-2, 1);
  const memory::AllocatorStatistics after = memory::allocator_statistics();
  const int64_t pieces = describe::kOffloadPieceElements * (4 + 2);
  EXPECT_EQ(memory::total(after.host) - memory::total(before.host), 8 * elements + pieces);
  EXPECT_EQ(after.host, after.host_at_peak);
  EXPECT_EQ(memory::of(after.host, memory::Purpose::moments), memory::total(after.host));
  EXPECT_LE(after.peak_device_bytes - (memory::total(before.live) - memory::total(before.host)), 1 << 20);
}

// The page cache keeps nothing of the file once it is settled: what was moved out of memory would still be there.
TEST(FileTensors, LeaveThePageCache) {
  const Folder folder;
  memory::FileTensors file = file_in(folder.path());
  if (!file.direct()) GTEST_SKIP() << folder.path() << " is on a file system without direct I/O";
  const at::Tensor tensor = file.zeros({1 << 20}, at::kFloat).fill_(3);
  const auto resident = [&] {
    std::vector<unsigned char> pages(tensor.nbytes() / 4096);
    EXPECT_EQ(::mincore(tensor.data_ptr(), tensor.nbytes(), pages.data()), 0);
    return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
  };
  EXPECT_EQ(resident(), 1024);
  file.settle();
  EXPECT_EQ(resident(), 0);
  EXPECT_TRUE(tensor.eq(3).all().item<bool>()) << "read again from the disk";
  EXPECT_EQ(file.offset_of(tensor), 0);
  for (const int64_t first : {0, 1}) EXPECT_EQ(file.offset_of(tensor.narrow(0, first, 2)), std::nullopt);
  EXPECT_EQ(file.offset_of(at::ones({3})), std::nullopt);
}

// An error of the thread that writes comes out of the update.
TEST(OffloadedState, TellsThatAWriteFailed) {
  const Folder folder;
  memory::FileTensors file = file_in(folder.path());
  const Model model(at::kBFloat16, &file);
  Adamw disk(model.all(), with(config::Offload::disk), &file);
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

TEST(FileTensors, PassThePageCache) {
  const Folder folder;
  if (!file_in(folder.path()).direct()) GTEST_SKIP() << folder.path() << " is on a file system without direct I/O";
}

TEST(FileTensors, TellThatTheDiskIsTooSmall) {
  const Folder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=8m") != 0) GTEST_SKIP() << "mounting needs privileges";
  {
    memory::FileTensors file = file_in(folder.path());
    EXPECT_FALSE(file.direct()) << "tmpfs is memory";
    const Model model(at::kFloat);
    try {
      const Adamw disk(model.all(), with(config::Offload::disk), &file);
      ADD_FAILURE() << "45 MB do not fit into 8";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  testing::AllOf(testing::HasSubstr("bytes of the optimizer's state (an option)"),
                                 testing::HasSubstr("No space left"), testing::HasSubstr(folder.path().string())));
    }
  }
  EXPECT_EQ(::umount2(folder.path().c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace trireme::optim
