#include "ops/matmul.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <climits>
#include <optional>

#include "ops/dispatch.h"
#include "ops/tiled_matmul.h"

// MKL's product of bf16 into fp32, which LibTorch for x86-64 has in it and does not declare. A weak name is null where
// it is missing. Integers are of 32 bits, as LibTorch is linked with the LP64 interface.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b, int m, int n,
                                                             int k, float alpha, const at::BFloat16* a, int stride_a,
                                                             const at::BFloat16* b, int stride_b, float beta, float* c,
                                                             int stride_c);

namespace trireme::ops {
namespace {

constexpr int kByRows = 101, kAsItIs = 111, kTransposed = 112;  // of CBLAS

struct Operand {
  int transpose;
  int64_t stride;
};

std::optional<Operand> operand_of(const at::Tensor& x) {
  const auto fits = [](int64_t unit, int64_t other, int64_t length) {
    return unit == 1 && other >= length && other <= INT_MAX;
  };
  if (fits(x.stride(1), x.stride(0), x.size(1))) return Operand{kAsItIs, x.stride(0)};
  if (fits(x.stride(0), x.stride(1), x.size(0))) return Operand{kTransposed, x.stride(1)};
  return std::nullopt;
}

// Where the sum over k is long, as in a weight's gradient, this takes 0.7 of the time that oneDNN takes to write bf16
// and a second pass to add that.
bool add_bf16_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  const auto left = operand_of(a), right = operand_of(b);
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  if (cblas_gemm_bf16bf16f32 == nullptr || !on_cpu(out) || !left || !right || std::max({m, n, k}) > INT_MAX)
    return false;
  const auto narrow = [](int64_t x) { return static_cast<int>(x); };
  cblas_gemm_bf16bf16f32(kByRows, left->transpose, right->transpose, narrow(m), narrow(n), narrow(k), 1.0F,
                         a.const_data_ptr<at::BFloat16>(), narrow(left->stride), b.const_data_ptr<at::BFloat16>(),
                         narrow(right->stride), accumulate ? 1.0F : 0.0F, out.data_ptr<float>(), narrow(n));
  return true;
}

bool takes_tiled_result(const at::Tensor& out) {
  return on_cpu(out) && out.stride(1) == 1 && (out.scalar_type() == at::kFloat || out.scalar_type() == at::kBFloat16);
}

void check_no_graph(const at::Tensor& a, const at::Tensor& b) {
  TRIREME_CHECK(!at::GradMode::is_enabled() || !(a.requires_grad() || b.requires_grad()),
                "a product of ops/matmul.h, which autograd does not record, of tensors that want gradients");
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  check_no_graph(a, b);
  if (tiled_matmul_applies(a, b) &&
      (!bias.defined() || (bias.scalar_type() == at::kBFloat16 && bias.is_contiguous()))) {
    at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    tiled_matmul(out, a, b, bias, false);
    return out;
  }
  return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  check_no_graph(a, b);
  if (out.scalar_type() == at::kBFloat16 && takes_tiled_result(out) && tiled_matmul_applies(a, b))
    tiled_matmul(out, a, b, {}, false);
  else
    at::mm_out(out, a, b);
}

void add_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  TRIREME_CHECK(out.is_contiguous() && out.size(0) == a.size(0) && out.size(1) == b.size(1) && a.size(1) == b.size(0),
                "a product of shapes that do not fit");
  if (out.numel() == 0) return;
  if (a.size(1) == 0) {
    if (!accumulate) out.zero_();
  } else if (takes_tiled_result(out) && tiled_matmul_applies(a, b)) {
    tiled_matmul(out, a, b, {}, accumulate);
  } else if (out.scalar_type() == a.scalar_type()) {
    if (accumulate) {
      out.addmm_(a, b);
    } else {
      at::mm_out(out, a, b);
    }
  } else if (a.scalar_type() == at::kBFloat16 && out.scalar_type() == at::kFloat &&
             add_bf16_product(out, a, b, accumulate)) {
    return;
  } else if (accumulate) {  // rounded to the type of a and b in between
    out.add_(at::mm(a, b));
  } else {
    out.copy_(at::mm(a, b));
  }
}

}  // namespace trireme::ops
