// Ranks as threads over one arena: what the thread sanitizer can see, and quick to start.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/arena.h"
#include "comm/shm_group.h"

namespace trireme::comm::testing {

/// Runs `body(group)` on `ranks` threads. Returns what each threw ("" for nothing); a rank that throws does not abort
/// the others, unless the body does.
inline std::vector<std::string> run_ranks(int64_t ranks,
                                          const std::function<void(const std::shared_ptr<ShmGroup>&)>& body,
                                          std::chrono::milliseconds timeout,
                                          const std::shared_ptr<const GroupSettings>& settings) {
  const auto arena = Arena::create(ranks, int64_t{4} << 30);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        GroupOptions options;
        options.axis = "data";
        options.rank = r;
        options.timeout = timeout;
        options.settings = settings;
        body(std::make_shared<ShmGroup>(arena, options));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> run_ranks(int64_t ranks,
                                          const std::function<void(const std::shared_ptr<ShmGroup>&)>& body,
                                          std::chrono::milliseconds timeout = std::chrono::seconds(60),
                                          CheckLevel check = CheckLevel::calls) {
  const auto settings = std::make_shared<GroupSettings>();
  settings->check = check;
  return run_ranks(ranks, body, timeout, settings);
}

/// Of what run_ranks returns.
inline void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

inline Call make_call(Kind kind, DType dtype, int64_t count, const void* input, void* output, int64_t root = 0,
                      Reduction reduction = {}) {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.count = count;
  call.input = input;
  call.output = output;
  call.root = root;
  call.reduction = reduction;
  return call;
}

}  // namespace trireme::comm::testing
