// Products of our own kernel beside ATen's of fp32, on whole numbers, so that both are exact and one lost, doubled or
// misplaced number shows. Catches: a mistake in packing (each view of each operand), in panels that are not full, in
// blocks of the sum (in one go, in scratch of a thread, over rounds), a bias added twice, memory written beyond the
// result, and bits that depend on the number of threads or on other rows.
#include "ops/tiled_matmul.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ops/matmul.h"
#include "ops/tile_product.h"

namespace trireme::ops {
namespace {

class TiledMatmul : public testing::Test {
 protected:
  void SetUp() override {
    if (!tile_products_apply()) GTEST_SKIP() << "this CPU has no tile registers, or TRIREME_KERNELS forbids them";
    at::manual_seed(1);
  }
};

struct Shape {
  int64_t m, n, k;
};

// Whole numbers from -3 to 3, as a view: by rows, transposed, within a larger matrix of NaN, that transposed.
at::Tensor operand(int64_t rows, int64_t cols, int how) {
  const auto numbers = [](int64_t r, int64_t c) { return at::randint(-3, 4, {r, c}).to(at::kBFloat16); };
  const auto within = [&](int64_t r, int64_t c) {
    const at::Tensor inner = at::full({r + 2, c + 5}, NAN, at::kBFloat16).narrow(0, 1, r).narrow(1, 2, c);
    inner.copy_(numbers(r, c));
    return inner;
  };
  switch (how) {
    case 0:
      return numbers(rows, cols);
    case 1:
      return numbers(cols, rows).t();
    case 2:
      return within(rows, cols);
    default:
      return within(cols, rows).t();
  }
}

// A result [m, n] within a larger matrix of a number that must stay.
struct Framed {
  explicit Framed(const Shape& shape, at::ScalarType type)
      : all(at::full({shape.m + 2, shape.n + 2}, 7, type)), inner(all.narrow(0, 1, shape.m).narrow(1, 1, shape.n)) {}
  bool frame_is_whole() const {
    return all[0].eq(7).all().item<bool>() && all[all.size(0) - 1].eq(7).all().item<bool>() &&
           all.select(1, 0).eq(7).all().item<bool>() && all.select(1, all.size(1) - 1).eq(7).all().item<bool>();
  }
  at::Tensor all, inner;
};

void check(const Shape& shape, int left, int right) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, views {} and {}", shape.m, shape.n, shape.k, left, right));
  const at::Tensor a = operand(shape.m, shape.k, left), b = operand(shape.k, shape.n, right);
  const at::Tensor exact = at::mm(a.to(at::kFloat), b.to(at::kFloat)), bias = at::randint(-99, 99, {shape.n});

  Framed written(shape, at::kFloat), rounded(shape, at::kBFloat16), biased(shape, at::kBFloat16);
  written.inner.fill_(NAN);
  rounded.inner.fill_(NAN);
  biased.inner.fill_(NAN);
  tiled_matmul(written.inner, a, b, {}, false);
  EXPECT_TRUE(at::equal(written.inner, exact));
  tiled_matmul(written.inner, a, b, {}, true);
  EXPECT_TRUE(at::equal(written.inner, exact * 2));
  tiled_matmul(rounded.inner, a, b, {}, false);
  EXPECT_TRUE(at::equal(rounded.inner, exact.to(at::kBFloat16)));
  const at::Tensor there = rounded.inner.to(at::kFloat);
  tiled_matmul(rounded.inner, a, b, {}, true);
  EXPECT_TRUE(at::equal(rounded.inner, (exact + there).to(at::kBFloat16)));
  tiled_matmul(biased.inner, a, b, bias.to(at::kBFloat16), false);
  EXPECT_TRUE(at::equal(biased.inner, (exact + bias.to(at::kBFloat16)).to(at::kBFloat16)));
  tiled_matmul(written.inner, a, b, bias.to(at::kBFloat16), false);
  EXPECT_TRUE(at::equal(written.inner, exact + bias.to(at::kBFloat16)));
  EXPECT_TRUE(written.frame_is_whole() && rounded.frame_is_whole() && biased.frame_is_whole());
}

TEST_F(TiledMatmul, IsExactOnWholeNumbersOfAnyShape) {
  for (const Shape& shape :
       {Shape{1, 1, 1}, Shape{32, 32, 32}, Shape{33, 31, 1}, Shape{64, 96, 33}, Shape{7, 200, 65}, Shape{257, 129, 100},
        Shape{48, 3, 1023}, Shape{161, 79, 1057}, Shape{300, 1100, 513}, Shape{1100, 290, 2049}, Shape{95, 2500, 3100}})
    for (int views = 0; views < 16; ++views) check(shape, views % 4, views / 4);
}

TEST_F(TiledMatmul, IsExactWhereTheSharedOperandIsPackedInRounds) {
  check({300, 333, 30000}, 0, 3);  // of the sum
  check({333, 300, 30000}, 3, 0);
  check({300, 600, 16384}, 2, 1);  // of its extent
  check({700, 720, 16500}, 1, 2);  // of both
}

TEST_F(TiledMatmul, HasTheSameBitsForAnyNumberOfThreadsAndRows) {
  const int before = at::get_num_threads();
  for (const Shape& shape : {Shape{512, 384, 3000}, Shape{384, 1000, 512}, Shape{200, 150, 17000}}) {
    const at::Tensor a = at::randn({shape.m, shape.k}).to(at::kBFloat16),
                     b = at::randn({shape.k, shape.n}).to(at::kBFloat16);
    at::set_num_threads(1);
    const at::Tensor wide = at::empty({shape.m, shape.n}), narrow = at::empty({shape.m, shape.n}, at::kBFloat16);
    tiled_matmul(wide, a, b, {}, false);
    tiled_matmul(narrow, a, b, {}, false);
    for (const int threads : {2, 3, 7}) {
      at::set_num_threads(threads);
      const at::Tensor again = at::empty_like(wide), part = at::empty({100, shape.n}, at::kBFloat16);
      tiled_matmul(again, a, b, {}, false);
      EXPECT_TRUE(at::equal(again, wide)) << threads;
      tiled_matmul(part, a.narrow(0, 37, 100), b, {}, false);
      EXPECT_TRUE(at::equal(part, narrow.narrow(0, 37, 100))) << threads;
      const at::Tensor wide_part = at::empty({100, 64});
      tiled_matmul(wide_part, a.narrow(0, 37, 100), b.narrow(1, 11, 64), {}, false);
      EXPECT_TRUE(at::equal(wide_part, wide.narrow(0, 37, 100).narrow(1, 11, 64))) << threads;
    }
  }
  at::set_num_threads(before);
}

TEST_F(TiledMatmul, IsOfFullPrecision) {
  const at::Tensor a = at::randn({200, 4096}).to(at::kBFloat16), b = at::randn({4096, 200}).to(at::kBFloat16);
  const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)), out = at::empty({200, 200});
  const at::Tensor size = at::mm(a.to(at::kDouble).abs(), b.to(at::kDouble).abs());  // of what is summed
  tiled_matmul(out, a, b, {}, false);
  EXPECT_LE(((out - exact).abs() / size).max().item<double>(), 1e-6);
}

// From within a parallel region, as an operation of LibTorch over heads would; and from several threads at once.
TEST_F(TiledMatmul, MayBeCalledFromManyThreadsAtOnce) {
  const at::Tensor a = operand(256, 700, 0), b = operand(700, 300, 0);
  const at::Tensor exact = at::mm(a.to(at::kFloat), b.to(at::kFloat));
  std::vector<at::Tensor> out(8);
  for (at::Tensor& x : out) x = at::empty_like(exact);
  at::parallel_for(0, 8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) tiled_matmul(out[static_cast<size_t>(i)], a, b, {}, false);
  });
  for (const at::Tensor& x : out) EXPECT_TRUE(at::equal(x, exact));
  for (const at::Tensor& x : out) x.fill_(NAN);
  std::vector<std::thread> threads;  // each has a team of its own
  for (const at::Tensor& x : out)
    threads.emplace_back([&, x] {
      for (int i = 0; i < 20; ++i) tiled_matmul(x, a, b, {}, false);
    });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& x : out) EXPECT_TRUE(at::equal(x, exact));
}

// Operands that end right before memory which may not be read.
TEST_F(TiledMatmul, ReadsNothingBeyondItsOperands) {
  const int64_t page = ::sysconf(_SC_PAGESIZE), room = 64 * page;
  struct Guarded {
    explicit Guarded(int64_t bytes, int64_t page) : bytes(bytes + page) {
      memory = static_cast<char*>(::mmap(nullptr, static_cast<size_t>(this->bytes), PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      EXPECT_EQ(::mprotect(memory + bytes, static_cast<size_t>(page), PROT_NONE), 0);
      end = memory + bytes;
    }
    ~Guarded() { ::munmap(memory, static_cast<size_t>(bytes)); }
    at::Tensor matrix(int64_t rows, int64_t cols) const {
      const at::Tensor x = at::from_blob(end - 2 * rows * cols, {rows, cols}, at::kBFloat16);
      return x.copy_(at::randint(-3, 4, {rows, cols}));
    }
    int64_t bytes;
    char *memory, *end;
  };
  const Guarded left(room, page), right(room, page), result(room, page);
  for (const Shape& shape : {Shape{33, 45, 67}, Shape{64, 64, 64}, Shape{100, 35, 40}})
    for (const bool transpose_left : {false, true})
      for (const bool transpose_right : {false, true}) {
        const at::Tensor a = transpose_left ? left.matrix(shape.k, shape.m).t() : left.matrix(shape.m, shape.k);
        const at::Tensor b = transpose_right ? right.matrix(shape.n, shape.k).t() : right.matrix(shape.k, shape.n);
        const at::Tensor out = result.matrix(shape.m, shape.n);
        tiled_matmul(out, a, b, {}, false);
        EXPECT_TRUE(at::equal(out, at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(at::kBFloat16)));
      }
}

TEST_F(TiledMatmul, KeepsWhatIsNotANumberToItsRowAndColumn) {
  const at::Tensor a = operand(70, 100, 0), b = operand(100, 80, 0);
  const at::Tensor clean = at::empty({70, 80}), out = at::empty({70, 80});
  tiled_matmul(clean, a, b, {}, false);
  a[33][99] = NAN;
  b[0][41] = INFINITY;
  tiled_matmul(out, a, b, {}, false);
  const at::Tensor expected = at::mm(a.to(at::kFloat), b.to(at::kFloat));
  EXPECT_TRUE(at::allclose(out, expected, 0, 0, /*equal_nan=*/true));
  EXPECT_TRUE(at::equal(out.narrow(0, 0, 33).narrow(1, 0, 41), clean.narrow(0, 0, 33).narrow(1, 0, 41)));
}

// A thread on which ATen configured the registers finds them so afterwards.
TEST_F(TiledMatmul, LeavesWhatAtenConfiguredAsItWas) {
  const at::Tensor x = at::randn({24, 32}).to(at::kBFloat16), y = at::randn({32, 48}).to(at::kBFloat16);
  const at::Tensor pairs = y.view({16, 2, 48}).transpose(1, 2).contiguous(),
                   expected = at::mm(x.to(at::kFloat), y.to(at::kFloat));
  const auto small_product = [&] {
    const at::Tensor out = at::full({24, 48}, NAN);
    at::native::cpublas::brgemm(24, 48, 32, 32, 48, 48, false, x.const_data_ptr<at::BFloat16>(),
                                pairs.const_data_ptr<at::BFloat16>(), out.data_ptr<float>());
    return out;
  };
  const at::Tensor a = operand(64, 512, 0), b = operand(512, 64, 0), out = at::empty({64, 64});
  EXPECT_TRUE(at::allclose(small_product(), expected, 1e-5, 1e-5));
  tiled_matmul(out, a, b, {}, false);
  EXPECT_TRUE(at::allclose(small_product(), expected, 1e-5, 1e-5));
  at::native::cpublas::brgemm_release();
}

TEST_F(TiledMatmul, AppliesToLargeProductsOfBf16Alone) {
  const at::Tensor a = at::zeros({64, 512}, at::kBFloat16), b = at::zeros({512, 64}, at::kBFloat16);
  EXPECT_TRUE(tiled_matmul_applies(a, b));
  EXPECT_TRUE(tiled_matmul_applies(b.t(), a.t()));
  EXPECT_FALSE(tiled_matmul_applies(a.narrow(0, 0, 1), b));  // one token of generation
  EXPECT_FALSE(tiled_matmul_applies(a.narrow(1, 0, 32), b.narrow(0, 0, 32)));
  EXPECT_FALSE(tiled_matmul_applies(a.to(at::kFloat), b.to(at::kFloat)));
  EXPECT_FALSE(tiled_matmul_applies(a, at::zeros({512, 128}, at::kBFloat16).slice(1, 0, 128, 2)));  // every second
  EXPECT_FALSE(tiled_matmul_applies(a, at::zeros({512, 1}, at::kBFloat16).expand({512, 64})));      // one for all
}

TEST_F(TiledMatmul, RefusesWhatDoesNotFit) {
  const at::Tensor a = at::zeros({64, 512}, at::kBFloat16), b = at::zeros({512, 64}, at::kBFloat16);
  EXPECT_THROW(tiled_matmul(at::zeros({64, 63}), a, b, {}, false), InternalError);
  EXPECT_THROW(tiled_matmul(at::zeros({64, 64}).t(), a, b, {}, false), InternalError);
  EXPECT_THROW(tiled_matmul(at::zeros({64, 64}, at::kHalf), a, b, {}, false), InternalError);
  EXPECT_THROW(tiled_matmul(at::zeros({1, 64}).expand({64, 64}), a, b, {}, false), InternalError);
  EXPECT_THROW(tiled_matmul(at::zeros({64, 64}), a.to(at::kHalf), b.to(at::kHalf), {}, false), InternalError);
  EXPECT_THROW(tiled_matmul(at::zeros({64, 64}), a, b, at::zeros({64}, at::kBFloat16), true), InternalError);
  EXPECT_ANY_THROW(tiled_matmul(a.view({512, 64}).narrow(0, 3, 64), a, b, {}, false))
      << "it would be read while it is written";
  EXPECT_THROW(tiled_matmul(at::zeros({64, 64}), a, b, at::zeros({63}, at::kBFloat16), false), InternalError);
}

}  // namespace
}  // namespace trireme::ops
