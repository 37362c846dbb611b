// The moving average against its formula, written out by torch's lerp as AveragedModel has it.
#include "optim/ema.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace trireme::optim {
namespace {

struct Bound {
  explicit Bound(at::ScalarType type)
      : parameter({{"w", {7, 5}, {nn::Init::Kind::ones, 0}, true}}, type),
        master(at::randn({7, 5}, type == at::kDouble ? at::kDouble : at::kFloat)),
        value(type == at::kBFloat16 ? master.to(type) : master) {
    parameter.bind(value, master, at::zeros_like(master));
  }
  nn::Parameter parameter;
  at::Tensor master, value;
};

TEST(Ema, FollowsTheFormula) {
  at::manual_seed(1);
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    Bound bound(type);
    Ema ema({&bound.parameter}, 0.9);
    ema.start();
    EXPECT_TRUE(ema.averages()[0].equal(bound.master)) << "before any update";
    at::Tensor expected;
    for (int64_t update = 1; update <= 4; ++update) {
      bound.master.add_(at::randn_like(bound.master));
      ema.update(update);
      expected = update == 1 ? bound.master.clone() : 0.9 * expected + 0.1 * bound.master;
      EXPECT_LE((ema.averages()[0] - expected).abs().max().item<double>(), type == at::kDouble ? 5e-15 : 2e-6)
          << update;
    }
    EXPECT_GT((expected - bound.master).abs().max().item<double>(), 0.1);
  }
}

}  // namespace
}  // namespace trireme::optim
