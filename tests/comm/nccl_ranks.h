// Ranks as threads over a plug-in of NCCL's kind, which TRIREME_NCCL_PLUGIN names: the stand-in (stand_in.cpp), for the
// same test bodies as ranks.h has for shared memory. TRIREME_TEST_NCCL=1 asks for it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/nccl_group.h"

namespace trireme::comm::testing {

inline bool over_nccl() {
  const char* asked = std::getenv("TRIREME_TEST_NCCL");
  return asked != nullptr && std::string(asked) == "1";
}

/// What the ranks of one process see.
class ProcessBoard final : public Board {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  std::optional<std::string> get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

/// As run_ranks() of ranks.h. A rank that throws tells the others, as the trainer does.
inline std::vector<std::string> run_nccl_ranks(int64_t ranks,
                                               const std::function<void(const std::shared_ptr<NcclGroup>&)>& body,
                                               std::chrono::milliseconds timeout = std::chrono::seconds(60),
                                               CheckLevel check = CheckLevel::calls) {
  const NcclTable& nccl = load_nccl();
  const auto board = std::make_shared<ProcessBoard>();
  const auto settings = std::make_shared<GroupSettings>();
  settings->check = check;
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::shared_ptr<NcclGroup> group;
      try {
        GroupOptions options;
        options.axis = "data";
        options.rank = r;
        options.timeout = timeout;
        options.settings = settings;
        options.members.resize(static_cast<size_t>(ranks));
        std::iota(options.members.begin(), options.members.end(), 0);
        group = std::make_shared<NcclGroup>(
            std::make_shared<NcclWorld>(nccl, std::make_shared<HostDevice>(nccl), board, r, ranks, timeout), options);
        body(group);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
        if (group != nullptr) group->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace trireme::comm::testing
