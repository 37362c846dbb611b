// Sums of which each rank's contribution travels in a few bits: to the bit what the operators of ATen make of the same
// parts, within the bound that the blocks' scales give, the same on all copies, and with error feedback without drift.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "../comm/tensor_ranks.h"
#include "nn/parameter.h"
#include "parallel/quantized_gradients.h"

namespace trireme::parallel {
namespace {

namespace reference = ops::reference;
using comm::testing::on_ranks;

// Rows that no number of ranks divides, fewer rows than ranks, rows that end within a block, and a vector.
struct Parameters {
  Parameters() {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      all.push_back(std::make_unique<nn::Parameter>(
          std::vector<nn::LogicalTensor>{{name, std::move(shape), {nn::Init::Kind::ones, 0}, true}}, at::kFloat));
      return all.back().get();
    };
    units.push_back({"a", {add("a.0", {13, 37}), add("a.1", {1, 5}), add("a.2", {129})}});
    units.push_back({"b", {add("b.0", {2, 300})}});
  }
  std::vector<std::unique_ptr<nn::Parameter>> all;
  std::vector<nn::Unit> units;
};

struct Rank {
  Rank(comm::Communicator& ranks, comm::Communicator& copies, const QuantizedGradientOptions& options) : shards(ranks) {
    for (const nn::Unit& unit : parameters.units) units.emplace_back(unit, ranks.rank(), ranks.size());
    sums = std::make_unique<QuantizedGradients>(units, ranks, copies, at::kCPU, options);
    for (const Unit& unit : units) {
      std::vector<at::Tensor> held;
      for (size_t i = 0; i < unit.parameters.size(); ++i) {
        std::vector<int64_t> shape = unit.parameters[i]->shape();
        shape[0] = unit.rows[i].size();
        held.push_back(at::full(shape, NAN));
      }
      own.push_back(held);
    }
  }
  // The gradients of a rank in a round: everyone can make everyone's.
  std::vector<at::Tensor> gradients(size_t unit, int64_t rank, int64_t round) const {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * round + 10 * rank) + unit);
    std::vector<at::Tensor> result;
    for (const nn::Parameter* parameter : units[unit].parameters)
      result.push_back(at::randn(parameter->shape(), generator) * (1 + rank) + 0.3);
    return result;
  }
  at::Tensor rows_of(const at::Tensor& whole, size_t unit, size_t i, int64_t rank) const {
    const nn::Rows rows = nn::rows_of_rank(units[unit].parameters[i]->shape()[0], rank, shards.size());
    return whole.narrow(0, rows.begin, rows.size());
  }
  // One exchange of all units.
  void exchange(int64_t rank, int64_t round, bool accumulate, bool copies) {
    for (size_t u = 0; u < units.size(); ++u) sums->reduce(u, gradients(u, rank, round), own[u], accumulate);
    for (size_t u = 0; u < units.size(); ++u) sums->finish_reduce(u);
    if (!copies) return;
    for (size_t u = 0; u < units.size(); ++u) sums->replicate(u, own[u]);
    sums->finish_replicas();
  }

  Parameters parameters;
  comm::Communicator& shards;
  std::vector<Unit> units;
  std::unique_ptr<QuantizedGradients> sums;
  std::vector<std::vector<at::Tensor>> own;
};

at::Tensor rounded(const ops::QuantizedFormat& format, const at::Tensor& values) {
  const at::Tensor flat = values.contiguous().view({-1});
  const at::Tensor packed = at::zeros({format.packed_bytes(flat.numel())}, at::kByte);
  reference::quantize(format, flat, packed);
  const at::Tensor back = at::empty_like(flat);
  reference::dequantize(format, packed, back);
  return back.view(values.sizes());
}

double step_of(const ops::QuantizedFormat& format, const at::Tensor& values) {
  return values.numel() == 0 ? 0 : values.abs().max().item<double>() / (format.bits == 8 ? 127 : 7);
}

constexpr ops::QuantizedFormat kFormats[] = {{8, 256}, {8, 32}, {4, 32}};

TEST(QuantizedGradients, SumsAreThoseOfTheRoundedPartsInTheOrderOfTheRanks) {
  for (const int64_t n : {1, 2, 3, 5}) {
    on_ranks(n, [&](comm::Communicator& ranks) {
      for (const ops::QuantizedFormat& format : kFormats) {
        const auto alone = comm::Communicator::solo("replicate");
        const auto axis = ranks.size() == 1 ? comm::Communicator::solo("shard") : ranks.split(0, 0, "shard");
        Rank rank(*axis, *alone, {format, false});
        std::vector<std::vector<at::Tensor>> expected = rank.own;
        for (int64_t round = 0; round < 3; ++round) {  // as of micro-batches
          rank.exchange(axis->rank(), round, round > 0, false);
          for (size_t u = 0; u < rank.units.size(); ++u) {
            for (size_t i = 0; i < expected[u].size(); ++i) {
              at::Tensor sum = round == 0 ? at::Tensor() : expected[u][i];
              at::Tensor exact = at::zeros_like(rank.own[u][i]);
              double bound = 0;
              for (int64_t r = 0; r < axis->size(); ++r) {
                const at::Tensor part = rank.rows_of(rank.gradients(u, r, round)[i], u, i, axis->rank());
                sum = sum.defined() ? sum + rounded(format, part) : rounded(format, part);
                exact += part;
                bound += 0.50001 * step_of(format, part);
              }
              if (round == 0 && sum.numel() > 0) {
                EXPECT_LE((sum - exact).abs().max().item<double>(), bound + 1e-5);
              }
              expected[u][i] = sum;
              EXPECT_TRUE(rank.own[u][i].equal(sum)) << n << " ranks, round " << round << ", " << u << " " << i;
            }
          }
        }
      }
    });
  }
}

TEST(QuantizedGradients, CopiesEndWithTheSameSums) {
  for (const bool feedback : {false, true}) {
    on_ranks(6, [&](comm::Communicator& all) {
      const auto shards = all.split(all.rank() / 2, 0, "shard"), copies = all.split(all.rank() % 2, 0, "replicate");
      for (const ops::QuantizedFormat& format : kFormats) {
        Rank rank(*shards, *copies, {format, feedback});
        for (int64_t round = 0; round < 2; ++round) {
          rank.exchange(all.rank(), round, false, true);
          for (size_t u = 0; u < rank.units.size(); ++u) {
            for (size_t i = 0; i < rank.own[u].size(); ++i) {
              const at::Tensor& own = rank.own[u][i];
              at::Tensor exact = at::zeros_like(own), largest = at::zeros({1});
              double bound = 0;
              for (int64_t r = 0; r < all.size(); ++r) {
                const at::Tensor part = rank.rows_of(rank.gradients(u, r, round)[i], u, i, shards->rank());
                exact += part;
                bound += step_of(format, part);
              }
              // Three roundings: of parts, of sums over a copy, of the whole sum; with feedback what the last one left.
              if (own.numel() > 0) {
                EXPECT_LE((own - exact).abs().max().item<double>(), (feedback ? 6 : 3) * bound);
              }
              const at::Tensor of_all = at::empty({copies->size() * own.numel()});
              copies->all_gather_into(of_all, own.contiguous());
              for (int64_t c = 0; c < copies->size(); ++c)
                EXPECT_TRUE(of_all.narrow(0, c * own.numel(), own.numel()).equal(own.view({-1}))) << "copy " << c;
            }
          }
        }
      }
    });
  }
}

TEST(QuantizedGradients, WithErrorFeedbackTheSumOfFiftyStepsIsRight) {
  on_ranks(3, [&](comm::Communicator& ranks) {
    const auto alone = comm::Communicator::solo("replicate");
    const auto axis = ranks.split(0, 0, "shard");
    const ops::QuantizedFormat format{4, 32};
    Rank with(*axis, *alone, {format, true}), without(*axis, *alone, {format, false});
    at::Tensor meant = at::zeros({13, 37}, at::kDouble), got = meant.clone(), got_without = meant.clone();
    double largest = 0;
    for (int64_t round = 0; round < 50; ++round) {
      for (Rank* rank : {&with, &without}) rank->exchange(axis->rank(), round, false, false);
      const auto add = [&](const at::Tensor& total, const at::Tensor& rows) {
        with.rows_of(total, 0, 0, axis->rank()) += rows;
      };
      double bound = 0;
      for (int64_t r = 0; r < axis->size(); ++r) {
        const at::Tensor part = with.rows_of(with.gradients(0, r, round)[0], 0, 0, axis->rank());
        add(meant, part);
        bound += 2 * step_of(format, part);  // what is sent has a residual of up to half a step in it
      }
      largest = std::max(largest, bound);
      add(got, with.own[0][0]);
      add(got_without, without.own[0][0]);
      EXPECT_LE((got - meant).abs().max().item<double>(), largest) << "round " << round;
    }
    EXPECT_GT((got_without - meant).abs().max().item<double>(), 2 * (got - meant).abs().max().item<double>());
  });
}

TEST(QuantizedGradients, ANumberThatIsNotFiniteReachesItsOwner) {
  on_ranks(3, [&](comm::Communicator& ranks) {
    const auto alone = comm::Communicator::solo("replicate");
    const auto axis = ranks.split(0, 0, "shard");
    Rank rank(*axis, *alone, {{8, 32}, true});
    std::vector<at::Tensor> gradients = rank.gradients(0, axis->rank(), 0);
    if (axis->rank() == 1) gradients[0][12][36] = std::numeric_limits<float>::infinity();  // the last rank's row
    rank.sums->reduce(0, gradients, rank.own[0], false);
    rank.sums->finish_reduce(0);
    EXPECT_EQ(rank.own[0][0].isfinite().all().item<bool>(), axis->rank() != 2);
    EXPECT_TRUE(rank.own[0][2].isfinite().all().item<bool>());
    rank.exchange(axis->rank(), 1, false, false);  // and leaves nothing behind
    EXPECT_TRUE(rank.own[0][0].isfinite().all().item<bool>());
  });
}

}  // namespace
}  // namespace trireme::parallel
