// Point-to-point messages over MPI: a header that says what is sent, and the data; see mpi_group.h. Messages of a pair
// go one after another, so the data is received once its header has been compared.
#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "comm/mpi/mpi_group.h"

namespace trireme::comm {
namespace {

constexpr int tag_header = 1;
constexpr int tag_data = 2;

}  // namespace

void MpiGroup::post_message(const std::shared_ptr<MpiOperation>& operation) {
  const Call& call = operation->call;
  Peer& peer = peers_[static_cast<size_t>(call.root)];
  const bool sends = call.kind == Kind::send;
  ++(sends ? peer.send_number : peer.recv_number);
  const Nanoseconds posted = record(*operation);
  (sends ? peer.sends : peer.receives).push_back(operation);
  ++messages_under_way_;
  if (!sends) return;
  operation->agreed_ = true;  // it is the receiver that compares
  operation->stage_ = Stage::first;
  operation->header_ = {operation->sequence, static_cast<uint64_t>(call.dtype), call.count,
                        settings_->clock ? settings_->clock() : posted};
  recorder_->started(operation->record_, posted);
  send(*operation, &operation->header_, sizeof operation->header_, 1, call.root, tag_header);
  send(*operation, call.input, call.count, operation->element_bytes_, call.root, tag_data);
}

bool MpiGroup::advance_messages() {
  bool moved = false;
  const auto fail_if_broken = [&](const MpiOperation& operation) {
    if (!operation.fault_.empty()) fail(fmt::format("{}: {}: {}", signature(), where(operation), operation.fault_));
  };
  for (Peer& peer : peers_) {
    while (!peer.sends.empty()) {
      MpiOperation& operation = *peer.sends.front();
      if (!test_all(operation)) break;
      fail_if_broken(operation);
      complete(operation);
      peer.sends.pop_front();
      --messages_under_way_;
      moved = true;
    }
    while (!peer.receives.empty()) {
      MpiOperation& operation = *peer.receives.front();
      moved |= step_receive(operation);
      fail_if_broken(operation);
      if (!operation.done) break;
      peer.receives.pop_front();
      --messages_under_way_;
    }
  }
  return moved;
}

bool MpiGroup::step_receive(MpiOperation& operation) {
  const Call& call = operation.call;
  bool moved = false;
  if (operation.stage_ == Stage::waiting) {
    operation.agreed_ = true;  // headers are all alike; what they say is compared here
    receive(operation, &operation.header_, sizeof operation.header_, 1, call.root, tag_header);
    operation.stage_ = Stage::first;
  }
  if (operation.stage_ == Stage::first) {
    if (!test_all(operation) || !operation.fault_.empty()) return false;
    const MpiOperation::Header& header = operation.header_;
    if (header.dtype != static_cast<uint64_t>(call.dtype) || header.count != call.count) {
      const int64_t self = members_[static_cast<size_t>(rank_)], other = members_[static_cast<size_t>(call.root)];
      Call theirs;
      theirs.kind = Kind::send;
      theirs.dtype = static_cast<DType>(header.dtype);
      theirs.count = header.count;
      theirs.root = rank_;
      fail(fmt::format("{}: message #{} from rank {} to rank {} on axis {} differs: rank {} calls {}, rank {} calls {}",
                       signature(), operation.sequence, other, self, axis_, other,
                       comm::describe(pack(theirs, size_), header.count), self, describe(operation)));
    }
    recorder_->started(operation.record_, steady_nanoseconds());
    if (link_.speed().emulated()) {
      const int64_t bytes = call.count * operation.element_bytes_;
      operation.release_ = peers_[static_cast<size_t>(call.root)].incoming.leave(
          header.posted, ring_cost(call.kind, size_, bytes, bytes, bytes));
    }
    receive(operation, call.output, call.count, operation.element_bytes_, call.root, tag_data);
    operation.stage_ = Stage::second;
    moved = true;
  }
  if (operation.stage_ == Stage::second) {
    if (!test_all(operation) || !operation.fault_.empty()) return moved;
    operation.stage_ = Stage::moved;
  }
  return complete(operation) || moved;
}

}  // namespace trireme::comm
