// Element types, named as safetensors names them, for code that does not include torch.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme {

enum class DType : uint8_t { u8, i32, i64, f16, bf16, f32, f64 };

/// Size of one element in bytes.
int64_t size_of(DType dtype);
/// Name in a safetensors header: U8, I32, I64, F16, BF16, F32, F64.
std::string_view name_of(DType dtype);
/// The inverse of name_of; throws InputError for a name that is not known.
DType dtype_from_name(std::string_view name);

}  // namespace trireme
