// Floating-point operations of a token by the conventions that papers use. Never compare two of different names.
#pragma once

#include <string_view>

#include "plan/job.h"

namespace trireme::plan {

enum class FlopConvention {
  six_n,        ///< 6 x parameters that a token meets, embedding among them: "6ND" (Kaplan et al., arXiv:2001.08361)
  palm,         ///< 6 x parameters that multiply + 12 x layers x heads x head dim x sequence (PaLM, appendix B)
  palm_causal,  ///< the same with what a causal mask leaves of attention
  narayanan,    ///< 72 L h^2 (1 + s / 6h + V / 12Lh): model FLOPs of a GPT with ffn = 4h (arXiv:2104.04473, 5.1)
};
std::string_view name_of(FlopConvention convention);
/// Of a token, forward and backward, without recomputation. A token counts the routed experts that it visits.
/// narayanan throws InputError for a model of another form.
double flops_per_token(const describe::WorkShape& shape, int64_t seq_len, FlopConvention convention);

/// Narayanan's hardware FLOPs with full recomputation: 96 L h^2 (1 + s / 6h + V / 16Lh).
double narayanan_hardware_flops_per_token(const describe::WorkShape& shape, int64_t seq_len);

/// Of a step as it is executed, recomputation among them, all ranks: for HFU.
double executed_flops(const Job& job, const Layout& layout);

}  // namespace trireme::plan
