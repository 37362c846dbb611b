#include "base/dtype.h"

#include <array>

#include "base/error.h"

namespace trireme {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<Row, 7> kRows{{{DType::u8, "U8", 1},
                                    {DType::i32, "I32", 4},
                                    {DType::i64, "I64", 8},
                                    {DType::f16, "F16", 2},
                                    {DType::bf16, "BF16", 2},
                                    {DType::f32, "F32", 4},
                                    {DType::f64, "F64", 8}}};

}  // namespace

int64_t size_of(DType dtype) { return kRows.at(static_cast<size_t>(dtype)).bytes; }

std::string_view name_of(DType dtype) { return kRows.at(static_cast<size_t>(dtype)).name; }

DType dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  throw_input("element type {} is not known; U8, I32, I64, F16, BF16, F32 and F64 are", name);
}

}  // namespace trireme
