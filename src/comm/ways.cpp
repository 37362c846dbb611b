// How a collective gets done once it is posted; see group.h.
#include <algorithm>
#include <array>
#include <cstdlib>
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

int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

bool Group::step(Operation& operation) {
  if (!operation.arrived_) {
    if (!all_posted(operation)) return false;
    check_agreement(operation);
    choose_way(operation);
    operation.arrived_ = true;
    recorder_->started(operation.record_, now());
    if (link_.speed().emulated()) {
      int64_t arrival = 0;
      for (int64_t r = 0; r < size_; ++r) {
        arrival = std::max(arrival, entry(r, operation.sequence).posted.load(std::memory_order_relaxed));
      }
      operation.release_ = link_.leave(arrival, wire_cost(operation));
    }
  }
  switch (operation.way_) {
    case Operation::Way::inlined: {
      for (int64_t r = 0; r < size_; ++r) {
        const int64_t start = operation.starts_.empty()
                                  ? (splits_input(operation.call.kind) ? operation.in_.before(rank_) : 0)
                                  : operation.starts_[static_cast<size_t>(r)];
        flat_[static_cast<size_t>(r)] = entry(r, operation.sequence).data + start * operation.element_bytes_;
      }
      take(operation, 0, operation.largest_block_, Source::flat);
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

int64_t Group::offset_of(const Operation& operation, int64_t rank, int64_t tensor) const {
  const Entry& theirs = entry(rank, operation.sequence);
  return (tensor == 0 ? theirs.input_offset : theirs.table[tensor - 1]).load(std::memory_order_relaxed);
}

// Whether the memory that is read lies in the arena, on every rank.
bool Group::in_arena(const Operation& operation) const {
  const Call& call = operation.call;
  const int64_t tensors = operation.in_.tensors();
  if (tensors - 1 > table_words) return false;
  const bool from_root = call.kind == Kind::broadcast || call.kind == Kind::scatter;
  for (int64_t r = 0; r < size_; ++r) {
    if (from_root && r != call.root) continue;
    for (int64_t t = 0; t < tensors; ++t) {
      if (offset_of(operation, r, t) == not_in_arena) return false;
    }
  }
  return true;
}

// In place the peers write the result where they read the input, so no two may give the same memory.
void Group::check_own_memory(const Operation& operation) {
  for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
    const int64_t bytes = operation.in_.tensor(t) * operation.element_bytes_;
    const int64_t mine = offset_of(operation, rank_, t);
    for (int64_t r = 0; r < size_; ++r) {
      if (r == rank_ || std::abs(offset_of(operation, r, t) - mine) >= bytes) continue;
      fail(members_[static_cast<size_t>(r)],
           fmt::format(
               "{}: {} #{} on axis {}: ranks {} and {} gave the same memory of the arena; each rank reduces a buffer "
               "of its own",
               signature(), describe(operation), operation.sequence, axis_, members_[static_cast<size_t>(rank_)],
               members_[static_cast<size_t>(r)]));
    }
  }
}

void Group::choose_way(Operation& operation) {
  const Call& call = operation.call;
  const int64_t element = operation.element_bytes_;
  if (operation.most_given_ * element <= inline_bytes) {
    operation.way_ = Operation::Way::inlined;
    return;
  }
  if (!in_arena(operation)) {
    operation.way_ = Operation::Way::staged;
    const int64_t per_slot = slot_bytes / element / (splits_input(call.kind) ? size_ : 1);
    operation.piece_ = std::max<int64_t>(per_slot / 16 * 16, 1);
    operation.pieces_ = ceil_div(operation.largest_block_, operation.piece_);
    operation.base_ = staged_;
    staged_ += static_cast<uint64_t>(operation.pieces_);
    return;
  }
  if (!in_place(call)) {
    operation.way_ = Operation::Way::direct_pull;
    return;
  }
  check_own_memory(operation);
  operation.way_ = Operation::Way::direct_reduce;
  const int64_t bytes = operation.in_.total() * element;
  const int64_t piece_bytes = std::clamp(ceil_div(bytes, size_), smallest_piece_bytes, largest_piece_bytes);
  operation.piece_ = ceil_div(piece_bytes, 128) * 128 / element;  // ranks do not share lines
  operation.pieces_ = ceil_div(operation.in_.total(), operation.piece_);
}

// ---- direct reduce

int64_t Group::pieces_of(const Operation& operation, int64_t owner) const {
  return operation.pieces_ * (owner + 1) / size_ - operation.pieces_ * owner / size_;
}

bool Group::step_direct_reduce(Operation& operation) {
  bool moved = false;
  if (!operation.worked_) {
    const Call& call = operation.call;
    std::vector<const void*> inputs(static_cast<size_t>(size_));
    std::vector<void*> outputs(call.kind == Kind::reduce ? 1 : inputs.size());
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t owner = (rank_ + i) % size_;  // this rank's own pieces first, which are near
      Entry& theirs = entry(owner, operation.sequence);
      const int64_t first_piece = operation.pieces_ * owner / size_;
      const int64_t owned = pieces_of(operation, owner);
      while (theirs.claimed.load(std::memory_order_relaxed) < owned) {
        const int64_t mine = theirs.claimed.fetch_add(1, std::memory_order_relaxed);
        if (mine >= owned) break;
        operation.in_.visit(0, (first_piece + mine) * operation.piece_, operation.piece_,
                            [&](int64_t t, int64_t within, int64_t /*at*/, int64_t n) {
                              for (int64_t r = 0; r < size_; ++r) {
                                std::byte* at =
                                    arena_->base() + offset_of(operation, r, t) + within * operation.element_bytes_;
                                inputs[static_cast<size_t>(r)] = at;
                                if (outputs.size() > 1) outputs[static_cast<size_t>(r)] = at;
                                if (outputs.size() == 1 && r == call.root) outputs[0] = at;
                              }
                              reduce(outputs, inputs, n, call.dtype, call.reduction);
                            });
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
  bool moved = false;
  if (!operation.worked_) {
    take(operation, 0, operation.largest_block_, Source::tensors);
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
        take(operation, operation.taken_ * operation.piece_, operation.piece_, Source::flat);
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
void Group::put(const Operation& operation, int64_t first, int64_t length, std::byte* to, int64_t stride) const {
  const int64_t element = operation.element_bytes_;
  for (int64_t b = 0; b < operation.in_.blocks(); ++b) {
    operation.in_.visit(b, first, length, [&](int64_t t, int64_t within, int64_t at, int64_t n) {
      const auto* from = static_cast<const std::byte*>(operation.input(t));
      copy(to + (b * stride + at) * element, from + (operation.in_.start(t, b) + within) * element, n * element);
    });
  }
}

void Group::take(const Operation& operation, int64_t first, int64_t length, Source source) {
  const Call& call = operation.call;
  const int64_t element = operation.element_bytes_;
  // Where an element that rank r has for this rank lies: `within` counts from the start of the block in its tensor.
  const auto from = [&](int64_t r, int64_t t, int64_t within, int64_t at) -> const std::byte* {
    if (source == Source::flat) return flat_[static_cast<size_t>(r)] + at * element;
    const int64_t start = !operation.starts_.empty() ? operation.starts_[static_cast<size_t>(r)]
                          : splits_input(call.kind)  ? operation.in_.start(t, rank_)
                                                     : 0;
    return arena_->base() + offset_of(operation, r, t) + (start + within) * element;
  };
  const auto to = [&](int64_t block, int64_t t, int64_t within) {
    return static_cast<std::byte*>(operation.output(t)) + (operation.out_.start(t, block) + within) * element;
  };
  if ((call.kind == Kind::reduce || call.kind == Kind::gather) && rank_ != call.root) return;
  if (call.kind == Kind::broadcast && rank_ == call.root) return;
  if (is_reduction(call.kind)) {
    std::array<const void*, max_arena_ranks> inputs;
    operation.out_.visit(0, first, length, [&](int64_t t, int64_t within, int64_t at, int64_t n) {
      for (int64_t r = 0; r < size_; ++r) inputs[static_cast<size_t>(r)] = from(r, t, within, at);
      void* output = to(0, t, within);
      reduce({&output, 1}, {inputs.data(), static_cast<size_t>(size_)}, n, call.dtype, call.reduction);
    });
    return;
  }
  for (int64_t b = 0; b < operation.out_.blocks(); ++b) {
    const int64_t giver = joins_output(call.kind) ? b : call.root;
    operation.out_.visit(b, first, length, [&](int64_t t, int64_t within, int64_t at, int64_t n) {
      copy(to(b, t, within), from(giver, t, within, at), n * element);
    });
  }
}

}  // namespace trireme::comm
