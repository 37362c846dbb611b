#include "ops/tiled_matmul.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "describe/matmul_plan.h"
#include "memory/purpose.h"
#include "ops/dispatch.h"
#include "ops/tile_panels.h"
#include "ops/tile_product.h"

namespace trireme::ops {
namespace {

using describe::MatmulPlan;
static_assert(MatmulPlan::kPanel == kPanel && MatmulPlan::kPanel == kPanelStep);

std::optional<PanelSource> source_of(const at::Tensor& x, int64_t outer, int64_t k) {
  const auto* from = reinterpret_cast<const Bf16*>(x.const_data_ptr<at::BFloat16>());
  if (x.stride(k) == 1 && x.stride(outer) >= x.size(k)) return PanelSource{from, x.stride(outer), true};
  if (x.stride(outer) == 1 && x.stride(k) >= x.size(outer)) return PanelSource{from, x.stride(k), false};
  return std::nullopt;
}

// body(thread, next) on each thread; pieces of work are taken from `next` by whoever is free, since of two processors
// of a shared machine one is at times four times as fast as the other.
template <typename Body>
void take_turns(int64_t pieces, int64_t threads, const Body& body) {
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min(pieces, threads), 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) body(thread, next);
  });
}

class Product {
 public:
  Product(const MatmulPlan& plan, const at::Tensor& out, const PanelSource& a, const PanelSource& b, const Bf16* bias,
          bool accumulate, int64_t threads)
      : p_(plan),
        shared_(plan.left_is_shared ? a : b),
        own_(plan.left_is_shared ? b : a),
        out_(out.data_ptr()),
        out_stride_(out.stride(0)),
        out_is_float_(out.scalar_type() == at::kFloat),
        bias_(bias),
        accumulate_(accumulate),
        threads_(threads),
        scratch_(at::empty({plan.scratch_bytes(threads)}, at::kByte)) {
    sums_ = static_cast<float*>(scratch_.data_ptr());
    packed_ = reinterpret_cast<Bf16*>(sums_ + p_.sums_size);
    own_packed_ = packed_ + p_.packed_size;
  }

  void run() {
    for (first_ = 0; first_ < p_.shared; first_ += p_.chunk)
      for (block_ = 0; block_ < p_.steps; block_ += p_.round) {
        chunk_ = std::min(p_.chunk, p_.shared - first_);
        last_block_ = std::min(p_.steps, block_ + p_.round);
        pack_shared();
        multiply();
      }
  }

 private:
  int64_t steps_of(int64_t block) const { return std::min(p_.step, p_.k - block * p_.step); }

  // Blocks of the sum one after another, panels of the chunk within.
  Bf16* shared_panel(int64_t block, int64_t outer) const {
    return packed_ + (block - block_) * p_.chunk * p_.step + outer * round_up(steps_of(block), kPanelStep);
  }

  void pack_shared() const {
    constexpr int64_t kPiece = 4 * kPanel;
    const int64_t across = (chunk_ + kPiece - 1) / kPiece, pieces = across * (last_block_ - block_);
    take_turns(pieces, threads_, [&](int64_t, std::atomic<int64_t>& next) {
      for (int64_t piece = next++; piece < pieces; piece = next++) {
        const int64_t block = block_ + piece / across, outer = piece % across * kPiece;
        pack_panels(shared_, first_ + outer, std::min(kPiece, chunk_ - outer), block * p_.step, steps_of(block),
                    !p_.left_is_shared, shared_panel(block, outer));
      }
    });
  }

  void multiply() const {
    const int64_t stretches = (chunk_ + p_.stretch - 1) / p_.stretch,
                  tasks = (p_.own + p_.block - 1) / p_.block * stretches;
    take_turns(tasks, threads_, [&](int64_t thread, std::atomic<int64_t>& next) {
      const PanelProducts products;
      for (int64_t task = next++; task < tasks; task = next++) {
        const int64_t own = task / stretches * p_.block, outer = task % stretches * p_.stretch;
        float* sums = sums_ + (p_.keeps_sums ? task : thread) * p_.block * p_.stretch;
        for (int64_t block = block_; block < last_block_; ++block)
          multiply_task(products, own, outer, block, own_packed_ + thread * p_.own_size, sums);
      }
    });
  }

  void multiply_task(const PanelProducts& products, int64_t own, int64_t outer, int64_t block, Bf16* own_packed,
                     float* sums) const {
    const int64_t steps = steps_of(block), in_panel = round_up(steps, kPanelStep), products_of = in_panel / kPanelStep;
    const int64_t own_end = std::min(p_.block, p_.own - own), outer_end = std::min(p_.stretch, chunk_ - outer);
    const bool last = block + 1 == p_.steps;
    pack_panels(own_, own, own_end, block * p_.step, steps, p_.left_is_shared, own_packed);
    alignas(64) float one[kPanel * kPanel];
    for (int64_t s = 0; s < outer_end; s += kPanel) {
      const Bf16* shared = shared_panel(block, outer + s);
      // The next panel, a part of it with each block of ours.
      const char* ahead = reinterpret_cast<const char*>(shared + in_panel * kPanel);
      int64_t left_ahead = s + kPanel < outer_end ? in_panel * kPanel * 2 : 0;
      for (int64_t i = 0; i < own_end; i += kPanel) {
        const Bf16* mine = own_packed + i * in_panel;
        const Bf16 *a = p_.left_is_shared ? shared : mine, *b = p_.left_is_shared ? mine : shared;
        const int64_t s_at = first_ + outer + s, i_at = own + i;
        const int64_t row = p_.left_is_shared ? s_at : i_at, col = p_.left_is_shared ? i_at : s_at;
        const int64_t rows = std::min(kPanel, p_.m - row), cols = std::min(kPanel, p_.n - col);
        const void* fetch = nullptr;
        if (left_ahead >= products_of * 256) {
          fetch = ahead;
          ahead += products_of * 256;
          left_ahead -= products_of * 256;
        }
        const bool add = block > 0 || accumulate_, whole = rows == kPanel && cols == kPanel;
        if (out_is_float_) {
          float* to = static_cast<float*>(out_) + row * out_stride_ + col;
          if (whole && bias_ == nullptr) {
            products.multiply(a, b, products_of, to, out_stride_, add, fetch);
          } else {
            if (add) read_block(to, out_stride_, rows, cols, one);
            products.multiply(a, b, products_of, one, kPanel, add, fetch);
            write_block(one, rows, cols, {to, out_stride_, true, last && bias_ != nullptr ? bias_ + col : nullptr});
          }
          continue;
        }
        float* kept = p_.steps > 1 ? sums + (s * p_.block + i * kPanel) : one;
        products.multiply(a, b, products_of, kept, kPanel, block > 0, fetch);
        if (last)
          write_block(kept, rows, cols,
                      {static_cast<Bf16*>(out_) + row * out_stride_ + col, out_stride_, false,
                       bias_ == nullptr ? nullptr : bias_ + col, accumulate_});
      }
    }
  }

  const MatmulPlan& p_;
  const PanelSource shared_, own_;
  void* out_;
  int64_t out_stride_;
  bool out_is_float_;
  const Bf16* bias_;
  bool accumulate_;
  int64_t threads_;
  at::Tensor scratch_;
  float* sums_;
  Bf16 *packed_, *own_packed_;
  // Of the round at hand.
  int64_t first_ = 0, chunk_ = 0, block_ = 0, last_block_ = 0;
};

}  // namespace

bool tiled_matmul_applies(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kLeastExtent = kPanel, kLeastProducts = 1 << 20;
  if (a.dim() != 2 || b.dim() != 2) return false;
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  return on_cpu(a) && on_cpu(b) && a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 &&
         std::min({m, n, k}) >= kLeastExtent && m * n * k >= kLeastProducts && tile_products_apply() &&
         source_of(a, 0, 1) && source_of(b, 1, 0);
}

void tiled_matmul(const at::Tensor& out, const at::Tensor& left_operand, const at::Tensor& right_operand,
                  const at::Tensor& bias, bool accumulate) {
  // Their memory is read without an operation of LibTorch; by these, who watches reads of a weight sees it before
  // (parallel/use_observer.h).
  const at::Tensor a = at::alias(left_operand), b = at::alias(right_operand);
  const auto is_bf16 = [](const at::Tensor& x, int64_t dim) {
    return on_cpu(x) && x.dim() == dim && x.scalar_type() == at::kBFloat16;
  };
  TRIREME_CHECK(is_bf16(a, 2) && is_bf16(b, 2), "operands of a product that are not matrices of bf16 on the CPU");
  const auto left = source_of(a, 0, 1), right = source_of(b, 1, 0);
  TRIREME_CHECK(left && right && a.size(1) == b.size(0), "a product of shapes that do not fit");
  TRIREME_CHECK(on_cpu(out) && out.dim() == 2 && out.size(0) == a.size(0) && out.size(1) == b.size(1) &&
                    (out.scalar_type() == at::kFloat || out.scalar_type() == at::kBFloat16) && out.stride(1) == 1 &&
                    (out.size(0) == 1 || out.stride(0) >= out.size(1)),
                "a result that does not fit its product");
  TRIREME_CHECK(
      !bias.defined() || (is_bf16(bias, 1) && bias.numel() == out.size(1) && bias.is_contiguous() && !accumulate),
      "a bias that does not fit its product");
  at::assert_no_overlap(out, a);
  at::assert_no_overlap(out, b);
  const memory::PurposeScope purpose(memory::Purpose::workspace);
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const MatmulPlan plan(a.size(0), b.size(1), a.size(1), out.scalar_type() == at::kFloat, threads);
  Product(plan, out, *left, *right, bias.defined() ? data<Bf16>(bias) : nullptr, accumulate, threads).run();
}

}  // namespace trireme::ops
