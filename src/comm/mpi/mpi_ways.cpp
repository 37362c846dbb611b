// How collectives get done over MPI; see mpi_group.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/host.h"
#include "comm/mpi/mpi_group.h"
#include "comm/reduce.h"

namespace trireme::comm {
namespace {

// One request moves no more elements than this: their bytes must fit into an int for some libraries.
constexpr int64_t most_elements = int64_t{1} << 27;
// Up to this many bytes of all ranks together, one step is faster than two with 1/n of the bytes each.
constexpr int64_t whole_bytes = 32 << 10;

void copy(void* to, const void* from, int64_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

const std::byte* at(const void* data, int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }
std::byte* at(void* data, int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }

bool is_integer(DType dtype) { return dtype == DType::u8 || dtype == DType::i32 || dtype == DType::i64; }

MpiInteger integer_of(DType dtype) {
  return dtype == DType::u8 ? MpiInteger::u8 : dtype == DType::i32 ? MpiInteger::i32 : MpiInteger::i64;
}

MpiOp op_of(ReduceOp op) { return op == ReduceOp::max ? MpiOp::max : op == ReduceOp::min ? MpiOp::min : MpiOp::sum; }

// Parts of a range that a request can move: visit(first element, elements).
template <typename Visit>
void in_parts(int64_t count, const Visit& visit) {
  for (int64_t first = 0; first < count; first += most_elements) visit(first, std::min(most_elements, count - first));
}

}  // namespace

template <typename Start>
void MpiGroup::request(MpiOperation& operation, std::string_view what, const Start& start) {
  MpiRequest made;
  const int code = start(&made);
  if (code == 0)
    operation.requests_.push_back(made);
  else
    broken(operation, what, code);
}

// Calls under way are far fewer than these tags, of which MPI promises 32767.
int MpiGroup::tag_of(const MpiOperation& operation, int stage) const {
  return 16 + static_cast<int>(operation.sequence % 8000) * 4 + stage;
}

void MpiGroup::send(MpiOperation& operation, const void* data, int64_t count, int64_t width, int64_t to, int tag) {
  in_parts(count, [&](int64_t first, int64_t n) {
    request(operation, "MPI_Isend", [&](MpiRequest* made) {
      return mpi_.send(at(data, first * width), static_cast<int>(n), static_cast<int>(width), static_cast<int>(to), tag,
                       &data_, made);
    });
  });
}

void MpiGroup::post_receives(MpiOperation& operation) {
  for (const MpiOperation::Expected& e : std::exchange(operation.expected_, {}))
    receive(operation, e.data, e.count, e.width, e.from, e.tag);
}

void MpiGroup::receive(MpiOperation& operation, void* data, int64_t count, int64_t width, int64_t from, int tag) {
  if (!operation.agreed_) {
    operation.expected_.push_back({data, count, width, from, tag});
    return;
  }
  in_parts(count, [&](int64_t first, int64_t n) {
    request(operation, "MPI_Irecv", [&](MpiRequest* made) {
      return mpi_.receive(at(data, first * width), static_cast<int>(n), static_cast<int>(width), static_cast<int>(from),
                          tag, &data_, made);
    });
  });
}

bool MpiGroup::fits(const Layout& layout, int64_t tensor) const { return layout.tensor(tensor) <= most_elements; }

void MpiGroup::begin(MpiOperation& operation) {
  operation.stage_ = Stage::first;
  switch (operation.call.kind) {
    case Kind::barrier:
      break;  // the words meet as a barrier does
    case Kind::broadcast:
      begin_broadcast(operation);
      break;
    case Kind::all_gather:
      begin_all_gather(operation);
      break;
    case Kind::gather:
      begin_gather(operation);
      break;
    case Kind::scatter:
      begin_scatter(operation);
      break;
    case Kind::all_to_all:
      begin_exchange(operation);
      break;
    case Kind::all_reduce:
    case Kind::reduce:
      if (summed_by_library(operation))
        begin_integers(operation);
      else
        begin_sum(operation);
      break;
    case Kind::reduce_scatter:
      begin_sum(operation);
      break;
    case Kind::none:
    case Kind::send:
    case Kind::recv:
      TRIREME_CHECK(false, "{} is no collective", name_of(operation.call.kind));
  }
}

bool MpiGroup::step(MpiOperation& operation) {
  if (operation.stage_ == Stage::moved || !test_all(operation)) return false;
  const Call& call = operation.call;
  const bool sums = operation.fault_.empty() && is_reduction(call.kind) && operation.stride_ != 0;
  const bool first = operation.stage_ == Stage::first;
  if (first && call.kind == Kind::all_to_all && call.extents != nullptr && operation.fault_.empty()) {
    check_exchange(operation);
    operation.stage_ = Stage::second;
    exchange_blocks(operation);
    return true;
  }
  if (first && sums) {
    if (summed_whole(operation)) {
      sum_whole(operation);
    } else {
      sum_share(operation);
      if (is_dealt(call.kind)) {
        operation.stage_ = Stage::second;
        spread_sum(operation);
        return true;
      }
    }
  }
  operation.stage_ = Stage::moved;
  return true;
}

// ---- moved

void MpiGroup::begin_broadcast(MpiOperation& operation) {
  for (int64_t t = 0; t < operation.out_.tensors(); ++t) {
    in_parts(operation.out_.tensor(t), [&](int64_t first, int64_t n) {
      request(operation, "MPI_Ibcast", [&](MpiRequest* made) {
        return mpi_.broadcast(at(operation.output(t), first * operation.element_bytes_), static_cast<int>(n),
                              static_cast<int>(operation.element_bytes_), static_cast<int>(operation.call.root), &data_,
                              made);
      });
    });
  }
}

void MpiGroup::begin_all_gather(MpiOperation& operation) {
  const int64_t width = operation.element_bytes_;
  const int tag = tag_of(operation, 0);
  const Layout& out = operation.out_;
  for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
    const void* input = operation.input(t);
    void* output = operation.output(t);
    const int64_t own = operation.in_.tensor(t);
    copy(at(output, out.start(t, rank_) * width), input, own * width);
    for (int64_t i = 1; i < size_; ++i) {
      const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
      receive(operation, at(output, out.start(t, from) * width), out.count(t, from), width, from, tag);
      send(operation, input, own, width, to, tag);
    }
  }
}

void MpiGroup::begin_gather(MpiOperation& operation) {
  const Call& call = operation.call;
  const auto width = static_cast<int>(operation.element_bytes_);
  const bool gets = call.root == rank_;
  const int tag = tag_of(operation, 0);
  const Layout& out = operation.out_;
  for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
    const void* input = operation.input(t);
    void* output = operation.output(t);
    const int64_t own = operation.in_.tensor(t);
    if (gets) copy(at(output, out.start(t, rank_) * width), input, own * width);
    if (!fits(out, t)) {
      if (!gets) send(operation, input, own, width, call.root, tag);
      for (int64_t r = 0; gets && r < size_; ++r) {
        if (r != rank_) receive(operation, at(output, out.start(t, r) * width), out.count(t, r), width, r, tag);
      }
      continue;
    }
    if (out.tensor(t) == 0) continue;
    const auto [counts, starts] = ints_of(operation, out, t);
    request(operation, "MPI_Igatherv", [&](MpiRequest* made) {
      return mpi_.gather(gets ? output : const_cast<void*>(input), static_cast<int>(own), counts, starts, width,
                         static_cast<int>(call.root), &data_, made);
    });
  }
}

// Counts and starts of a tensor's blocks, which the library reads until the request is complete.
std::pair<const int*, const int*> MpiGroup::ints_of(MpiOperation& operation, const Layout& layout, int64_t tensor) {
  std::vector<int>& counts = operation.ints_.emplace_back();
  std::vector<int>& starts = operation.ints_.emplace_back();
  for (int64_t r = 0; r < size_; ++r) {
    counts.push_back(static_cast<int>(layout.count(tensor, r)));
    starts.push_back(static_cast<int>(layout.start(tensor, r)));
  }
  return {counts.data(), starts.data()};
}

void MpiGroup::begin_scatter(MpiOperation& operation) {
  const Call& call = operation.call;
  const auto width = static_cast<int>(operation.element_bytes_);
  const bool gives = call.root == rank_;
  const int tag = tag_of(operation, 0);
  const Layout& in = operation.in_;
  for (int64_t t = 0; t < in.tensors(); ++t) {
    const void* input = operation.input(t);
    void* output = operation.output(t);
    const int64_t own = operation.out_.tensor(t);
    if (gives) copy(output, at(input, in.start(t, rank_) * width), own * width);
    if (!fits(in, t)) {
      if (!gives) receive(operation, output, own, width, call.root, tag);
      for (int64_t r = 0; gives && r < size_; ++r) {
        if (r != rank_) send(operation, at(input, in.start(t, r) * width), in.count(t, r), width, r, tag);
      }
      continue;
    }
    if (in.tensor(t) == 0) continue;
    const auto [counts, starts] = ints_of(operation, in, t);
    request(operation, "MPI_Iscatterv", [&](MpiRequest* made) {
      return mpi_.scatter(gives ? const_cast<void*>(input) : output, static_cast<int>(own), counts, starts, width,
                          static_cast<int>(call.root), &data_, made);
    });
  }
}

// Sums and extremes of integers are the same in any order.
void MpiGroup::begin_integers(MpiOperation& operation) {
  const Call& call = operation.call;
  const int64_t width = operation.element_bytes_;
  const bool all = call.kind == Kind::all_reduce;
  const bool gets = all || call.root == rank_;
  for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
    const int64_t count = operation.in_.tensor(t);
    const void* input = operation.input(t);
    void* output = operation.output(t);
    if (gets) copy(output, input, count * width);
    void* data = gets ? output : const_cast<void*>(input);
    in_parts(count, [&](int64_t first, int64_t n) {
      request(operation, all ? "MPI_Iallreduce" : "MPI_Ireduce", [&](MpiRequest* made) {
        const MpiInteger type = integer_of(call.dtype);
        const MpiOp op = op_of(call.reduction.op);
        return all ? mpi_.all_reduce(at(data, first * width), static_cast<int>(n), type, op, &data_, made)
                   : mpi_.reduce(at(data, first * width), static_cast<int>(n), type, op, static_cast<int>(call.root),
                                 &data_, made);
      });
    });
  }
}

// ---- exchanged

void MpiGroup::begin_exchange(MpiOperation& operation) {
  if (operation.call.extents == nullptr) {
    exchange_blocks(operation);
    return;
  }
  // What this rank gives to each first: a receiver that expects something else must learn it as such.
  const auto n = static_cast<size_t>(size_);
  operation.gives_.resize(n);
  operation.gets_.resize(n);
  const int tag = tag_of(operation, 0);
  for (int64_t r = 0; r < size_; ++r) {
    const auto index = static_cast<size_t>(r);
    operation.gives_[index] = operation.in_.block(r);
    if (r == rank_) {
      operation.gets_[index] = operation.gives_[index];
      continue;
    }
    receive(operation, &operation.gets_[index], 1, sizeof(int64_t), r, tag);
    send(operation, &operation.gives_[index], 1, sizeof(int64_t), r, tag);
  }
}

void MpiGroup::check_exchange(MpiOperation& operation) {
  for (int64_t r = 0; r < size_; ++r) {
    const int64_t given = operation.gets_[static_cast<size_t>(r)], expected = operation.out_.block(r);
    if (given == expected) continue;
    const int64_t self = members_[static_cast<size_t>(rank_)], other = members_[static_cast<size_t>(r)];
    fail(fmt::format(
        "{}: all_to_all #{} on axis {} differs: rank {} on {} gives {} elements to rank {}; rank {} on {} expects {} "
        "from it and calls {}",
        signature(), operation.sequence, axis_, other, world_->host(other), given, self, self, host_name(), expected,
        in_full(operation)));
  }
}

void MpiGroup::exchange_blocks(MpiOperation& operation) {
  const int64_t width = operation.element_bytes_;
  const int tag = tag_of(operation, 1);
  const Layout &in = operation.in_, &out = operation.out_;
  copy(at(operation.output(0), out.before(rank_) * width), at(operation.input(0), in.before(rank_) * width),
       in.block(rank_) * width);
  for (int64_t i = 1; i < size_; ++i) {
    const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
    receive(operation, at(operation.output(0), out.before(from) * width), out.block(from), width, from, tag);
    send(operation, at(operation.input(0), in.before(to) * width), in.block(to), width, to, tag);
  }
}

// ---- summed

bool MpiGroup::summed_by_library(const MpiOperation& operation) const {
  return is_dealt(operation.call.kind) && is_integer(operation.call.dtype) && !summed_whole(operation);
}

// Given calls that differ, a library may end the process, so it gets none before the words have been compared.
bool MpiGroup::done_by_library(const MpiOperation& operation) const {
  switch (operation.call.kind) {
    case Kind::broadcast:
    case Kind::gather:
    case Kind::scatter:
      return true;
    default:
      return summed_by_library(operation);
  }
}

bool MpiGroup::summed_whole(const MpiOperation& operation) const {
  return is_dealt(operation.call.kind) && operation.in_.total() * operation.element_bytes_ * size_ <= whole_bytes;
}

// What `rank` sums: its block of a reduce_scatter, otherwise one of n parts of all elements.
MpiGroup::Range MpiGroup::share_of(const MpiOperation& operation, int64_t rank) const {
  if (!is_dealt(operation.call.kind)) return {rank, 0, operation.in_.block(rank)};
  constexpr int64_t line = 16;  // elements, so that few parts of messages are odd
  const int64_t total = operation.in_.total();
  const auto cut = [&](int64_t r) { return std::min((total * r / size_ + line - 1) / line * line, total); };
  const int64_t first = cut(rank), end = rank == size_ - 1 ? total : cut(rank + 1);
  return {0, first, end - first};
}

void MpiGroup::begin_sum(MpiOperation& operation) {
  const int64_t width = operation.element_bytes_;
  const Layout& in = operation.in_;
  const int tag = tag_of(operation, 0);
  const auto make_scratch = [&](int64_t parts) {
    operation.scratch_ = std::make_unique_for_overwrite<std::byte[]>(
        static_cast<size_t>(std::max<int64_t>(parts * operation.stride_ * width, 1)));
  };
  if (summed_whole(operation)) {
    const bool all = operation.call.kind == Kind::all_reduce;
    operation.stride_ = in.total();
    if (operation.stride_ == 0) return;
    make_scratch(size_);
    std::byte* scratch = operation.scratch_.get();
    std::byte* own = scratch + rank_ * operation.stride_ * width;
    in.visit(0, 0, in.total(), [&](int64_t t, int64_t within, int64_t place, int64_t n) {
      copy(own + place * width, at(operation.input(t), within * width), n * width);
    });
    for (int64_t i = 1; i < size_; ++i) {
      const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
      if (all || operation.call.root == rank_) {
        receive(operation, scratch + from * operation.stride_ * width, operation.stride_, width, from, tag);
      }
      if (all || operation.call.root == to) send(operation, own, operation.stride_, width, to, tag);
    }
    return;
  }
  const Range own = share_of(operation, rank_);
  // At least one element, so that it tells that there is something to sum at the end, even if not by this rank.
  operation.stride_ = std::max<int64_t>(own.length, 1);
  make_scratch(size_);
  for (int64_t i = 1; i < size_; ++i) {
    const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
    std::byte* slot = operation.scratch_.get() + from * operation.stride_ * width;
    in.visit(own.block, own.first, own.length, [&](int64_t, int64_t, int64_t place, int64_t n) {
      receive(operation, slot + place * width, n, width, from, tag);
    });
    const Range theirs = share_of(operation, to);
    in.visit(theirs.block, theirs.first, theirs.length, [&](int64_t t, int64_t within, int64_t, int64_t n) {
      send(operation, at(operation.input(t), (in.start(t, theirs.block) + within) * width), n, width, to, tag);
    });
  }
}

// Every rank's whole input lies in the scratch.
void MpiGroup::sum_whole(MpiOperation& operation) {
  const Call& call = operation.call;
  if (call.kind == Kind::reduce && call.root != rank_) return;
  const int64_t width = operation.element_bytes_;
  std::vector<const void*> terms(static_cast<size_t>(size_));
  operation.in_.visit(0, 0, operation.in_.total(), [&](int64_t t, int64_t within, int64_t place, int64_t n) {
    for (int64_t r = 0; r < size_; ++r)
      terms[static_cast<size_t>(r)] = operation.scratch_.get() + (r * operation.stride_ + place) * width;
    void* output = at(operation.output(t), within * width);
    reduce({&output, 1}, terms, n, call.dtype, call.reduction);
  });
}

// This rank's share, in rank order: into its output, or of a reduce to another rank into the scratch.
void MpiGroup::sum_share(MpiOperation& operation) {
  const Call& call = operation.call;
  const int64_t width = operation.element_bytes_;
  const Range own = share_of(operation, rank_);
  const bool stays = call.kind == Kind::reduce && call.root != rank_;
  std::vector<const void*> terms;
  operation.in_.visit(own.block, own.first, own.length, [&](int64_t t, int64_t within, int64_t place, int64_t n) {
    const auto slot = [&](int64_t r) { return operation.scratch_.get() + (r * operation.stride_ + place) * width; };
    void* output = stays ? slot(rank_) : at(operation.output(t), within * width);
    terms.clear();
    if (call.reduction.accumulate) terms.push_back(output);
    for (int64_t r = 0; r < size_; ++r) {
      terms.push_back(r == rank_ ? at(operation.input(t), (operation.in_.start(t, own.block) + within) * width)
                                 : slot(r));
    }
    reduce({&output, 1}, terms, n, call.dtype, call.reduction);
  });
}

// Each share goes from the rank that summed it to those that want it.
void MpiGroup::spread_sum(MpiOperation& operation) {
  const Call& call = operation.call;
  const int64_t width = operation.element_bytes_;
  const int tag = tag_of(operation, 1);
  const Range own = share_of(operation, rank_);
  const bool all = call.kind == Kind::all_reduce;
  const bool stays = !all && call.root != rank_;
  for (int64_t i = 1; i < size_; ++i) {
    const int64_t from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
    if (all || call.root == rank_) {
      const Range theirs = share_of(operation, from);
      operation.in_.visit(0, theirs.first, theirs.length, [&](int64_t t, int64_t within, int64_t, int64_t n) {
        receive(operation, at(operation.output(t), within * width), n, width, from, tag);
      });
    }
    if (all || call.root == to) {
      operation.in_.visit(0, own.first, own.length, [&](int64_t t, int64_t within, int64_t place, int64_t n) {
        const void* from_here = stays ? operation.scratch_.get() + (rank_ * operation.stride_ + place) * width
                                      : at(operation.output(t), within * width);
        send(operation, from_here, n, width, to, tag);
      });
    }
  }
}

}  // namespace trireme::comm
