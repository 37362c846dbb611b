// How a collective gets done once it is posted; see group.h.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/group.h"
#include "comm/reduce.h"

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

bool has_blocks(Kind kind) { return kind == Kind::reduce_scatter || kind == Kind::all_to_all; }

}  // namespace

bool Group::step(Operation& operation) {
  if (!operation.arrived_) {
    if (!all_posted(operation)) return false;
    check_agreement(operation);
    choose_way(operation);
    operation.arrived_ = true;
  }
  const Call& call = operation.call;
  switch (operation.way_) {
    case Operation::Way::inlined: {
      for (int64_t r = 0; r < size_; ++r) sources_[static_cast<size_t>(r)] = entry(r, operation.sequence).data;
      take(operation, 0, call.count, sources_, call.count * operation.element_bytes_);
      complete(operation);
      return true;
    }
    case Operation::Way::direct_reduce:
      return step_direct_reduce(operation);
    case Operation::Way::direct_pull:
      return step_direct_pull(operation);
    case Operation::Way::staged:
      return step_staged(operation);
  }
  return false;
}

bool Group::all_posted(Operation& operation) {
  for (; operation.seen_ < size_; ++operation.seen_) {
    if (entry(operation.seen_, operation.sequence).sequence.load() != operation.sequence) return false;
  }
  return true;
}

void Group::check_agreement(const Operation& operation) {
  const uint64_t packed = pack(operation.call);
  for (int64_t r = 0; r < size_; ++r) {
    const Entry& theirs = entry(r, operation.sequence);
    const uint64_t their_packed = theirs.packed.load(std::memory_order_relaxed);
    const int64_t their_count = theirs.count.load(std::memory_order_relaxed);
    if (their_packed == packed && their_count == operation.call.count) continue;
    fail(members_[static_cast<size_t>(r)],
         fmt::format("{}: call #{} on axis {} differs: rank {} calls {}, rank {} calls {}", signature(),
                     operation.sequence, axis_, members_[static_cast<size_t>(rank_)], describe(operation.call),
                     members_[static_cast<size_t>(r)], describe(their_packed, their_count)));
  }
}

void Group::choose_way(Operation& operation) {
  const Call& call = operation.call;
  const int64_t bytes = call.count * operation.element_bytes_;
  if (bytes * (has_blocks(call.kind) ? size_ : 1) <= inline_bytes) {
    operation.way_ = Operation::Way::inlined;
    return;
  }
  const auto offset = [&](int64_t r) {
    return entry(r, operation.sequence).input_offset.load(std::memory_order_relaxed);
  };
  bool in_arena = true;
  for (int64_t r = 0; r < size_; ++r) {
    if (call.kind == Kind::broadcast && r != call.root) continue;
    in_arena = in_arena && offset(r) != not_in_arena;
  }
  if (!in_arena) {
    operation.way_ = Operation::Way::staged;
    const int64_t per_slot = slot_bytes / operation.element_bytes_ / (has_blocks(call.kind) ? size_ : 1);
    operation.piece_ = std::max<int64_t>(per_slot / 16 * 16, 1);
    operation.pieces_ = ceil_div(call.count, operation.piece_);
    operation.base_ = staged_;
    staged_ += static_cast<uint64_t>(operation.pieces_);
    return;
  }
  // Only in place: the peers write the result where they read the input.
  if (!in_place(call)) {
    operation.way_ = Operation::Way::direct_pull;
    return;
  }
  for (int64_t r = 0; r < size_; ++r) {
    if (r == rank_ || std::abs(offset(r) - offset(rank_)) >= bytes) continue;
    fail(members_[static_cast<size_t>(r)],
         fmt::format(
             "{}: {} #{} on axis {}: ranks {} and {} gave the same memory of the arena; each rank reduces a buffer "
             "of its own",
             signature(), describe(call), operation.sequence, axis_, members_[static_cast<size_t>(rank_)],
             members_[static_cast<size_t>(r)]));
  }
  operation.way_ = Operation::Way::direct_reduce;
  const int64_t piece_bytes = std::clamp(ceil_div(bytes, size_), smallest_piece_bytes, largest_piece_bytes);
  operation.piece_ = ceil_div(piece_bytes, 128) * 128 / operation.element_bytes_;  // ranks do not share lines
  operation.pieces_ = ceil_div(call.count, operation.piece_);
}

// ---- direct reduce

int64_t Group::pieces_of(const Operation& operation, int64_t owner) const {
  return operation.pieces_ * (owner + 1) / size_ - operation.pieces_ * owner / size_;
}

bool Group::step_direct_reduce(Operation& operation) {
  bool moved = false;
  if (!operation.worked_) {
    std::vector<void*> outputs(static_cast<size_t>(size_));
    std::vector<const void*> inputs(static_cast<size_t>(size_));
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t owner = (rank_ + i) % size_;  // this rank's own pieces first, which are near
      Entry& theirs = entry(owner, operation.sequence);
      const int64_t first_piece = operation.pieces_ * owner / size_;
      const int64_t owned = pieces_of(operation, owner);
      while (theirs.claimed.load(std::memory_order_relaxed) < owned) {
        const int64_t mine = theirs.claimed.fetch_add(1, std::memory_order_relaxed);
        if (mine >= owned) break;
        const int64_t start = (first_piece + mine) * operation.piece_;
        const int64_t length = std::min(operation.piece_, operation.call.count - start);
        for (int64_t r = 0; r < size_; ++r) {
          const int64_t offset = entry(r, operation.sequence).input_offset.load(std::memory_order_relaxed);
          outputs[static_cast<size_t>(r)] = arena_->base() + offset + start * operation.element_bytes_;
          inputs[static_cast<size_t>(r)] = outputs[static_cast<size_t>(r)];
        }
        reduce(outputs, inputs, length, operation.call.dtype, operation.call.op);
        if (theirs.finished.fetch_add(1) + 1 == owned) notify();
        moved = true;
      }
    }
    operation.worked_ = true;
  }
  for (int64_t r = 0; r < size_; ++r) {
    if (entry(r, operation.sequence).finished.load() != pieces_of(operation, r)) return moved;
  }
  complete(operation);
  return true;
}

// ---- direct pull

bool Group::step_direct_pull(Operation& operation) {
  const Call& call = operation.call;
  bool moved = false;
  if (!operation.worked_) {
    for (int64_t r = 0; r < size_; ++r) {
      sources_[static_cast<size_t>(r)] =
          arena_->base() + entry(r, operation.sequence).input_offset.load(std::memory_order_relaxed);
    }
    take(operation, 0, call.count, sources_, call.count * operation.element_bytes_);
    entry(rank_, operation.sequence).finished.store(1);
    notify();
    operation.worked_ = moved = true;
  }
  // The input may be changed only when all have read it.
  for (int64_t r = 0; r < size_; ++r) {
    if (entry(r, operation.sequence).finished.load() == 0) return moved;
  }
  complete(operation);
  return true;
}

// ---- staged

bool Group::step_staged(Operation& operation) {
  const Call& call = operation.call;
  const auto length_of = [&](int64_t piece) {
    return std::min(operation.piece_, call.count - piece * operation.piece_);
  };
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
        if (call.kind != Kind::broadcast || call.root == rank_) {
          put(operation, operation.put_ * operation.piece_, length_of(operation.put_),
              slots_[rank_].data[number % slot_count]);
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
        const int64_t length = length_of(operation.taken_);
        for (int64_t r = 0; r < size_; ++r) sources_[static_cast<size_t>(r)] = slots_[r].data[number % slot_count];
        take(operation, operation.taken_ * operation.piece_, length, sources_, length * operation.element_bytes_);
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

void Group::put(const Operation& operation, int64_t first, int64_t length, std::byte* to) const {
  const Call& call = operation.call;
  const int64_t element = operation.element_bytes_;
  const auto* from = static_cast<const std::byte*>(call.input != nullptr ? call.input : call.output);
  const int64_t blocks = has_blocks(call.kind) ? size_ : 1;
  for (int64_t b = 0; b < blocks; ++b) {
    copy(to + b * length * element, from + (b * call.count + first) * element, length * element);
  }
}

// `from[r]` is what rank r gave; in it the blocks are `block_bytes` apart.
void Group::take(const Operation& operation, int64_t first, int64_t length, const std::vector<const std::byte*>& from,
                 int64_t block_bytes) {
  const Call& call = operation.call;
  const int64_t element = operation.element_bytes_;
  auto* to = static_cast<std::byte*>(call.output) + first * element;
  if (length == 0) return;
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter: {
      const int64_t shift = call.kind == Kind::reduce_scatter ? rank_ * block_bytes : 0;
      std::array<const void*, max_arena_ranks> inputs;
      for (int64_t r = 0; r < size_; ++r) inputs[static_cast<size_t>(r)] = from[static_cast<size_t>(r)] + shift;
      void* output = to;
      reduce({&output, 1}, {inputs.data(), static_cast<size_t>(size_)}, length, call.dtype, call.op);
      break;
    }
    case Kind::all_gather:
      for (int64_t r = 0; r < size_; ++r) {
        copy(to + r * call.count * element, from[static_cast<size_t>(r)], length * element);
      }
      break;
    case Kind::broadcast:
      if (rank_ != call.root) copy(to, from[static_cast<size_t>(call.root)], length * element);
      break;
    case Kind::all_to_all:
      for (int64_t r = 0; r < size_; ++r) {
        copy(to + r * call.count * element, from[static_cast<size_t>(r)] + rank_ * block_bytes, length * element);
      }
      break;
    default:
      break;
  }
}

}  // namespace trireme::comm
