#include "memory/purpose.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace trireme::memory {
namespace {

constexpr const char* kNames[] = {"weights",     "master weights", "gradients", "moments",       "moving average",
                                  "activations", "loss",           "workspace", "communication", "other"};
static_assert(std::size(kNames) == kPurposes);

constinit thread_local Purpose current = Purpose::other;
constinit thread_local Tier tier_now = Tier::device;

}  // namespace

int64_t total(const PurposeBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

const char* name_of(Purpose purpose) { return kNames[static_cast<size_t>(purpose)]; }

std::string in_mebibytes(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

std::string to_text(const PurposeBytes& bytes) {
  std::array<size_t, kPurposes> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return bytes[i]; });
  std::string text = in_mebibytes(total(bytes));
  for (const char* separator = ": "; const size_t i : order) {
    if (bytes[i] <= 0) break;
    text += fmt::format("{}{} {}", separator, kNames[i], in_mebibytes(bytes[i]));
    separator = ", ";
  }
  return text;
}

Purpose current_purpose() { return current; }

PurposeScope::PurposeScope(Purpose purpose) : before_(current) { current = purpose; }
PurposeScope::~PurposeScope() { current = before_; }

Tier current_tier() { return tier_now; }

TierScope::TierScope(Tier tier) : before_(tier_now) { tier_now = tier; }
TierScope::~TierScope() { tier_now = before_; }

}  // namespace trireme::memory
