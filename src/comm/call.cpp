#include "comm/call.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::comm {

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "nothing";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::reduce:
      return "reduce";
    case Kind::all_gather:
      return "all_gather";
    case Kind::gather:
      return "gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::scatter:
      return "scatter";
    case Kind::broadcast:
      return "broadcast";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::barrier:
      return "barrier";
    case Kind::send:
      return "send";
    case Kind::recv:
      return "recv";
  }
  return "?";
}

bool in_place(const Call& call) {
  if (call.kind == Kind::reduce) return true;
  if (call.kind != Kind::all_reduce) return false;
  if (call.extents == nullptr) return call.input == nullptr || call.input == call.output;
  const Extents& extents = *call.extents;
  return std::equal(extents.inputs.begin(), extents.inputs.end(), extents.outputs.begin(), extents.outputs.end());
}

uint64_t pack(const Call& call, int64_t ranks) {
  const Extents* extents = call.extents.get();
  const uint64_t tensors = extents == nullptr ? 1 : std::max(extents->inputs.size(), extents->outputs.size());
  const bool uneven = extents != nullptr && tensors * static_cast<uint64_t>(ranks) == extents->counts.size() &&
                      (splits_input(call.kind) || joins_output(call.kind));
  return static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.reduction.op) << 8 |
         static_cast<uint64_t>(call.dtype) << 16 | static_cast<uint64_t>(in_place(call)) << 24 |
         static_cast<uint64_t>(uneven) << 25 | static_cast<uint64_t>(call.once) << 26 |
         static_cast<uint64_t>(call.reduction.accumulate) << 27 | static_cast<uint64_t>(call.reduction.tree) << 28 |
         static_cast<uint64_t>(call.root) << 32 | std::min<uint64_t>(tensors, 0xffff) << 48;
}

Unpacked unpack(uint64_t packed) {
  Unpacked parts;
  parts.kind = static_cast<Kind>(packed & 0xff);
  parts.op = static_cast<ReduceOp>(packed >> 8 & 0xff);
  parts.dtype = static_cast<DType>(packed >> 16 & 0xff);
  parts.in_place = (packed >> 24 & 1) != 0;
  parts.uneven = (packed >> 25 & 1) != 0;
  parts.once = (packed >> 26 & 1) != 0;
  parts.accumulate = (packed >> 27 & 1) != 0;
  parts.tree = (packed >> 28 & 1) != 0;
  parts.root = static_cast<int64_t>(packed >> 32 & 0xffff);
  parts.tensors = static_cast<int64_t>(packed >> 48);
  return parts;
}

std::string describe(uint64_t packed, int64_t count) {
  const Unpacked call = unpack(packed);
  if (call.kind == Kind::none || call.kind == Kind::barrier) return std::string(name_of(call.kind));
  std::string text = fmt::format("{}(", name_of(call.kind));
  if (is_reduction(call.kind)) text += fmt::format("{}, ", name_of(call.op));
  text += fmt::format("{} x {}", name_of(call.dtype), count);
  if (call.tensors != 1) text += fmt::format(" in {} tensors", call.tensors);
  if (call.uneven) text += ", uneven";
  if (call.kind == Kind::all_reduce && !call.in_place) text += ", out of place";
  if (call.once) text += ", into one memory";
  if (call.accumulate) text += ", accumulating";
  if (call.tree) text += ", in a tree";
  if (has_root(call.kind)) text += fmt::format(", root {}", call.root);
  if (is_message(call.kind)) text += fmt::format(", {} {}", call.kind == Kind::send ? "to" : "from", call.root);
  return text + ")";
}

}  // namespace trireme::comm
