// Collectives whose buffers lie in the arena: ranks read, and where they can write, each other's memory; see
// shm_group.h.
#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.h"
#include "comm/reduce.h"
#include "comm/shm_group.h"

namespace trireme::comm {
namespace {

int64_t offset_in(const Entry& entry, bool output, int64_t tensor, int64_t tensors) {
  if (tensor == 0) return (output ? entry.output_offset : entry.input_offset).load(std::memory_order_relaxed);
  return entry.table[(output ? tensors - 1 : 0) + tensor - 1].load(std::memory_order_relaxed);
}

}  // namespace

std::byte* ShmGroup::input_of(const ShmOperation& operation, int64_t rank, int64_t tensor) const {
  return arena_->base() + offset_in(entry(rank, operation.sequence), false, tensor, operation.in_.tensors());
}

std::byte* ShmGroup::output_of(const ShmOperation& operation, int64_t rank, int64_t tensor) const {
  if (rank == rank_) return static_cast<std::byte*>(operation.output(tensor));
  return arena_->base() + offset_in(entry(rank, operation.sequence), true, tensor, operation.in_.tensors());
}

bool ShmGroup::has_output(const ShmOperation& operation, int64_t rank) const {
  const Kind kind = operation.call.kind;
  if (kind == Kind::reduce || kind == Kind::gather) return rank == operation.call.root;
  return kind != Kind::broadcast || rank != operation.call.root;
}

// Whether the memory that is read lies in the arena, on every rank.
bool ShmGroup::inputs_in_arena(const ShmOperation& operation) const {
  const Call& call = operation.call;
  const int64_t tensors = operation.in_.tensors();
  if (2 * (tensors - 1) > table_words) return false;
  const bool from_root = call.kind == Kind::broadcast || call.kind == Kind::scatter;
  for (int64_t r = 0; r < size_; ++r) {
    if (from_root && r != call.root) continue;
    for (int64_t t = 0; t < tensors; ++t) {
      if (offset_in(entry(r, operation.sequence), false, t, tensors) == not_in_arena) return false;
    }
  }
  return true;
}

// Whether the peers can write the results. Of an uneven all_to_all each rank knows its own side alone.
bool ShmGroup::outputs_in_arena(const ShmOperation& operation) const {
  if (!operation.starts_.empty()) return false;
  const int64_t tensors = operation.in_.tensors();
  for (int64_t r = 0; r < size_; ++r) {
    if (!has_output(operation, r)) continue;
    for (int64_t t = 0; t < tensors; ++t) {
      if (offset_in(entry(r, operation.sequence), true, t, tensors) == not_in_arena) return false;
    }
  }
  return true;
}

// In place the peers write the result where they read the input, so no two may give the same memory.
void ShmGroup::check_own_memory(const ShmOperation& operation) {
  for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
    const int64_t bytes = operation.in_.tensor(t) * operation.element_bytes_;
    for (int64_t r = 0; r < size_; ++r) {
      if (r == rank_ || std::abs(input_of(operation, r, t) - input_of(operation, rank_, t)) >= bytes) continue;
      fail(members_[static_cast<size_t>(r)],
           fmt::format(
               "{}: {} #{} on axis {}: ranks {} and {} gave the same memory of the arena; each rank reduces a buffer "
               "of its own",
               signature(), describe(operation), operation.sequence, axis_, members_[static_cast<size_t>(rank_)],
               members_[static_cast<size_t>(r)]));
    }
  }
}

// The outputs of an all_gather into one memory.
void ShmGroup::check_one_memory(const ShmOperation& operation) {
  for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
    for (int64_t r = 0; r < size_; ++r) {
      const int64_t theirs = offset_in(entry(r, operation.sequence), true, t, operation.in_.tensors());
      if (theirs == output_offset(operation, t) && theirs != not_in_arena) continue;
      fail(members_[static_cast<size_t>(r)],
           fmt::format("{}: {} #{} on axis {}: ranks {} and {} gave different memory for output {}; it has to be the "
                       "same for all ranks",
                       signature(), describe(operation), operation.sequence, axis_,
                       members_[static_cast<size_t>(rank_)], members_[static_cast<size_t>(r)], t));
    }
  }
}

// ---- shared

// Of a sum over all ranks each piece belongs to one rank, whose result is everybody's; otherwise to each output.
int64_t ShmGroup::pieces_of(const ShmOperation& operation, int64_t owner) const {
  if (!is_dealt(operation.call.kind)) return has_output(operation, owner) ? operation.pieces_ : 0;
  return operation.pieces_ * (owner + 1) / size_ - operation.pieces_ * owner / size_;
}

void ShmGroup::do_piece(const ShmOperation& operation, int64_t owner, int64_t piece) {
  const Call& call = operation.call;
  if (call.once) {
    take_once(operation, piece * operation.piece_, operation.piece_, owner);
    return;
  }
  if (!is_dealt(call.kind)) {
    take(operation, piece * operation.piece_, operation.piece_, Source::tensors, owner);
    return;
  }
  std::array<const void*, max_arena_ranks> inputs;
  std::array<void*, max_arena_ranks> outputs;
  const int64_t first = (operation.pieces_ * owner / size_ + piece) * operation.piece_;
  operation.in_.visit(0, first, operation.piece_, [&](int64_t t, int64_t within, int64_t /*at*/, int64_t n) {
    const int64_t offset = within * operation.element_bytes_;
    size_t given = 0;
    for (int64_t r = 0; r < size_; ++r) {
      inputs[static_cast<size_t>(r)] = input_of(operation, r, t) + offset;
      if (has_output(operation, r)) outputs[given++] = output_of(operation, r, t) + offset;
    }
    reduce({outputs.data(), given}, {inputs.data(), static_cast<size_t>(size_)}, n, call.dtype, call.reduction);
  });
}

bool ShmGroup::step_shared(ShmOperation& operation) {
  bool moved = false;
  if (!operation.worked_) {
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t owner = (rank_ + i) % size_;  // this rank's own pieces first, which are near
      Entry& theirs = entry(owner, operation.sequence);
      const int64_t owned = pieces_of(operation, owner);
      while (theirs.claimed.load(std::memory_order_relaxed) < owned) {
        const int64_t piece = theirs.claimed.fetch_add(1, std::memory_order_relaxed);
        if (piece >= owned) break;
        do_piece(operation, owner, piece);
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

// ---- pull

bool ShmGroup::step_pull(ShmOperation& operation) {
  bool moved = false;
  if (!operation.worked_) {
    if (operation.call.once)
      take_once(operation, 0, operation.largest_block_, rank_);
    else
      take(operation, 0, operation.largest_block_, Source::tensors, rank_);
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

}  // namespace trireme::comm
