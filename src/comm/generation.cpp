#include "comm/generation.h"

#include <atomic>
#include <vector>

#include "base/error.h"

namespace trireme::comm {

struct Generation::Counters {
  alignas(128) std::atomic<uint64_t> written{0};
  alignas(128) std::atomic<uint64_t> released{0};
};

Generation::Generation(std::shared_ptr<ShmGroup> group, const std::string& name)
    : group_(std::move(group)), name_(name) {
  if (group_->size() == 1) {
    own_ = std::make_unique<Counters[]>(1);
    counters_ = own_.get();
    return;
  }
  const auto bytes = group_->size() * static_cast<int64_t>(sizeof(Counters));
  counters_ = reinterpret_cast<Counters*>(group_->shared_alloc(name + "/generation", bytes));
}

Generation::~Generation() = default;

void Generation::await(bool written, uint64_t number, const char* what) {
  const auto behind = [&, this] {
    std::vector<int64_t> ranks;
    for (int64_t r = 0; r < group_->size(); ++r) {
      if ((written ? counters_[r].written : counters_[r].released).load() < number) ranks.push_back(r);
    }
    return ranks;
  };
  const auto ready = [&, this] {
    for (int64_t r = 0; r < group_->size(); ++r) {
      if ((written ? counters_[r].written : counters_[r].released).load() < number) return false;
    }
    return true;
  };
  group_->block_until(
      ready,
      [&, this] { return fmt::format("{} generation {} of \"{}\" on axis {}", what, number, name_, group_->axis()); },
      behind);
}

void Generation::begin_write() {
  await(false, number_, "writing over");
  ++number_;
}

void Generation::end_write() {
  counters_[group_->rank()].written.store(number_);
  if (group_->size() > 1) group_->notify();
}

void Generation::begin_read() { await(true, number_, "reading"); }

void Generation::end_read() {
  counters_[group_->rank()].released.store(number_);
  if (group_->size() > 1) group_->notify();
}

}  // namespace trireme::comm
