#include "comm/call.h"

#include <fmt/format.h>

namespace trireme::comm {

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "nothing";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::all_gather:
      return "all_gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
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
  return call.kind == Kind::all_reduce && (call.input == nullptr || call.input == call.output);
}

uint64_t pack(const Call& call) {
  return static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.op) << 8 |
         static_cast<uint64_t>(call.dtype) << 16 | static_cast<uint64_t>(in_place(call)) << 24 |
         static_cast<uint64_t>(call.root) << 32;
}

std::string describe(uint64_t packed, int64_t count) {
  const auto kind = static_cast<Kind>(packed & 0xff);
  const auto op = static_cast<ReduceOp>(packed >> 8 & 0xff);
  const auto dtype = static_cast<DType>(packed >> 16 & 0xff);
  const auto root = static_cast<int64_t>(packed >> 32);
  const std::string shape = fmt::format("{} x {}", name_of(dtype), count);
  switch (kind) {
    case Kind::none:
    case Kind::barrier:
      return std::string(name_of(kind));
    case Kind::all_reduce:
      return fmt::format("all_reduce({}, {}{})", name_of(op), shape, (packed >> 24 & 1) != 0 ? "" : ", out of place");
    case Kind::reduce_scatter:
      return fmt::format("{}({}, {})", name_of(kind), name_of(op), shape);
    case Kind::broadcast:
      return fmt::format("broadcast({}, root {})", shape, root);
    case Kind::send:
      return fmt::format("send({}, to {})", shape, root);
    case Kind::recv:
      return fmt::format("recv({}, from {})", shape, root);
    default:
      return fmt::format("{}({})", name_of(kind), shape);
  }
}

}  // namespace trireme::comm
