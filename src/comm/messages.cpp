// Point-to-point messages: a channel of slots for each ordered pair of ranks; messages of a pair go one after another.
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "comm/shm_group.h"

namespace trireme::comm {
namespace {

int64_t slots_of(int64_t bytes) { return std::max<int64_t>((bytes + channel_slot_bytes - 1) / channel_slot_bytes, 1); }

}  // namespace

bool ShmGroup::advance_messages() {
  bool moved = false;
  const auto drain = [&](std::deque<std::shared_ptr<ShmOperation>>& queue, auto&& step) {
    while (!queue.empty()) {
      moved |= queue.front()->moved_ ? release(*queue.front()) : step(*queue.front());
      if (!queue.front()->done) return;
      queue.pop_front();
      --messages_under_way_;
    }
  };
  for (int64_t r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    Peer& peer = peers_[static_cast<size_t>(r)];
    drain(peer.sends, [&](ShmOperation& operation) { return step_send(operation, channel(rank_, r), r); });
    drain(peer.receives, [&](ShmOperation& operation) { return step_recv(operation, channel(r, rank_), r); });
  }
  return moved;
}

bool ShmGroup::step_send(ShmOperation& operation, Channel& channel, int64_t to) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  const Call& call = operation.call;
  const int64_t bytes = call.count * operation.element_bytes_;
  const auto* data = static_cast<const std::byte*>(call.input);
  if (!operation.arrived_) {
    operation.arrived_ = true;
    recorder_->started(operation.record_, steady_nanoseconds());
    operation.base_ = peer.sent;
    // What fits into the slots is copied, so that the sender need not wait for the receiver.
    operation.direct_ = bytes > channel_slots * channel_slot_bytes && arena_->offset_of(data, bytes) >= 0;
    operation.pieces_ = operation.direct_ ? 1 : slots_of(bytes);
  }
  bool moved = false;
  while (operation.put_ < operation.pieces_) {
    const uint64_t number = operation.base_ + static_cast<uint64_t>(operation.put_);
    if (number >= channel_slots && channel.received.load() < number + 1 - channel_slots) return moved;
    const uint64_t slot = number % channel_slots;
    MessageHeader& message = channel.messages[slot];
    message.number.store(operation.sequence, std::memory_order_relaxed);
    message.packed.store(static_cast<uint64_t>(call.dtype), std::memory_order_relaxed);
    message.count.store(call.count, std::memory_order_relaxed);
    message.posted.store(settings_->clock ? settings_->clock() : steady_nanoseconds(), std::memory_order_relaxed);
    message.direct_offset.store(operation.direct_ ? arena_->offset_of(data, bytes) : not_in_arena,
                                std::memory_order_relaxed);
    if (!operation.direct_) {
      const int64_t start = operation.put_ * channel_slot_bytes;
      const int64_t length = std::min(channel_slot_bytes, bytes - start);
      if (length > 0) std::memcpy(channel.data[slot], data + start, static_cast<size_t>(length));
    }
    ++operation.put_;
    channel.sent.store(number + 1);
    notify();
    moved = true;
  }
  if (operation.direct_ && channel.received.load() < operation.base_ + 1) return moved;
  peer.sent += static_cast<uint64_t>(operation.pieces_);
  complete(operation);
  return true;
}

bool ShmGroup::step_recv(ShmOperation& operation, Channel& channel, int64_t from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  const Call& call = operation.call;
  const int64_t bytes = call.count * operation.element_bytes_;
  auto* data = static_cast<std::byte*>(call.output);
  bool moved = false;
  for (;;) {
    const uint64_t number = peer.received + static_cast<uint64_t>(operation.taken_);
    if (channel.sent.load() < number + 1) return moved;
    const uint64_t slot = number % channel_slots;
    const MessageHeader& message = channel.messages[slot];
    if (operation.taken_ == 0) {
      const auto dtype = static_cast<DType>(message.packed.load(std::memory_order_relaxed));
      const int64_t count = message.count.load(std::memory_order_relaxed);
      if (dtype != call.dtype || count != call.count) {
        const int64_t me = members_[static_cast<size_t>(rank_)];
        const int64_t other = members_[static_cast<size_t>(from)];
        Call theirs;
        theirs.kind = Kind::send;
        theirs.dtype = dtype;
        theirs.count = count;
        theirs.root = rank_;
        fail(other,
             fmt::format(
                 "{}: message #{} from rank {} to rank {} on axis {} differs: rank {} calls {}, rank {} calls {}",
                 signature(), operation.sequence, other, me, axis_, other, comm::describe(pack(theirs, size_), count),
                 me, describe(operation)));
      }
      recorder_->started(operation.record_, steady_nanoseconds());
      EmulatedLink& link = incoming_[static_cast<size_t>(from)];
      if (link.speed().emulated()) {
        operation.release_ =
            link.leave(message.posted.load(std::memory_order_relaxed), ring_cost(Kind::recv, size_, bytes, 0, 0));
      }
      operation.direct_ = message.direct_offset.load(std::memory_order_relaxed) != not_in_arena;
      operation.pieces_ = operation.direct_ ? 1 : slots_of(bytes);
    }
    const int64_t start = operation.taken_ * channel_slot_bytes;
    if (operation.direct_) {
      std::memcpy(data, arena_->base() + message.direct_offset.load(std::memory_order_relaxed),
                  static_cast<size_t>(bytes));
    } else if (bytes > start) {
      std::memcpy(data + start, channel.data[slot], static_cast<size_t>(std::min(channel_slot_bytes, bytes - start)));
    }
    ++operation.taken_;
    channel.received.store(number + 1);
    notify();
    moved = true;
    if (operation.taken_ == operation.pieces_) {
      peer.received += static_cast<uint64_t>(operation.pieces_);
      complete(operation);
      return true;
    }
  }
}

}  // namespace trireme::comm
