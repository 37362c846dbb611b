// What happens to a call before any peer sees it, whatever the backend; see group.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/control.h"
#include "comm/group.h"
#include "comm/reduce.h"

namespace trireme::comm {
namespace {

bool holds_nan(const void* data, int64_t count, DType dtype) {
  const auto any = [&]<typename T>(const T* values, auto is_nan) {
    return std::any_of(values, values + count, is_nan);
  };
  switch (dtype) {
    case DType::f32:
      return any(static_cast<const float*>(data), [](float v) { return std::isnan(v); });
    case DType::f64:
      return any(static_cast<const double*>(data), [](double v) { return std::isnan(v); });
    case DType::bf16:
      return any(static_cast<const uint16_t*>(data), [](uint16_t v) { return (v & 0x7fff) > 0x7f80; });
    case DType::f16:
      return any(static_cast<const uint16_t*>(data), [](uint16_t v) { return (v & 0x7fff) > 0x7c00; });
    default:
      return false;
  }
}

}  // namespace

const void* Operation::input(int64_t t) const {
  if (call.extents != nullptr) return call.extents->inputs[static_cast<size_t>(t)];
  // In place, the output is what is read.
  return call.input != nullptr || joins_output(call.kind) || splits_input(call.kind) ? call.input : call.output;
}

void* Operation::output(int64_t t) const {
  return call.extents != nullptr ? call.extents->outputs[static_cast<size_t>(t)] : call.output;
}

void Group::lay_out(Operation& operation) const {
  const Call& call = operation.call;
  const bool in_blocks = splits_input(call.kind);
  const bool out_blocks = joins_output(call.kind);
  if (call.extents == nullptr) {
    operation.in_ = {call.count, in_blocks ? size_ : 1};
    operation.out_ = {call.count, out_blocks ? size_ : 1};
  } else {
    const Extents& extents = *call.extents;
    const auto tensors = static_cast<int64_t>(extents.inputs.size());
    const Layout wide(extents.counts, tensors, in_blocks || out_blocks ? size_ : 1);
    operation.in_ = out_blocks && !in_blocks ? wide.only(rank_) : wide;
    operation.out_ = in_blocks && !out_blocks ? wide.only(rank_) : wide;
    if (call.kind == Kind::all_to_all) operation.out_ = {extents.output_counts, 1, size_};
    operation.largest_block_ = wide.largest_block();
    operation.call.count = wide.total();
  }
  if (call.extents == nullptr) operation.largest_block_ = call.count;
  operation.most_given_ = std::max(operation.in_.total(), out_blocks ? operation.largest_block_ : 0);
  operation.most_exchanged_ = operation.largest_block_ * (size_ - 1);
}

void Group::check(const Operation& operation) const {
  const Call& call = operation.call;
  const auto refuse = [&](const std::string& why) {
    throw_input("{} on axis {}: {}", describe(operation), axis_, why);
  };
  if (call.extents != nullptr) {
    const Extents& extents = *call.extents;
    const size_t tensors = extents.inputs.size();
    const auto negative = [](const std::vector<int64_t>& counts) {
      return std::any_of(counts.begin(), counts.end(), [](int64_t count) { return count < 0; });
    };
    const bool blocks = splits_input(call.kind) || joins_output(call.kind);
    if (tensors == 0 || extents.outputs.size() != tensors) refuse("a list of tensors without tensors, or one-sided");
    if (extents.counts.size() != tensors &&
        !(blocks && extents.counts.size() == tensors * static_cast<size_t>(size_))) {
      refuse(fmt::format("{} counts for {} tensors and {} ranks", extents.counts.size(), tensors, size_));
    }
    if (negative(extents.counts) || negative(extents.output_counts)) refuse("a negative count");
    if (is_message(call.kind) || call.kind == Kind::barrier) refuse("it takes no list of tensors");
    if (call.kind == Kind::all_to_all && (tensors != 1 || extents.counts.size() != static_cast<size_t>(size_) ||
                                          extents.output_counts.size() != static_cast<size_t>(size_))) {
      refuse("all_to_all takes one tensor, with a count to and from each rank");
    }
  }
  if (call.count < 0) refuse("a negative count");
  if ((is_message(call.kind) || has_root(call.kind)) && (call.root < 0 || call.root >= size_)) {
    refuse(fmt::format("rank {} is not one of its {} ranks", call.root, size_));
  }
  if (is_message(call.kind) && call.root == rank_) refuse(fmt::format("rank {} cannot send to itself", rank_));
  const bool integers = call.dtype == DType::u8 || call.dtype == DType::i32 || call.dtype == DType::i64;
  const Reduction& how = call.reduction;
  if (how.factor != 1 && how.op != ReduceOp::sum) refuse("a factor goes with a sum");
  if (!std::isfinite(how.factor)) refuse(fmt::format("a factor of {}", how.factor));
  if (how.accumulate && (call.kind != Kind::reduce_scatter || how.op != ReduceOp::sum || how.factor != 1))
    refuse("only the plain sum of a reduce_scatter is added to its output");
  const bool wide = call.dtype == DType::f32 || call.dtype == DType::f64;
  if (how.tree && (how.op != ReduceOp::sum || how.factor != 1 || how.accumulate || !wide))
    refuse("only a plain sum in float or double is taken in a tree");
  if (call.once && call.kind != Kind::all_gather) refuse("only an all_gather goes into one memory of all ranks");
  if (call.once && call.extents != nullptr && 2 * (static_cast<int64_t>(call.extents->inputs.size()) - 1) > table_words)
    refuse(fmt::format("{} tensors; at most {} go into one memory in a call", call.extents->inputs.size(),
                       table_words / 2 + 1));
  if (call.once && call.input_dtype != call.dtype && !converts(call.input_dtype, call.dtype))
    refuse(fmt::format("it cannot cast {} to {}", trireme::name_of(call.input_dtype), trireme::name_of(call.dtype)));
  if (integers && (how.op == ReduceOp::avg || how.factor != 1)) {
    refuse("integers have no average and no factor: sum them, and divide where it is meant");
  }
}

void Group::check_overlap(const Operation& operation) const {
  const Call& call = operation.call;
  if (call.kind == Kind::barrier || is_message(call.kind)) return;
  const int64_t tensors = operation.in_.tensors();
  for (int64_t t = 0; t < tensors; ++t) {
    const auto* in = static_cast<const std::byte*>(operation.input(t));
    const auto* out = static_cast<const std::byte*>(operation.output(t));
    if (in == nullptr || out == nullptr) continue;
    const int64_t in_bytes = operation.in_.tensor(t) * operation.input_bytes_;
    const int64_t out_bytes = operation.out_.tensor(t) * operation.element_bytes_;
    if (in + in_bytes <= out || out + out_bytes <= in || in_bytes == 0 || out_bytes == 0) continue;
    const bool joins = joins_output(call.kind), splits = splits_input(call.kind);
    const bool accumulates = call.reduction.accumulate;
    const bool allowed =
        (!joins && !splits && in == out) ||
        (joins && !splits && in == out + operation.out_.start(t, rank_) * operation.element_bytes_) ||
        (splits && !joins && !accumulates && out == in + operation.in_.start(t, rank_) * operation.element_bytes_);
    if (allowed) continue;
    throw_input(
        "{} on axis {}: input and output overlap; in place means block {} of the larger one for gathers and scatters, "
        "and is not possible for all_to_all, nor where a sum is added to the output",
        describe(operation), axis_, rank_);
  }
}

// comm.check = all: a NaN is told where it comes from, not where it went.
void Group::check_numbers(const Operation& operation) {
  const Call& call = operation.call;
  if (size_ == 1 || settings_->check != CheckLevel::all || !is_reduction(call.kind)) return;
  for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
    if (!holds_nan(operation.input(t), operation.in_.tensor(t), call.dtype)) continue;
    const std::string which = operation.in_.tensors() > 1 ? fmt::format(" of tensor {}", t) : "";
    const std::string text = fmt::format("{}: {} #{} on axis {}: the input{} of this rank holds NaN (comm.check = all)",
                                         signature(), describe(operation), next_sequence(), axis_, which);
    refuse_numbers(text);
  }
}

// What else than pack() must be equal: counts of tensors and blocks, the factor, and if asked for the shape.
uint64_t Group::detail_of(const Operation& operation) const {
  const Call& call = operation.call;
  uint64_t hash = 0;
  const auto add = [&](const void* data, size_t bytes) {
    hash = hash64({static_cast<const char*>(data), bytes}, hash + 1);
  };
  if (call.reduction.factor != 1) add(&call.reduction.factor, sizeof(double));
  if (call.once) add(&call.input_dtype, sizeof call.input_dtype);
  if (call.extents != nullptr && call.kind != Kind::all_to_all) {
    add(call.extents->counts.data(), call.extents->counts.size() * sizeof(int64_t));
  }
  if (settings_->check >= CheckLevel::shapes && !call.shape.empty()) {
    add(call.shape.data(), call.shape.size() * sizeof(int64_t));
  }
  return hash;
}

void Group::run_alone(const Operation& operation) const {
  if (operation.call.kind == Kind::barrier) return;
  for (int64_t t = 0; t < operation.in_.tensors(); ++t) {
    const void* from = operation.input(t);
    void* to = operation.output(t);
    const int64_t count = operation.out_.tensor(t);
    if (from == nullptr || to == nullptr || count == 0) continue;
    if (operation.call.reduction.accumulate) {
      const std::array<const void*, 2> terms = {to, from};
      reduce({&to, 1}, terms, count, operation.call.dtype, operation.call.reduction);
    } else if (operation.call.reduction.factor != 1) {
      reduce({&to, 1}, {&from, 1}, count, operation.call.dtype, operation.call.reduction);
    } else if (from != to) {
      std::memcpy(to, from, static_cast<size_t>(count * operation.element_bytes_));
    }
  }
}

void Group::prepare(Operation& operation) {
  const Call& call = operation.call;
  operation.element_bytes_ = size_of(call.dtype);
  operation.input_bytes_ = call.once ? size_of(call.input_dtype) : operation.element_bytes_;
  operation.packed_ = pack(call, size_);
  check(operation);
  lay_out(operation);
  check_overlap(operation);
  check_numbers(operation);
}

Group::Nanoseconds Group::record(Operation& operation) {
  dump_if_asked();
  const Call& call = operation.call;
  FlightRecord record;
  record.group = recorded_as_;
  record.packed = operation.packed_;
  record.sequence = operation.sequence;
  record.count = call.count;
  record.bytes = std::max(operation.in_.total(), operation.out_.total()) * operation.element_bytes_;
  record.shape = call.shape;
  record.posted = steady_nanoseconds();
  operation.record_ = recorder_->add(record);
  return record.posted;
}

}  // namespace trireme::comm
