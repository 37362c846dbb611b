// What the checkpoint tests share: ranks as threads, a sample model whose every element is a function of its name and
// place, ways to cut it, and a folder that removes itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/coordination.h"
#include "checkpoint/fragment.h"
#include "checkpoint/save.h"

namespace trireme::checkpoint::test {

/// A meeting place of `size` threads.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size), mine_(static_cast<size_t>(size)) {}
  std::vector<std::string> exchange(int rank, const std::string& text);
  int size() const { return size_; }

 private:
  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int64_t round_ = 0;
  std::vector<std::string> mine_, result_;
};

class ThreadRank final : public Coordination {
 public:
  ThreadRank(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }
  void barrier() override { meeting_.exchange(rank_, ""); }
  std::vector<std::string> all_gather_strings(const std::string& text) override {
    return meeting_.exchange(rank_, text);
  }

 private:
  Meeting& meeting_;
  int rank_;
};

/// Runs `body` on `size` ranks at once; returns what each threw ("" for nothing).
std::vector<std::string> on_ranks(int size, const std::function<void(Coordination&)>& body);

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Tensors of awkward shapes: scalar, empty, one row, 4N+1 rows, three dimensions, each element type, one big enough to
/// be split over replicas and to be read in several blocks.
std::vector<LogicalTensor> sample_model();
/// The bytes of a box of a tensor; `variant` gives other values.
std::vector<std::byte> values_of(const LogicalTensor& tensor, const Box& box, uint64_t variant = 0);

/// How a layout cuts a tensor: the boxes, and replica numbers, of `rank` of `size`.
struct Held {
  Box box;
  int64_t replica = 0, replicas = 1;
};
using Cut = std::function<std::vector<Held>(const LogicalTensor& tensor, int rank, int size)>;
struct Layout {
  std::string name;
  int size;
  Cut cut;
};
/// One rank; replicas; uneven rows with ranks that hold nothing; columns; rows and columns; a mixture by tensor.
std::vector<Layout> layouts();

/// A rank's fragments with their storage.
struct Holding {
  std::vector<Fragment> fragments;
  std::vector<std::vector<std::byte>> storage;
};
Holding hold(const Layout& layout, int rank, uint64_t variant = 0);

nlohmann::json sample_state(int64_t step);

/// Saves the sample model in a layout on as many thread ranks; returns what each rank threw.
std::vector<std::string> save_sample(const std::filesystem::path& run, const Layout& layout, int64_t step,
                                     uint64_t variant = 0, const FaultHook& hook = {});
/// As above; fails the test when a rank threw.
void must_save_sample(const std::filesystem::path& run, const Layout& layout, int64_t step, uint64_t variant = 0);

/// Loads the sample model in a layout and compares every byte; returns the first difference or error, or "".
std::string load_and_compare(const std::filesystem::path& folder, const Layout& layout, uint64_t variant = 0);

/// Names of the entries of a folder, sorted.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace trireme::checkpoint::test
