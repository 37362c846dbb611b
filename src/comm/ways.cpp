// How a collective gets done once it is posted; see shm_group.h.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "comm/reduce.h"
#include "comm/shm_group.h"

namespace trireme::comm {
namespace {

// Pieces small enough that a rank that comes late still finds some to do, and that n of them stay in a cache; large
// enough that taking one on costs nothing.
constexpr int64_t largest_piece_bytes = 128 << 10;
constexpr int64_t smallest_piece_bytes = 4 << 10;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

bool ShmGroup::step(ShmOperation& operation) {
  if (!operation.arrived_) {
    if (!all_posted(operation)) return false;
    check_agreement(operation);
    choose_way(operation);
    operation.arrived_ = true;
    recorder_->started(operation.record_, steady_nanoseconds());
    if (link_.speed().emulated()) {
      int64_t arrival = 0;
      for (int64_t r = 0; r < size_; ++r) {
        arrival = std::max(arrival, entry(r, operation.sequence).posted.load(std::memory_order_relaxed));
      }
      operation.release_ = link_.leave(arrival, wire_cost(operation));
    }
  }
  switch (operation.way_) {
    case ShmOperation::Way::inlined: {
      for (int64_t r = 0; r < size_; ++r) {
        const int64_t start = operation.starts_.empty()
                                  ? (splits_input(operation.call.kind) ? operation.in_.before(rank_) : 0)
                                  : operation.starts_[static_cast<size_t>(r)];
        flat_[static_cast<size_t>(r)] = entry(r, operation.sequence).data + start * operation.element_bytes_;
      }
      take(operation, 0, operation.largest_block_, Source::flat, rank_);
      complete(operation);
      return true;
    }
    case ShmOperation::Way::shared:
      return step_shared(operation);
    case ShmOperation::Way::pull:
      return step_pull(operation);
    case ShmOperation::Way::staged:
      return step_staged(operation);
  }
  return false;
}

bool ShmGroup::all_posted(ShmOperation& operation) {
  for (; operation.seen_ < size_; ++operation.seen_) {
    if (entry(operation.seen_, operation.sequence).sequence.load() != operation.sequence) return false;
  }
  return true;
}

void ShmGroup::choose_way(ShmOperation& operation) {
  const Call& call = operation.call;
  const int64_t element = operation.element_bytes_;
  const auto cut = [&](int64_t share, int64_t width) {
    const int64_t piece_bytes = ceil_div(std::clamp(share, smallest_piece_bytes, largest_piece_bytes), width);
    operation.piece_ = ceil_div(piece_bytes, 128) * 128 / element;  // ranks do not share lines
    operation.pieces_ = ceil_div(operation.largest_block_, operation.piece_);
  };
  if (call.once) {  // whatever its size: a result that each rank writes for itself would be written over a later one
    check_one_memory(operation);
    operation.way_ = inputs_in_arena(operation) ? ShmOperation::Way::shared : ShmOperation::Way::pull;
    cut(operation.largest_block_ * element / 4, 1);
    return;
  }
  if (operation.most_given_ * element <= inline_bytes) {
    operation.way_ = ShmOperation::Way::inlined;
    return;
  }
  if (!inputs_in_arena(operation)) {
    operation.way_ = ShmOperation::Way::staged;
    const int64_t per_slot = slot_bytes / element / (splits_input(call.kind) ? size_ : 1);
    operation.piece_ = std::max<int64_t>(per_slot / 16 * 16, 1);
    operation.pieces_ = ceil_div(operation.largest_block_, operation.piece_);
    operation.base_ = staged_;
    staged_ += static_cast<uint64_t>(operation.pieces_);
    return;
  }
  if (in_place(call)) check_own_memory(operation);
  if (!outputs_in_arena(operation)) {
    operation.way_ = ShmOperation::Way::pull;
    return;
  }
  operation.way_ = ShmOperation::Way::shared;
  // A piece covers the same range of each block of an output.
  const int64_t width = joins_output(call.kind) ? size_ : 1;
  const int64_t share = ceil_div(operation.largest_block_ * width * element, is_dealt(call.kind) ? size_ : 4);
  cut(share, width);
}

// ---- staged

bool ShmGroup::step_staged(ShmOperation& operation) {
  const Call& call = operation.call;
  const bool gives = (call.kind != Kind::broadcast && call.kind != Kind::scatter) || call.root == rank_;
  const auto all_reached = [&](std::atomic<uint64_t> RankControl::*counter, uint64_t value) {
    for (int64_t r = 0; r < size_; ++r) {
      if ((ranks_[r].*counter).load() < value) return false;
    }
    return true;
  };
  bool moved_ever = false;
  for (bool moved = true; moved;) {
    moved = false;
    if (operation.put_ < operation.pieces_) {
      const uint64_t number = operation.base_ + static_cast<uint64_t>(operation.put_);
      const bool slot_free = number < slot_count || all_reached(&RankControl::consumed, number + 1 - slot_count);
      if (slot_free) {
        if (gives) {
          put(operation, operation.put_ * operation.piece_, operation.piece_, slots_[rank_].data[number % slot_count],
              operation.piece_);
        }
        ++operation.put_;
        ranks_[rank_].staged.store(number + 1);
        notify();
        moved = true;
      }
    }
    if (operation.taken_ < operation.put_) {
      const uint64_t number = operation.base_ + static_cast<uint64_t>(operation.taken_);
      if (all_reached(&RankControl::staged, number + 1)) {
        const int64_t shift = splits_input(call.kind) ? rank_ * operation.piece_ * operation.element_bytes_ : 0;
        for (int64_t r = 0; r < size_; ++r) {
          flat_[static_cast<size_t>(r)] = slots_[r].data[number % slot_count] + shift;
        }
        take(operation, operation.taken_ * operation.piece_, operation.piece_, Source::flat, rank_);
        ++operation.taken_;
        ranks_[rank_].consumed.store(number + 1);
        notify();
        moved = true;
      }
    }
    moved_ever |= moved;
  }
  if (operation.taken_ == operation.pieces_) {
    complete(operation);
    return true;
  }
  return moved_ever;
}

// ---- moving elements [first, first + length) of every block

// Block b goes to `to` + b * stride elements.
void ShmGroup::put(const ShmOperation& operation, int64_t first, int64_t length, std::byte* to, int64_t stride) const {
  const int64_t element = operation.element_bytes_;
  for (int64_t b = 0; b < operation.in_.blocks(); ++b) {
    operation.in_.visit(b, first, length, [&](int64_t t, int64_t within, int64_t at, int64_t n) {
      const auto* from = static_cast<const std::byte*>(operation.input(t));
      copy(to + (b * stride + at) * element, from + (operation.in_.start(t, b) + within) * element, n * element);
    });
  }
}

// The result of `target`, into its output: this rank's own, or that of a peer that is not at it yet.
void ShmGroup::take(const ShmOperation& operation, int64_t first, int64_t length, Source source, int64_t target) {
  if (!has_output(operation, target)) return;
  const Call& call = operation.call;
  const int64_t element = operation.element_bytes_;
  // Where an element that rank r has for the target lies: `within` counts from the start of the block in its tensor.
  const auto from = [&](int64_t r, int64_t t, int64_t within, int64_t at) -> const std::byte* {
    if (source == Source::flat) return flat_[static_cast<size_t>(r)] + at * element;
    const int64_t start = !operation.starts_.empty() ? operation.starts_[static_cast<size_t>(r)]
                          : splits_input(call.kind)  ? operation.in_.start(t, target)
                                                     : 0;
    return input_of(operation, r, t) + (start + within) * element;
  };
  const bool others_part = target != rank_ && splits_input(call.kind) && !joins_output(call.kind);
  const Layout theirs = others_part ? operation.in_.only(target) : Layout();
  const Layout& out = others_part ? theirs : operation.out_;
  const auto to = [&](int64_t block, int64_t t, int64_t within) {
    return output_of(operation, target, t) + (out.start(t, block) + within) * element;
  };
  if (is_reduction(call.kind)) {
    std::array<const void*, max_arena_ranks + 1> inputs;
    out.visit(0, first, length, [&](int64_t t, int64_t within, int64_t at, int64_t n) {
      void* output = to(0, t, within);
      size_t given = 0;
      if (call.reduction.accumulate) inputs[given++] = output;
      for (int64_t r = 0; r < size_; ++r) inputs[given++] = from(r, t, within, at);
      reduce({&output, 1}, {inputs.data(), given}, n, call.dtype, call.reduction);
    });
    return;
  }
  for (int64_t b = 0; b < out.blocks(); ++b) {
    const int64_t giver = joins_output(call.kind) ? b : call.root;
    out.visit(b, first, length, [&](int64_t t, int64_t within, int64_t at, int64_t n) {
      copy(to(b, t, within), from(giver, t, within, at), n * element);
    });
  }
}

// The block of `owner` into the one memory of all ranks, cast on its way where types differ.
void ShmGroup::take_once(const ShmOperation& operation, int64_t first, int64_t length, int64_t owner) {
  const Call& call = operation.call;
  operation.out_.visit(owner, first, length, [&](int64_t t, int64_t within, int64_t /*at*/, int64_t n) {
    const auto* from =
        (owner == rank_ ? static_cast<const std::byte*>(operation.input(t)) : input_of(operation, owner, t)) +
        within * operation.input_bytes_;
    auto* to = static_cast<std::byte*>(operation.output(t)) +
               (operation.out_.start(t, owner) + within) * operation.element_bytes_;
    if (call.input_dtype == call.dtype)
      copy(to, from, n * operation.element_bytes_);
    else
      convert(to, call.dtype, from, call.input_dtype, n);
  });
}

}  // namespace trireme::comm
