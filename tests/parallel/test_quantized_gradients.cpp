// Sums of which each rank's contribution travels in a few bits: to the bit what the operators of ATen make of the same
// parts, within the bound that the blocks' scales give, the same on all copies, and with error feedback without drift.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

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

double step_of(const ops::QuantizedFormat& format, const at::Tensor& values) {
  return values.numel() == 0 ? 0 : values.abs().max().item<double>() / (format.bits == 8 ? 127 : 7);
}

// What all ranks of a grid should end with, by operators of ATen alone: of each axis that a number crosses it is
// rounded once, by the rank that sends it, and a rank's own part is not until copies tell each other the sums.
class Grid {
 public:
  Grid(const Rank& any, int64_t shards, int64_t copies, const QuantizedGradientOptions& options)
      : any_(any), shards_(shards), copies_(copies), options_(options) {}

  // The sum that shard rank `s` of every copy should have of parameter i of unit u; rank = copy * shards + shard rank.
  at::Tensor sum(size_t u, size_t i, int64_t s, int64_t round) {
    vector_ = any_.units[u].parameters[i]->shape().size() == 1;
    std::vector<at::Tensor> of_copy;  // flat
    for (int64_t c = 0; c < copies_; ++c) {
      const auto rows = [&](int64_t r) {
        return any_.rows_of(any_.gradients(u, c * shards_ + r, round)[i], u, i, s).contiguous().view({-1});
      };
      at::Tensor total = rows(s).clone();
      for (int64_t r = 0; r < shards_; ++r)
        if (r != s) total = total + sent(rows(r), fmt::format("shard {} {} {} {} {}", u, i, c, r, s));
      of_copy.push_back(total);
    }
    if (copies_ == 1) return of_copy[0];
    std::vector<at::Tensor> slices;
    for (int64_t c = 0; c < copies_; ++c) {
      const nn::Rows part = nn::rows_of_rank(of_copy[0].numel(), c, copies_);
      const auto slice = [&](int64_t of) {
        return of_copy[static_cast<size_t>(of)].narrow(0, part.begin, part.size());
      };
      at::Tensor total = slice(c).clone();
      for (int64_t of = 0; of < copies_; ++of)
        if (of != c) total = total + sent(slice(of), fmt::format("copy {} {} {} {} {}", u, i, s, of, c));
      slices.push_back(sent(total, fmt::format("told {} {} {} {}", u, i, s, c)));
    }
    return at::cat(slices);
  }

 private:
  // As it arrives; `way` names from whom, to whom and of what.
  at::Tensor sent(const at::Tensor& values, const std::string& way) {
    if (vector_) return values;
    const at::Tensor flat = values.contiguous();
    const at::Tensor packed = at::zeros({options_.format.packed_bytes(flat.numel())}, at::kByte);
    at::Tensor residual;
    if (options_.error_feedback) residual = residuals_.try_emplace(way, at::zeros_like(flat)).first->second;
    reference::quantize(options_.format, flat, packed, residual);
    const at::Tensor back = at::empty_like(flat);
    reference::dequantize(options_.format, packed, back);
    return back;
  }

  const Rank& any_;
  int64_t shards_, copies_;
  QuantizedGradientOptions options_;
  bool vector_ = false;
  std::map<std::string, at::Tensor> residuals_;
};

constexpr ops::QuantizedFormat kFormats[] = {{8, 256}, {8, 32}, {4, 32}};

TEST(QuantizedGradients, SumsAreThoseOfTheRoundedPartsInTheOrderOfTheRanks) {
  for (const int64_t n : {1, 2, 3, 5}) {
    on_ranks(n, [&](comm::Communicator& ranks) {
      for (const ops::QuantizedFormat& format : kFormats) {
        const auto alone = comm::Communicator::solo("replicate");
        const auto axis = ranks.size() == 1 ? comm::Communicator::solo("shard") : ranks.split(0, 0, "shard");
        Rank rank(*axis, *alone, {format, false});
        Grid grid(rank, n, 1, {format, false});
        for (int64_t round = 0; round < 3; ++round) {
          rank.exchange(axis->rank(), round, false, false);
          for (size_t u = 0; u < rank.units.size(); ++u) {
            for (size_t i = 0; i < rank.own[u].size(); ++i) {
              const at::Tensor own = rank.own[u][i].view({-1}), expected = grid.sum(u, i, axis->rank(), round);
              EXPECT_TRUE(own.equal(expected)) << n << " ranks, round " << round << ", " << u << " " << i;
              at::Tensor exact = at::zeros_like(own);
              double bound = 0;
              for (int64_t r = 0; r < axis->size(); ++r) {
                const at::Tensor part = rank.rows_of(rank.gradients(u, r, round)[i], u, i, axis->rank());
                exact += part.reshape({-1});
                if (r != axis->rank()) bound += 0.50001 * step_of(format, part);
              }
              if (own.numel() > 0) {
                EXPECT_LE((own - exact).abs().max().item<double>(), bound + 1e-5);
              }
            }
          }
        }
      }
    });
  }
}

// As of micro-batches, into a memory of its own; and where a rank's sum lies in its whole gradient.
TEST(QuantizedGradients, SumsAreAddedAndMadeInPlace) {
  on_ranks(3, [&](comm::Communicator& ranks) {
    const auto alone = comm::Communicator::solo("replicate");
    const auto axis = ranks.split(0, 0, "shard");
    const QuantizedGradientOptions options{{8, 32}, false};
    Rank rank(*axis, *alone, options);
    for (int64_t round = 0; round < 3; ++round) rank.exchange(axis->rank(), round, round > 0, false);
    Grid grid(rank, 3, 1, options);
    for (size_t u = 0; u < rank.units.size(); ++u) {
      std::vector<at::Tensor> whole = rank.gradients(u, axis->rank(), 7), own;
      for (size_t i = 0; i < whole.size(); ++i) {
        at::Tensor expected = grid.sum(u, i, axis->rank(), 0);
        for (int64_t round = 1; round < 3; ++round) {
          // What others send is added one after another.
          at::Tensor mine = rank.rows_of(rank.gradients(u, axis->rank(), round)[i], u, i, axis->rank()).reshape({-1});
          expected = expected + mine + (grid.sum(u, i, axis->rank(), round) - mine);
        }
        EXPECT_TRUE(rank.own[u][i].view({-1}).allclose(expected, 1e-6, 1e-5)) << u << " " << i;
        own.push_back(rank.rows_of(whole[i], u, i, axis->rank()));
      }
      rank.sums->reduce(u, whole, own, false);
      rank.sums->finish_reduce(u);
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(own[i].reshape({-1}).equal(grid.sum(u, i, axis->rank(), 7))) << "in place: " << u << " " << i;
    }
  });
}

TEST(QuantizedGradients, CopiesEndWithTheSameSumsToTheBit) {
  for (const bool feedback : {false, true}) {
    on_ranks(6, [&](comm::Communicator& all) {
      const auto shards = all.split(all.rank() / 2, 0, "shard"), copies = all.split(all.rank() % 2, 0, "replicate");
      for (const ops::QuantizedFormat& format : kFormats) {
        Rank rank(*shards, *copies, {format, feedback});
        Grid grid(rank, 2, 3, {format, feedback});
        for (int64_t round = 0; round < 3; ++round) {
          rank.exchange(all.rank(), round, false, true);
          for (size_t u = 0; u < rank.units.size(); ++u)
            for (size_t i = 0; i < rank.own[u].size(); ++i)
              EXPECT_TRUE(rank.own[u][i].view({-1}).equal(grid.sum(u, i, shards->rank(), round)))
                  << "round " << round << ", " << u << " " << i << (feedback ? ", feedback" : "");
        }
      }
    });
  }
}

TEST(QuantizedGradients, WithErrorFeedbackTheSumOfFiftyStepsIsRight) {
  on_ranks(4, [&](comm::Communicator& all) {
    const auto shards = all.split(all.rank() / 2, 0, "shard"), copies = all.split(all.rank() % 2, 0, "replicate");
    const ops::QuantizedFormat format{4, 32};
    Rank with(*shards, *copies, {format, true}), without(*shards, *copies, {format, false});
    at::Tensor meant = at::zeros_like(with.own[0][0], at::kDouble), got = meant.clone(), got_without = meant.clone();
    double largest = 0;
    for (int64_t round = 0; round < 50; ++round) {
      for (Rank* rank : {&with, &without}) rank->exchange(all.rank(), round, false, true);
      double bound = 0;  // what is sent has a residual of up to half a step in it, and so have the sums
      for (int64_t r = 0; r < all.size(); ++r) {
        const at::Tensor part = with.rows_of(with.gradients(0, r, round)[0], 0, 0, shards->rank());
        meant += part;
        bound += 2 * step_of(format, part);
      }
      largest = std::max(largest, 2 * bound);
      got += with.own[0][0];
      got_without += without.own[0][0];
      EXPECT_LE((got - meant).abs().max().item<double>(), largest) << "round " << round;
    }
    EXPECT_GT((got_without - meant).abs().max().item<double>(), 2 * (got - meant).abs().max().item<double>());
  });
}

// A step that was thrown away leaves nothing.
TEST(QuantizedGradients, WhatWasLostIsForgotten) {
  on_ranks(4, [&](comm::Communicator& all) {
    const auto shards = all.split(all.rank() / 2, 0, "shard"), copies = all.split(all.rank() % 2, 0, "replicate");
    const QuantizedGradientOptions options{{4, 32}, true};
    Rank rank(*shards, *copies, options), fresh(*shards, *copies, options);
    rank.exchange(all.rank(), 0, false, true);
    rank.sums->forget_residuals();
    for (Rank* one : {&rank, &fresh}) one->exchange(all.rank(), 1, false, true);
    for (size_t u = 0; u < rank.units.size(); ++u)
      for (size_t i = 0; i < rank.own[u].size(); ++i)
        EXPECT_TRUE(rank.own[u][i].equal(fresh.own[u][i])) << u << " " << i;
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
