// Seconds of one training step: every operation by a roofline, collectives by alpha and beta, the pipeline by playing
// its table, then the exchange of gradients and the optimizer.
//
// A product of [m, k] x [k, n] runs at matmul_share x peak x the shares of its last tiles that are filled (128 in m and
// n, 64 in k), or at the memory's rate where that is slower. A fused attention runs at flash_share of that rate.
// Everything else moves bytes. Sources of the terms: docs/plan.md.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "plan/job.h"

namespace trireme::plan {

/// What a step's time is made of. The terms of one step add up to it.
enum class Term {
  products,   ///< matrix products with weights, forward and backward
  attention,  ///< products of activations
  passes,     ///< element-wise, memory-bound
  gaps,       ///< between kernels, and waiting for the host to start them
  recompute,  ///< forward work done again in backward, with its exchange
  tensor,     ///< exchange between tensor ranks
  context,    ///< keys and values between context ranks, as far as attention does not hide it
  expert,     ///< tokens to experts and back
  gather,     ///< weights from data ranks (ZeRO 3) and their gradients back, as far as compute does not hide it
  bubble,     ///< pipeline ranks that wait, and transfers between stages
  gradients,  ///< exchange of gradients between data ranks, as far as backward does not hide it
  optimizer,
};
inline constexpr size_t kTerms = 12;
std::string_view name_of(Term term);
using Terms = std::array<double, kTerms>;

struct StepTime {
  double seconds = 0;
  Terms terms{};            ///< seconds of the rank that works most; they add up to `seconds`
  double idle_share = 0;    ///< of the pipeline: 1 - mean work / time
  double bubble_ideal = 0;  ///< the closed form (p - 1) / (v m), of ideal time
  double model_flops = 0;   ///< of the step, PaLM's convention (describe/model_shape.h)
  double mfu = 0;           ///< against the bf16 peak (fp8: also bf16's, as most publish), causal attention not halved
  double hfu = 0;           ///< with recomputation, as executed
  double tokens_per_second_gpu = 0;
};

struct StepOptions {
  std::array<bool, kTerms> off{};  ///< terms that cost nothing
  bool simulate = true;            ///< false: least_seconds of the pipeline, a bound from below
};

/// `layout` is sound for the job (layout_faults).
StepTime step_time(const Job& job, const Layout& layout, const StepOptions& options = {});

/// How much shorter the step were without a term.
struct WhatIf {
  Term term;
  double seconds = 0;  ///< of the step without it
  double saved = 0;    ///< share of the step's time
};
/// Largest first; terms that save nothing are left out.
std::vector<WhatIf> what_if(const Job& job, const Layout& layout);

/// Rate of large matrix products, FLOP/s, and what it follows from.
double matmul_rate(const Job& job);
/// Peak of the job's precision, FLOP/s.
double peak_rate(const Job& job);

}  // namespace trireme::plan
