// The operator of a reduction, named as the field names it.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::comm {

enum class ReduceOp : uint8_t { sum, max, min };

constexpr std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "?";
}

}  // namespace trireme::comm
