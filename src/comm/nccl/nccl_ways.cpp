// How calls get done over NCCL; see nccl_group.h.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "comm/nccl/nccl_group.h"

namespace trireme::comm {
namespace {

// Up to this many bytes of all ranks together, one step is faster than two with 1/n of the bytes each.
constexpr int64_t whole_bytes = 256 << 10;

const std::byte* at(const void* data, int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }
std::byte* at(void* data, int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }

bool is_integer(DType dtype) { return dtype == DType::u8 || dtype == DType::i32 || dtype == DType::i64; }

NcclInteger integer_of(DType dtype) {
  return dtype == DType::u8 ? NcclInteger::u8 : dtype == DType::i32 ? NcclInteger::i32 : NcclInteger::i64;
}

NcclOp op_of(ReduceOp op) {
  return op == ReduceOp::max ? NcclOp::max : op == ReduceOp::min ? NcclOp::min : NcclOp::sum;
}

}  // namespace

// ---- what a step does on a channel's stream

void NcclGroup::did(Channel& channel, int code, std::string_view what) {
  world_->require(code, what);
  channel.busy |= code == nccl_in_progress;
}

void NcclGroup::copy(Channel& channel, void* to, const void* from, int64_t bytes) {
  if (bytes != 0 && to != from) did(channel, nccl_.copy(to, from, bytes, channel.stream->handle()), "a copy");
}

void NcclGroup::send(Channel& channel, const void* data, int64_t bytes, int64_t to) {
  if (bytes == 0) return;
  world_->require(nccl_.send(data, bytes, static_cast<int>(to), channel.comm, channel.stream->handle()), "ncclSend");
}

void NcclGroup::receive(Channel& channel, void* data, int64_t bytes, int64_t from) {
  if (bytes == 0) return;
  world_->require(nccl_.receive(data, bytes, static_cast<int>(from), channel.comm, channel.stream->handle()),
                  "ncclRecv");
}

// Sends and receives of one NCCL group go at the same time, so their order locks nobody up.
template <typename Body>
void NcclGroup::together(Channel& channel, const Body& body) {
  world_->require(nccl_.start_group(), "ncclGroupStart");
  body();
  did(channel, nccl_.end_group(), "ncclGroupEnd");
}

std::byte* NcclGroup::scratch(Channel& channel, NcclOperation& operation, int64_t bytes) {
  operation.scratch_.push_back(channel.stream->allocate(std::max<int64_t>(bytes, 1)));
  return operation.scratch_.back().get();
}

// ---- the steps of a call

void NcclGroup::plan(Channel& channel, const std::shared_ptr<NcclOperation>& operation) {
  NcclOperation& o = *operation;
  const auto step = [&](void (NcclGroup::*way)(Channel&, NcclOperation&)) {
    o.steps_.emplace_back([this, way, &channel, &o] { (this->*way)(channel, o); });
  };
  o.steps_.emplace_back([this, &channel, &o] {
    world_->require(nccl_.wait_event(channel.stream->handle(), o.given_), "waiting for the caller's stream");
    for (const NcclOperation::Staged& part : o.staged_) {
      if (part.goes) copy(channel, part.device.get(), part.pinned.data, part.bytes);
    }
  });
  if (!o.call.on_device && !world_->device().takes_host_memory()) stage(channel, o);
  plan_words(channel, o);
  switch (o.call.kind) {
    case Kind::barrier:
      break;  // the words meet as a barrier does
    case Kind::broadcast:
      step(&NcclGroup::broadcast);
      break;
    case Kind::all_gather:
      step(&NcclGroup::all_gather);
      break;
    case Kind::gather:
      step(&NcclGroup::gather);
      break;
    case Kind::scatter:
      step(&NcclGroup::scatter);
      break;
    case Kind::all_to_all:
      if (o.call.extents != nullptr) plan_counts(channel, o);
      step(&NcclGroup::all_to_all);
      break;
    case Kind::all_reduce:
    case Kind::reduce:
      if (is_integer(o.call.dtype))
        step(&NcclGroup::reduce_integers);
      else
        plan_sum(channel, o);
      break;
    case Kind::reduce_scatter:
      plan_sum(channel, o);
      break;
    case Kind::send:
    case Kind::recv:
      step(&NcclGroup::message);
      break;
    case Kind::none:
      TRIREME_CHECK(false, "a call of no kind");
  }
  o.steps_.emplace_back([this, &channel, &o] {
    for (const NcclOperation::Staged& part : o.staged_) {
      if (part.comes_back) copy(channel, part.pinned.data, part.device.get(), part.bytes);
    }
    o.ended_ = world_->take_event();
    world_->require(nccl_.record(o.ended_, channel.stream->handle()), "recording an event");
  });
}

// Puts memory of the device in the place of the host's, and what the host has into memory that a stream may read.
void NcclGroup::stage(Channel& channel, NcclOperation& operation) {
  Call& call = operation.call;
  const int64_t tensors = operation.in_.tensors();
  const auto part = [&](void* host, int64_t bytes, bool goes, bool comes_back) -> void* {
    if (host == nullptr || bytes == 0) return host;
    NcclOperation::Staged& made = operation.staged_.emplace_back();
    made = {host, channel.stream->allocate(bytes), world_->take_pinned(bytes), bytes, goes, comes_back};
    if (goes) std::memcpy(made.pinned.data, host, static_cast<size_t>(bytes));
    return made.device.get();
  };
  auto extents = call.extents == nullptr ? nullptr : std::make_shared<Extents>(*call.extents);
  for (int64_t t = 0; t < tensors; ++t) {
    const auto index = static_cast<size_t>(t);
    void* in = const_cast<void*>(operation.input(t));
    void* out = operation.output(t);
    const int64_t in_bytes = operation.in_.tensor(t) * operation.element_bytes_;
    const int64_t out_bytes = operation.out_.tensor(t) * operation.element_bytes_;
    // What is only written need not go there. In place (also reduce and broadcast) both are one.
    const bool one = in == out && in_bytes == out_bytes;
    void* device_out = part(out, out_bytes, one || call.reduction.accumulate, true);
    void* device_in = one ? device_out : part(in, in_bytes, true, false);
    if (extents != nullptr) {
      extents->inputs[index] = extents->inputs[index] == nullptr ? nullptr : device_in;
      extents->outputs[index] = device_out;
    } else {
      call.input = call.input == nullptr ? nullptr : device_in;
      call.output = device_out;
    }
  }
  if (extents != nullptr) call.extents = extents;
}

void NcclGroup::plan_words(Channel& channel, NcclOperation& operation) {
  const auto bytes = static_cast<int64_t>(sizeof(Words));
  const auto ranks = static_cast<int64_t>(channel.ranks.size());
  operation.words_ = world_->take_pinned(bytes * ranks);
  std::memcpy(operation.words_.data + channel.index * bytes, &operation.mine_, sizeof(Words));
  operation.steps_.emplace_back([this, &channel, &operation, bytes, ranks] {
    std::byte* all = scratch(channel, operation, bytes * ranks);
    std::byte* own = all + channel.index * bytes;
    copy(channel, own, operation.words_.data + channel.index * bytes, bytes);
    did(channel, nccl_.all_gather(own, all, bytes, channel.comm, channel.stream->handle()), "ncclAllGather");
  });
  operation.steps_.emplace_back([this, &channel, &operation, bytes, ranks] {
    copy(channel, operation.words_.data, operation.scratch_.back().get(), bytes * ranks);
    operation.compared_ = world_->take_event();
    world_->require(nccl_.record(operation.compared_, channel.stream->handle()), "recording an event");
  });
}

// Of an uneven all_to_all each rank has counts of its own: what it gives to each goes there, and back to that host.
void NcclGroup::plan_counts(Channel& channel, NcclOperation& operation) {
  constexpr auto bytes = static_cast<int64_t>(sizeof(int64_t));
  operation.counts_ = world_->take_pinned(2 * bytes * size_);
  for (int64_t r = 0; r < size_; ++r) {
    const int64_t given = operation.in_.block(r);
    std::memcpy(operation.counts_.data + r * bytes, &given, sizeof given);
    std::memcpy(operation.counts_.data + (size_ + r) * bytes, &given, sizeof given);  // its own stays
  }
  operation.steps_.emplace_back([this, &channel, &operation] {
    std::byte* gives = scratch(channel, operation, 2 * bytes * size_);
    std::byte* gets = gives + bytes * size_;
    copy(channel, gives, operation.counts_.data, 2 * bytes * size_);
    together(channel, [&] {
      for (int64_t r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        send(channel, gives + r * bytes, bytes, r);
        receive(channel, gets + r * bytes, bytes, r);
      }
    });
  });
  operation.steps_.emplace_back([this, &channel, &operation] {
    copy(channel, operation.counts_.data + bytes * size_, operation.scratch_.back().get() + bytes * size_,
         bytes * size_);
    operation.counted_ = world_->take_event();
    world_->require(nccl_.record(operation.counted_, channel.stream->handle()), "recording an event");
  });
}

// ---- moved

void NcclGroup::message(Channel& channel, NcclOperation& operation) {
  const Call& call = operation.call;
  const int64_t bytes = call.count * operation.element_bytes_;
  together(channel, [&] {
    if (call.kind == Kind::send)
      send(channel, call.input, bytes, 1);
    else
      receive(channel, call.output, bytes, 0);
  });
}

void NcclGroup::broadcast(Channel& channel, NcclOperation& operation) {
  together(channel, [&] {
    for (int64_t t = 0; t < operation.out_.tensors(); ++t) {
      const int64_t bytes = operation.out_.tensor(t) * operation.element_bytes_;
      if (bytes == 0) continue;
      world_->require(nccl_.broadcast(operation.output(t), bytes, static_cast<int>(operation.call.root), channel.comm,
                                      channel.stream->handle()),
                      "ncclBroadcast");
    }
  });
}

void NcclGroup::all_gather(Channel& channel, NcclOperation& operation) {
  const int64_t width = operation.element_bytes_;
  const Layout& out = operation.out_;
  if (operation.call.extents == nullptr) {
    if (operation.call.count == 0) return;
    did(channel,
        nccl_.all_gather(operation.input(0), operation.output(0), operation.call.count * width, channel.comm,
                         channel.stream->handle()),
        "ncclAllGather");
    return;
  }
  const int64_t tensors = operation.in_.tensors();
  for (int64_t t = 0; t < tensors; ++t)
    copy(channel, at(operation.output(t), out.start(t, rank_) * width), operation.input(t),
         operation.in_.tensor(t) * width);
  together(channel, [&] {
    for (int64_t t = 0; t < tensors; ++t) {
      for (int64_t i = 1; i < size_; ++i) {
        const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
        send(channel, operation.input(t), operation.in_.tensor(t) * width, to);
        receive(channel, at(operation.output(t), out.start(t, from) * width), out.count(t, from) * width, from);
      }
    }
  });
}

void NcclGroup::gather(Channel& channel, NcclOperation& operation) {
  const int64_t width = operation.element_bytes_, root = operation.call.root;
  const Layout& out = operation.out_;
  const int64_t tensors = operation.in_.tensors();
  for (int64_t t = 0; root == rank_ && t < tensors; ++t)
    copy(channel, at(operation.output(t), out.start(t, rank_) * width), operation.input(t),
         operation.in_.tensor(t) * width);
  together(channel, [&] {
    for (int64_t t = 0; t < tensors; ++t) {
      if (root != rank_) send(channel, operation.input(t), operation.in_.tensor(t) * width, root);
      for (int64_t r = 0; root == rank_ && r < size_; ++r) {
        if (r != rank_) receive(channel, at(operation.output(t), out.start(t, r) * width), out.count(t, r) * width, r);
      }
    }
  });
}

void NcclGroup::scatter(Channel& channel, NcclOperation& operation) {
  const int64_t width = operation.element_bytes_, root = operation.call.root;
  const Layout& in = operation.in_;
  const int64_t tensors = in.tensors();
  for (int64_t t = 0; root == rank_ && t < tensors; ++t)
    copy(channel, operation.output(t), at(operation.input(t), in.start(t, rank_) * width),
         operation.out_.tensor(t) * width);
  together(channel, [&] {
    for (int64_t t = 0; t < tensors; ++t) {
      if (root != rank_) receive(channel, operation.output(t), operation.out_.tensor(t) * width, root);
      for (int64_t r = 0; root == rank_ && r < size_; ++r) {
        if (r != rank_) send(channel, at(operation.input(t), in.start(t, r) * width), in.count(t, r) * width, r);
      }
    }
  });
}

void NcclGroup::all_to_all(Channel& channel, NcclOperation& operation) {
  const int64_t width = operation.element_bytes_;
  const Layout &in = operation.in_, &out = operation.out_;
  copy(channel, at(operation.output(0), out.before(rank_) * width), at(operation.input(0), in.before(rank_) * width),
       in.block(rank_) * width);
  together(channel, [&] {
    for (int64_t i = 1; i < size_; ++i) {
      const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
      send(channel, at(operation.input(0), in.before(to) * width), in.block(to) * width, to);
      receive(channel, at(operation.output(0), out.before(from) * width), out.block(from) * width, from);
    }
  });
}

// ---- summed

// Sums and extremes of integers are the same in any order.
void NcclGroup::reduce_integers(Channel& channel, NcclOperation& operation) {
  const Call& call = operation.call;
  const NcclInteger type = integer_of(call.dtype);
  const NcclOp op = op_of(call.reduction.op);
  together(channel, [&] {
    for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
      const int64_t count = operation.in_.tensor(t);
      if (count == 0) continue;
      const void* input = operation.input(t);
      void* output = operation.output(t);
      world_->require(call.kind == Kind::all_reduce
                          ? nccl_.all_reduce(input, output, count, type, op, channel.comm, channel.stream->handle())
                          : nccl_.reduce(input, output, count, type, op, static_cast<int>(call.root), channel.comm,
                                         channel.stream->handle()),
                      "ncclAllReduce or ncclReduce");
    }
  });
}

bool NcclGroup::summed_whole(const NcclOperation& operation) const {
  return is_dealt(operation.call.kind) && operation.in_.total() * operation.element_bytes_ * size_ <= whole_bytes;
}

void NcclGroup::plan_sum(Channel& channel, NcclOperation& operation) {
  const auto step = [&](void (NcclGroup::*way)(Channel&, NcclOperation&)) {
    operation.steps_.emplace_back([this, way, &channel, &operation] { (this->*way)(channel, operation); });
  };
  if (summed_whole(operation)) {
    if (operation.in_.total() == 0) return;
    step(&NcclGroup::collect_whole);
    step(&NcclGroup::sum_whole);
    return;
  }
  step(&NcclGroup::collect_shares);
  step(&NcclGroup::sum_shares);
  if (is_dealt(operation.call.kind)) step(&NcclGroup::spread_shares);
}

void NcclGroup::collect_whole(Channel& channel, NcclOperation& operation) {
  const int64_t width = operation.element_bytes_;
  operation.stride_ = operation.in_.total();
  const int64_t bytes = operation.stride_ * width;
  operation.sums_ = scratch(channel, operation, size_ * bytes);
  std::byte* own = operation.sums_ + rank_ * bytes;
  operation.in_.visit(0, 0, operation.stride_, [&](int64_t t, int64_t within, int64_t place, int64_t n) {
    copy(channel, own + place * width, at(operation.input(t), within * width), n * width);
  });
  did(channel, nccl_.all_gather(own, operation.sums_, bytes, channel.comm, channel.stream->handle()), "ncclAllGather");
}

// Every rank's whole input lies in the scratch.
void NcclGroup::sum_whole(Channel& channel, NcclOperation& operation) {
  const Call& call = operation.call;
  if (call.kind == Kind::reduce && call.root != rank_) return;
  const int64_t width = operation.element_bytes_;
  std::vector<const void*> terms(static_cast<size_t>(size_));
  operation.in_.visit(0, 0, operation.stride_, [&](int64_t t, int64_t within, int64_t place, int64_t n) {
    for (int64_t r = 0; r < size_; ++r)
      terms[static_cast<size_t>(r)] = operation.sums_ + (r * operation.stride_ + place) * width;
    channel.stream->reduce(at(operation.output(t), within * width), terms, n, call.dtype, call.reduction);
  });
}

// What `rank` sums: its block of a reduce_scatter, otherwise one of n parts of all elements.
NcclGroup::Range NcclGroup::share_of(const NcclOperation& operation, int64_t rank) const {
  if (!is_dealt(operation.call.kind)) return {rank, 0, operation.in_.block(rank)};
  constexpr int64_t line = 64;  // elements, so that parts begin where the device reads well
  const int64_t total = operation.in_.total();
  const auto cut = [&](int64_t r) { return std::min((total * r / size_ + line - 1) / line * line, total); };
  const int64_t first = cut(rank), end = rank == size_ - 1 ? total : cut(rank + 1);
  return {0, first, end - first};
}

void NcclGroup::collect_shares(Channel& channel, NcclOperation& operation) {
  const int64_t width = operation.element_bytes_;
  const Layout& in = operation.in_;
  const Range own = share_of(operation, rank_);
  operation.stride_ = own.length;
  operation.sums_ = scratch(channel, operation, size_ * own.length * width);
  together(channel, [&] {
    for (int64_t i = 1; i < size_; ++i) {
      const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
      std::byte* slot = operation.sums_ + from * operation.stride_ * width;
      in.visit(own.block, own.first, own.length, [&](int64_t, int64_t, int64_t place, int64_t n) {
        receive(channel, slot + place * width, n * width, from);
      });
      const Range theirs = share_of(operation, to);
      in.visit(theirs.block, theirs.first, theirs.length, [&](int64_t t, int64_t within, int64_t, int64_t n) {
        send(channel, at(operation.input(t), (in.start(t, theirs.block) + within) * width), n * width, to);
      });
    }
  });
}

// This rank's share, in rank order: into its output, or of a reduce to another rank into the scratch.
void NcclGroup::sum_shares(Channel& channel, NcclOperation& operation) {
  const Call& call = operation.call;
  const int64_t width = operation.element_bytes_;
  const Range own = share_of(operation, rank_);
  const bool stays = call.kind == Kind::reduce && call.root != rank_;
  std::vector<const void*> terms;
  operation.in_.visit(own.block, own.first, own.length, [&](int64_t t, int64_t within, int64_t place, int64_t n) {
    const auto slot = [&](int64_t r) { return operation.sums_ + (r * operation.stride_ + place) * width; };
    void* output = stays ? slot(rank_) : at(operation.output(t), within * width);
    terms.clear();
    if (call.reduction.accumulate) terms.push_back(output);
    for (int64_t r = 0; r < size_; ++r) {
      terms.push_back(r == rank_ ? at(operation.input(t), (operation.in_.start(t, own.block) + within) * width)
                                 : slot(r));
    }
    channel.stream->reduce(output, terms, n, call.dtype, call.reduction);
  });
}

// Each share goes from the rank that summed it to those that want it.
void NcclGroup::spread_shares(Channel& channel, NcclOperation& operation) {
  const Call& call = operation.call;
  const int64_t width = operation.element_bytes_;
  const Range own = share_of(operation, rank_);
  const bool all = call.kind == Kind::all_reduce;
  const bool stays = !all && call.root != rank_;
  together(channel, [&] {
    for (int64_t i = 1; i < size_; ++i) {
      const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
      if (all || call.root == rank_) {
        const Range theirs = share_of(operation, from);
        operation.in_.visit(0, theirs.first, theirs.length, [&](int64_t t, int64_t within, int64_t, int64_t n) {
          receive(channel, at(operation.output(t), within * width), n * width, from);
        });
      }
      if (all || call.root == to) {
        operation.in_.visit(0, own.first, own.length, [&](int64_t t, int64_t within, int64_t place, int64_t n) {
          const void* from_here = stays ? operation.sums_ + (rank_ * operation.stride_ + place) * width
                                        : at(operation.output(t), within * width);
          send(channel, from_here, n * width, to);
        });
      }
    }
  });
}

}  // namespace trireme::comm
