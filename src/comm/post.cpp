// Posting a call: what its entry tells the peers; see shm_group.h.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/shm_group.h"

namespace trireme::comm {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

}  // namespace

std::shared_ptr<Operation> ShmGroup::post(Call call) {
  auto operation = std::make_shared<ShmOperation>(std::move(call));
  Call& what = operation->call;
  prepare(*operation);
  if (size_ == 1) {
    run_alone(*operation);
    operation->done = true;
    what.keep_alive.reset();
    return operation;
  }
  check_poison([&] { return where(*operation); });

  Peer& peer = peers_[static_cast<size_t>(what.root)];
  if (is_message(what.kind)) {
    operation->sequence = what.kind == Kind::send ? ++peer.send_number : ++peer.recv_number;
    note_last(*operation, record(*operation));
    (what.kind == Kind::send ? peer.sends : peer.receives).push_back(operation);
    ++messages_under_way_;
    advance_messages();
  } else {
    operation->sequence = ++sequence_;
    await_ring(sequence_);
    note_last(*operation, record(*operation));
    post_collective(*operation);
    under_way_.push_back(operation);
  }
  return operation;
}

// What a peer that waits for this rank can tell of it.
void ShmGroup::note_last(const ShmOperation& operation, Nanoseconds posted) {
  RankControl& mine = ranks_[rank_];
  mine.last_packed.store(operation.packed_, relaxed);
  mine.last_sequence.store(operation.sequence, relaxed);
  mine.last_count.store(operation.call.count, relaxed);
  mine.last_posted.store(posted, relaxed);
}

void ShmGroup::refuse_numbers(const std::string& text) {
  arena_->poison(members_[static_cast<size_t>(rank_)], text);
  throw WorkerError(text);
}

// An entry of the ring is written again after ring_entries calls: all ranks must have read it.
void ShmGroup::post_collective(ShmOperation& operation) {
  const Call& call = operation.call;
  Entry& entry = this->entry(rank_, operation.sequence);
  const int64_t bytes = operation.in_.total() * operation.input_bytes_;
  const void* input = call.kind == Kind::barrier ? nullptr : operation.input(0);
  entry.packed.store(operation.packed_, relaxed);
  entry.count.store(call.count, relaxed);
  entry.detail.store(detail_of(operation), relaxed);
  entry.factor.store(call.reduction.factor, relaxed);
  entry.posted.store(settings_->clock ? settings_->clock() : ranks_[rank_].last_posted.load(relaxed), relaxed);
  entry.input_offset.store(offset_in_arena(input, operation.in_.tensor(0) * operation.input_bytes_), relaxed);
  entry.output_offset.store(output_offset(operation, 0), relaxed);
  const auto dims = std::min(static_cast<int64_t>(call.shape.size()), shape_words);
  entry.dims.store(dims, relaxed);
  for (int64_t d = 0; d < dims; ++d) entry.shape[d].store(call.shape[static_cast<size_t>(d)], relaxed);
  if (call.extents != nullptr) write_table(operation, entry);
  entry.claimed.store(0, relaxed);
  entry.finished.store(0, relaxed);
  const bool gives =
      !has_root(call.kind) || call.root == rank_ || call.kind == Kind::reduce || call.kind == Kind::gather;
  if (bytes <= inline_bytes && bytes != 0 && gives && !call.once) {
    for (int64_t b = 0; b < operation.in_.blocks(); ++b) {
      std::byte* to = entry.data + operation.in_.before(b) * operation.element_bytes_;
      operation.in_.visit(b, 0, operation.in_.block(b), [&](int64_t t, int64_t within, int64_t at, int64_t n) {
        const auto* from = static_cast<const std::byte*>(operation.input(t)) +
                           (operation.in_.start(t, b) + within) * operation.element_bytes_;
        std::memcpy(to + at * operation.element_bytes_, from, static_cast<size_t>(n * operation.element_bytes_));
      });
    }
  }
  entry.sequence.store(operation.sequence);
  notify();
}

// A tensor without elements, as where a rank holds no row, is never reached for: it does not keep the others from
// being.
int64_t ShmGroup::offset_in_arena(const void* memory, int64_t bytes) const {
  if (bytes == 0) return 0;
  return memory == nullptr ? not_in_arena : arena_->offset_of(memory, bytes);
}

int64_t ShmGroup::output_offset(const ShmOperation& operation, int64_t tensor) const {
  const void* output = operation.call.kind == Kind::barrier ? nullptr : operation.output(tensor);
  return offset_in_arena(output, operation.out_.tensor(tensor) * operation.element_bytes_);
}

void ShmGroup::write_table(const ShmOperation& operation, Entry& entry) const {
  const Extents& extents = *operation.call.extents;
  int64_t at = 0;
  const auto add = [&](int64_t value) {
    if (at < table_words) entry.table[at++].store(value, relaxed);
  };
  for (int64_t t = 1; t < operation.in_.tensors(); ++t) {
    add(offset_in_arena(operation.input(t), operation.in_.tensor(t) * operation.input_bytes_));
  }
  for (int64_t t = 1; t < operation.in_.tensors(); ++t) add(output_offset(operation, t));
  for (const int64_t count : extents.counts) add(count);
  for (const int64_t count : extents.output_counts) add(count);
}

}  // namespace trireme::comm
