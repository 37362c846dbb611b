// Comparing the calls of all ranks, and what only all of them together tell; see shm_group.h.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/host.h"
#include "comm/shm_group.h"

namespace trireme::comm {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// The first few of a list, which may be long.
std::string shorten(const std::vector<int64_t>& values) {
  constexpr size_t most = 16;
  if (values.size() <= most) return fmt::format("[{}]", fmt::join(values, ", "));
  return fmt::format("[{}, ... {} in all]", fmt::join(values.begin(), values.begin() + most, ", "), values.size());
}

}  // namespace

// What a rank called, as its entry tells: `all_gather(F32 x 12, uneven, counts [4, 8], shape [4, 3])`.
std::string ShmGroup::describe_entry(const Entry& entry) const {
  const uint64_t packed = entry.packed.load(relaxed);
  const Unpacked call = unpack(packed);
  std::string text = comm::describe(packed, entry.count.load(relaxed));
  const double factor = entry.factor.load(relaxed);
  if (is_reduction(call.kind) && factor != 1) text += fmt::format(" times {}", factor);
  const auto counts = [&](int64_t first, int64_t n) {
    std::vector<int64_t> values;
    for (int64_t i = first; i < std::min(first + n, table_words); ++i) values.push_back(entry.table[i].load(relaxed));
    return shorten(values);
  };
  if (call.kind == Kind::all_to_all && call.uneven) {
    text += fmt::format(" to each rank {}, from each rank {}", counts(0, size_), counts(size_, size_));
  } else if (call.uneven || call.tensors > 1) {
    text += fmt::format(" of counts {}", counts(2 * (call.tensors - 1), call.tensors * (call.uneven ? size_ : 1)));
  }
  if (settings_->check >= CheckLevel::shapes) {
    std::vector<int64_t> shape;
    for (int64_t d = 0; d < entry.dims.load(relaxed); ++d) shape.push_back(entry.shape[d].load(relaxed));
    text += fmt::format(" of shape {}", shorten(shape));
  }
  return text;
}

void ShmGroup::check_agreement(ShmOperation& operation) {
  const Entry& mine = entry(rank_, operation.sequence);
  const bool exchange = operation.call.kind == Kind::all_to_all && operation.call.extents != nullptr;
  for (int64_t r = 0; r < size_; ++r) {
    const Entry& theirs = entry(r, operation.sequence);
    const bool same_count = exchange || theirs.count.load(relaxed) == operation.call.count;
    if (theirs.packed.load(relaxed) == operation.packed_ && same_count &&
        theirs.detail.load(relaxed) == mine.detail.load(relaxed))
      continue;
    fail(members_[static_cast<size_t>(r)],
         fmt::format("{}: call #{} on axis {} differs: rank {} on {} calls {}, rank {} on {} calls {}", signature(),
                     operation.sequence, axis_, members_[static_cast<size_t>(rank_)], host_name(), describe_entry(mine),
                     members_[static_cast<size_t>(r)], host_of(r), describe_entry(theirs)));
  }
  if (exchange) read_exchange(operation);
}

// Uneven all_to_all: each rank knows what it gives and gets; together that is a matrix, which must fit.
void ShmGroup::read_exchange(ShmOperation& operation) {
  const auto word = [&](int64_t rank, int64_t at) { return entry(rank, operation.sequence).table[at].load(relaxed); };
  const auto gives = [&](int64_t from, int64_t to) { return word(from, to); };
  const auto gets = [&](int64_t to, int64_t from) { return word(to, size_ + from); };
  operation.starts_.assign(static_cast<size_t>(size_), 0);
  operation.largest_block_ = operation.most_given_ = operation.most_exchanged_ = 0;
  for (int64_t from = 0; from < size_; ++from) {
    int64_t given = 0;
    int64_t got = 0;
    for (int64_t to = 0; to < size_; ++to) {
      if (gives(from, to) != gets(to, from)) {
        fail(members_[static_cast<size_t>(to)],
             fmt::format("{}: all_to_all #{} on axis {} differs: rank {} on {} gives {} elements to rank {} and calls "
                         "{}; rank {} on {} expects {} from it and calls {}",
                         signature(), operation.sequence, axis_, members_[static_cast<size_t>(from)], host_of(from),
                         gives(from, to), members_[static_cast<size_t>(to)],
                         describe_entry(entry(from, operation.sequence)), members_[static_cast<size_t>(to)],
                         host_of(to), gets(to, from), describe_entry(entry(to, operation.sequence))));
      }
      if (to == rank_) operation.starts_[static_cast<size_t>(from)] = given;
      given += gives(from, to);
      got += gets(from, to);
      operation.largest_block_ = std::max(operation.largest_block_, gives(from, to));
    }
    operation.most_given_ = std::max(operation.most_given_, given);
    operation.most_exchanged_ =
        std::max({operation.most_exchanged_, given - gives(from, from), got - gets(from, from)});
  }
}

}  // namespace trireme::comm
