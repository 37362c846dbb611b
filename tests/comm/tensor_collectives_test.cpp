// Tensors in unequal rows, in lists, to and from a root, in batches of messages, and groups out of groups; and the same
// calls through c10d's interface. Ranks are threads.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/backend.h"
#include "comm/communicator.h"
#include "comm/shm_group.h"
#include "tensor_ranks.h"

namespace trireme::comm {
namespace {

using testing::on_ranks;

// Small whole numbers that differ from rank to rank and from row to row.
at::Tensor rows_of(int64_t rank, int64_t rows, at::IntArrayRef row, at::ScalarType dtype = at::kFloat) {
  std::vector<int64_t> shape = {rows};
  shape.insert(shape.end(), row.begin(), row.end());
  const int64_t n = c10::multiply_integers(shape);
  return ((at::arange(n, at::kLong) * 3 + rank * 5) % 13).to(dtype).view(shape);
}

std::vector<int64_t> uneven_rows(int64_t ranks, int64_t scale = 1) {
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < ranks; ++r) rows.push_back(r == 0 ? 0 : (2 * r + 1) * scale);
  if (ranks == 1) rows = {4};
  return rows;
}

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

class TensorCollectives : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TensorCollectives, ::testing::Values(1, 2, 3));

TEST_P(TensorCollectives, UnevenRows) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size(), me = c.rank();
    for (const int64_t scale : {1, 2000}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
        const std::vector<int64_t> rows = uneven_rows(n, scale);
        std::vector<at::Tensor> parts;
        for (int64_t r = 0; r < n; ++r) parts.push_back(rows_of(r, rows[static_cast<size_t>(r)], {3}, dtype));
        at::Tensor all = at::empty({sum(rows), 3}, dtype);
        c.all_gather_v(all, parts[static_cast<size_t>(me)], rows);
        EXPECT_TRUE(all.equal(at::cat(parts))) << "all_gather_v";

        at::Tensor total = at::zeros({sum(rows), 3}, dtype);
        for (int64_t r = 0; r < n; ++r) total += rows_of(r, sum(rows), {3}, dtype);
        at::Tensor mine = at::empty({rows[static_cast<size_t>(me)], 3}, dtype);
        c.reduce_scatter_v(mine, rows_of(me, sum(rows), {3}, dtype), rows);
        EXPECT_TRUE(mine.equal(total.split_with_sizes(rows)[static_cast<size_t>(me)])) << "reduce_scatter_v";
      }
      // Rank r sends (r + s) * scale rows to rank s; nothing to itself.
      const auto sent = [&](int64_t r, int64_t s) { return r == s ? 0 : (r + s) * scale; };
      std::vector<int64_t> to, from;
      for (int64_t r = 0; r < n; ++r) {
        to.push_back(sent(me, r));
        from.push_back(sent(r, me));
      }
      std::vector<at::Tensor> expected;
      for (int64_t r = 0; r < n; ++r) {
        std::vector<int64_t> theirs;
        for (int64_t s = 0; s < n; ++s) theirs.push_back(sent(r, s));
        expected.push_back(rows_of(r, sum(theirs), {2, 2}).split_with_sizes(theirs)[static_cast<size_t>(me)]);
      }
      at::Tensor got = at::empty({sum(from), 2, 2});
      c.all_to_all_v(got, rows_of(me, sum(to), {2, 2}), from, to);
      EXPECT_TRUE(got.equal(at::cat(expected))) << "all_to_all_v";
    }
  });
}

// A gathered weight exists once for all ranks: each casts its rows into it, and none before all have said that they
// read no more of what was there.
TEST_P(TensorCollectives, GathersIntoOneMemoryAndCasts) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size();
    const auto me = static_cast<size_t>(c.rank());
    for (const int64_t scale : {1, 30'000}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        for (const bool shared_input : {false, true}) {
          const std::vector<int64_t> rows = uneven_rows(n, scale), lines(static_cast<size_t>(n), 2);
          const at::Tensor all = c.shared_empty("once", {sum(rows), 3}, dtype, Sharing::once),
                           short_one = c.shared_empty("once too", {sum(lines)}, dtype, Sharing::once);
          const at::Tensor mine = shared_input
                                      ? c.shared_empty("mine", {sum(rows), 3}, at::kFloat).narrow(0, 0, rows[me])
                                      : at::empty({rows[me], 3});
          std::vector<int64_t> both = rows;
          both.insert(both.end(), lines.begin(), lines.end());
          for (int64_t turn = 0; turn < 5; ++turn) {
            const auto part = [&](int64_t r) { return rows_of(r + turn, rows[static_cast<size_t>(r)], {3}) / 7; };
            std::vector<at::Tensor> parts;
            for (int64_t r = 0; r < n; ++r) parts.push_back(part(r).to(dtype));
            mine.copy_(part(c.rank()));
            c.all_gather_v({all, short_one}, {mine, at::full({2}, static_cast<double>(me) + 0.5)}, both);
            // Read for a while: a peer that went on must not have written the next turn's rows yet.
            for (int64_t again = 0; again < 3; ++again) EXPECT_TRUE(all.equal(at::cat(parts))) << turn;
            for (int64_t r = 0; r < n; ++r) EXPECT_EQ(short_one[2 * r].item<double>(), static_cast<double>(r) + 0.5);
          }
          // In place: the rows lie there already.
          if (dtype == at::kFloat) {
            c.barrier();
            const at::Tensor own = all.split_with_sizes(rows)[me];
            own.fill_(static_cast<double>(me));
            c.all_gather_v(all, own, rows);
            for (int64_t r = 0; r < n; ++r) {
              const at::Tensor theirs = all.split_with_sizes(rows)[static_cast<size_t>(r)];
              EXPECT_TRUE(theirs.eq(static_cast<double>(r)).all().item<bool>());
            }
          }
        }
      }
    }
    // Outside of such memory a cast is each rank's own.
    const std::vector<int64_t> rows = uneven_rows(n);
    at::Tensor apart = at::empty({sum(rows), 3}, at::kBFloat16);
    c.all_gather_v(apart, rows_of(c.rank(), rows[me], {3}), rows);
    for (int64_t r = 0; r < n; ++r)
      EXPECT_TRUE(apart.split_with_sizes(rows)[static_cast<size_t>(r)].equal(
          rows_of(r, rows[static_cast<size_t>(r)], {3}, at::kBFloat16)));
  });
}

TEST_P(TensorCollectives, AnyNumberOfTensorsGoesIntoOneMemory) {
  on_ranks(GetParam(), [](Communicator& c) {
    constexpr int64_t count = 1100;
    const int64_t n = c.size(), me = c.rank();
    const at::Tensor all = c.shared_empty("all", {count, n}, at::kBFloat16, Sharing::once);
    std::vector<at::Tensor> outputs, inputs;
    for (int64_t t = 0; t < count; ++t) {
      outputs.push_back(all[t]);
      inputs.push_back(at::full({1}, static_cast<double>((t + 7 * me) % 200)));
    }
    c.all_gather_v(outputs, inputs, std::vector<int64_t>(static_cast<size_t>(count * n), 1));
    const at::Tensor t = at::arange(count).view({count, 1}), r = at::arange(n).view({1, n});
    EXPECT_TRUE(all.equal(((t + 7 * r) % 200).to(at::kBFloat16)));
  });
}

TEST(TensorCollectivesOnce, DifferentMemoryIsAnErrorOnEveryRank) {
  const auto errors = testing::run_ranks(2, [](const std::shared_ptr<ShmGroup>& group) {
    Communicator c(group);
    const at::Tensor a = c.shared_empty("a", {2}, at::kFloat, Sharing::once),
                     b = c.shared_empty("b", {2}, at::kFloat, Sharing::once);
    c.all_gather_v(c.rank() == 0 ? a : b, at::ones({1}), {1, 1});
  });
  for (const std::string& error : errors) EXPECT_THAT(error, ::testing::HasSubstr("gave different memory"));
}

TEST_P(TensorCollectives, ASumIsAddedToTheOutput) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size(), me = c.rank();
    for (const int64_t scale : {1, 30'000}) {
      for (const bool in_arena : {false, true}) {
        const std::vector<int64_t> rows = uneven_rows(n, scale);
        at::Tensor total = at::zeros({sum(rows), 3});
        for (int64_t r = 0; r < n; ++r) total += rows_of(r, sum(rows), {3});
        const int64_t own = rows[static_cast<size_t>(me)];
        const at::Tensor input =
                             in_arena ? c.shared_empty("input", {sum(rows), 3}, at::kFloat) : at::empty({sum(rows), 3}),
                         output = in_arena ? c.shared_empty("output", {sum(rows), 3}, at::kFloat).narrow(0, 0, own)
                                           : at::empty({own, 3});
        input.copy_(rows_of(me, sum(rows), {3}));
        output.fill_(100);
        for (int64_t turn = 1; turn <= 3; ++turn) {
          c.reduce_scatter_v(output, input, rows, Reduction::accumulating());
          const at::Tensor expected = total.split_with_sizes(rows)[static_cast<size_t>(me)] * turn + 100;
          EXPECT_TRUE(output.equal(expected)) << turn;
        }
      }
    }
    EXPECT_THROW(c.all_reduce(at::ones({2}), Reduction::accumulating()), InputError);
  });
}

TEST_P(TensorCollectives, ListsAreOneOperation) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size(), me = c.rank();
    const std::vector<int64_t> sizes = {5, 0, 4099, 70'001};
    for (const bool in_arena : {true, false}) {
      const auto make = [&](int64_t elements) {
        return in_arena ? c.shared_empty("list", {elements}, at::kFloat) : at::empty({elements});
      };
      std::vector<at::Tensor> reduced, inputs, outputs, wide, narrow;
      for (const int64_t size : sizes) {
        reduced.push_back(make(size).copy_(rows_of(me, size, {})));
        inputs.push_back(make(size).copy_(rows_of(me, size, {})));
        outputs.push_back(make(size * n));
        wide.push_back(make(size * n).copy_(rows_of(me, size * n, {})));
        narrow.push_back(make(size));
      }
      Work first = c.all_reduce_async(at::TensorList(reduced));
      Work second = c.all_gather_into_async(at::TensorList(outputs), at::TensorList(inputs));
      Work third = c.reduce_scatter_into_async(at::TensorList(narrow), at::TensorList(wide));
      third.wait();
      second.wait();
      first.wait();
      for (size_t t = 0; t < sizes.size(); ++t) {
        at::Tensor total = at::zeros({sizes[t]}), wide_total = at::zeros({sizes[t] * n});
        std::vector<at::Tensor> parts;
        for (int64_t r = 0; r < n; ++r) {
          total += rows_of(r, sizes[t], {});
          wide_total += rows_of(r, sizes[t] * n, {});
          parts.push_back(rows_of(r, sizes[t], {}));
        }
        EXPECT_TRUE(reduced[t].equal(total)) << "all_reduce, tensor " << t;
        EXPECT_TRUE(outputs[t].equal(at::cat(parts))) << "all_gather, tensor " << t;
        EXPECT_TRUE(narrow[t].equal(wide_total.narrow(0, me * sizes[t], sizes[t]))) << "reduce_scatter, tensor " << t;
      }
      c.broadcast(at::TensorList(inputs), n - 1);
      for (size_t t = 0; t < sizes.size(); ++t) EXPECT_TRUE(inputs[t].equal(rows_of(n - 1, sizes[t], {}))) << t;
    }
    c.all_reduce(at::TensorList());
    // Rows of each rank for each tensor: what sharding parameters by dimension 0 needs.
    std::vector<int64_t> rows = uneven_rows(n), both = rows;
    both.insert(both.end(), rows.rbegin(), rows.rend());
    const std::vector<int64_t> reversed(rows.rbegin(), rows.rend());
    const std::vector<at::Tensor> in = {rows_of(me, rows[static_cast<size_t>(me)], {2}),
                                        rows_of(me + 1, reversed[static_cast<size_t>(me)], {5})};
    const std::vector<at::Tensor> out = {at::empty({sum(rows), 2}), at::empty({sum(rows), 5})};
    c.all_gather_v(at::TensorList(out), at::TensorList(in), both);
    for (size_t t = 0; t < 2; ++t) {
      std::vector<at::Tensor> parts;
      for (int64_t r = 0; r < n; ++r)
        parts.push_back(
            rows_of(r + static_cast<int64_t>(t), (t == 0 ? rows : reversed)[static_cast<size_t>(r)], {t == 0 ? 2 : 5}));
      EXPECT_TRUE(out[t].equal(at::cat(parts))) << "tensor " << t;
    }
  });
}

TEST_P(TensorCollectives, RootsAveragesAndFactors) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size(), me = c.rank(), root = n - 1;
    at::Tensor x = at::full({6}, static_cast<double>(me + 1));
    c.reduce(x, root);
    EXPECT_TRUE(x.equal(at::full({6}, static_cast<double>(me == root ? n * (n + 1) / 2 : me + 1))));
    x.fill_(static_cast<double>(2 * me));
    c.all_reduce(x, ReduceOp::avg);
    EXPECT_TRUE(x.equal(at::full({6}, static_cast<double>(n - 1))));
    at::Tensor y = at::zeros({6});
    c.all_reduce_into(y, x, ReduceOp::max);
    EXPECT_TRUE(y.equal(at::full({6}, static_cast<double>(n - 1))));
    EXPECT_THROW(c.all_reduce_into(at::zeros({5}), x), InputError);
    x.fill_(4);
    c.all_reduce(x, {ReduceOp::sum, 0.25});
    EXPECT_TRUE(x.equal(at::full({6}, static_cast<double>(n))));

    const at::Tensor mine = at::full({4}, static_cast<double>(me));
    at::Tensor all = me == root ? at::empty({n, 4}) : at::Tensor();
    c.gather(all, mine, root);
    at::Tensor back = at::empty({4});
    if (me == root) {
      for (int64_t r = 0; r < n; ++r) EXPECT_TRUE(all[r].equal(at::full({4}, static_cast<double>(r)))) << r;
      all.mul_(10);
    }
    c.scatter(back, all, root);
    EXPECT_TRUE(back.equal(at::full({4}, 10.0 * static_cast<double>(me))));
    if (me != root) {
      EXPECT_THROW(c.gather_async({}, at::Tensor(), root), InputError);
    }
  });
}

TEST_P(TensorCollectives, WhatCannotBeRightIsRefused) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size();
    const std::vector<int64_t> rows(static_cast<size_t>(n), 2);
    const at::Tensor in = at::zeros({2, 3}), out = at::zeros({2 * n, 3});
    const auto refused = [&](const auto& call, const char* words) {
      try {
        call();
        ADD_FAILURE() << "not refused: " << words;
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(words));
      }
    };
    refused(
        [&] {
          c.all_gather_v(out, at::zeros({3, 3}), rows);
        },
        "the input is [3, 3]; the list of rows makes it 2 rows");
    refused([&] { c.all_gather_v(out, at::zeros({2, 4}), rows); }, "differ in size");
    refused([&] { c.all_gather_v(out, in, {}); }, "numbers; found 0");
    refused([&] { c.all_gather_v(out, in.to(at::kDouble), rows); }, "one dtype");
    refused([&] { c.all_to_all_v(out, out, rows, std::vector<int64_t>(static_cast<size_t>(n), 3)); }, "makes it");
    refused([&] { c.all_reduce(at::TensorList({at::zeros({2}), at::zeros({2}, at::kLong)})); }, "one dtype");
    refused([&] { c.all_reduce(at::zeros({2}, at::kLong), ReduceOp::avg); }, "integers have no average");
    refused([&] { c.reduce(at::zeros({2}), n); }, "is not one of its");
    c.barrier();  // nothing was posted: the ranks are still in step
  });
}

// Each rank sends two messages to every other and receives them, the sends of some first and the receives of others.
TEST(Messages, ABatchCannotLockUpWhateverItsOrder) {
  for (const int64_t elements : {4, 200'000}) {
    for (const bool in_arena : {true, false}) {
      on_ranks(3, [&](Communicator& c) {
        std::vector<Message> batch;
        std::vector<std::pair<at::Tensor, int64_t>> received;
        for (int64_t other = 0; other < 3; ++other) {
          if (other == c.rank()) continue;
          for (int64_t k = 0; k < 2; ++k) {
            at::Tensor out =
                in_arena ? c.shared_empty("batch", {elements}, at::kFloat) : at::empty({elements}, at::kFloat);
            out.fill_(static_cast<double>(c.rank() * 100 + other * 10 + k));
            received.emplace_back(at::empty({elements}), other * 100 + c.rank() * 10 + k);
            const Message send = Message::send(out, other), recv = Message::recv(received.back().first, other);
            if (c.rank() == 1) {
              batch.push_back(recv);
              batch.push_back(send);
            } else {
              batch.insert(c.rank() == 0 ? batch.end() : batch.begin() + k, send);
              batch.push_back(recv);
            }
          }
        }
        c.send_recv(batch);
        for (const auto& [tensor, value] : received) {
          EXPECT_TRUE(tensor.eq(static_cast<double>(value)).all().item<bool>())
              << "expected " << value << ", found " << tensor[0].item<float>() << " on rank " << c.rank();
        }
        EXPECT_THROW(c.send_recv({Message::send(at::zeros({1}), (c.rank() + 1) % 3), Message::recv(at::Tensor(), 0)}),
                     InputError);
        c.barrier();
      });
    }
  }
}

TEST(Split, ByColorAndKeyAsInMpi) {
  on_ranks(6, [](Communicator& c) {
    // Odd and even ranks, each in reverse order.
    const auto half = c.split(c.rank() % 2, -c.rank(), "half");
    ASSERT_NE(half, nullptr);
    EXPECT_EQ(half->size(), 3);
    EXPECT_EQ(half->rank(), (5 - c.rank()) / 2);
    EXPECT_EQ(half->axis(), "half");
    at::Tensor ranks = at::empty({3}, at::kLong);
    half->all_gather_into(ranks, at::full({1}, c.rank(), at::kLong));
    EXPECT_TRUE(ranks.equal(at::tensor({4 + c.rank() % 2, 2 + c.rank() % 2, 0 + c.rank() % 2}, at::kLong)));
    // Out of a split: pairs of neighbours of the half, and one left over.
    const auto pair = half->split(half->rank() / 2, 0, "pair");
    EXPECT_EQ(pair->size(), half->rank() == 2 ? 1 : 2);
    EXPECT_EQ(pair->all_reduce_scalar(int64_t{1}), pair->size());
    // Without a color there is no group; nobody else waits for it.
    const auto none = c.split(c.rank() == 3 ? -1 : 7, 0, "rest");
    EXPECT_EQ(none == nullptr, c.rank() == 3);
    if (none) {
      EXPECT_EQ(none->all_reduce_scalar(int64_t{1}), 5);
    }
  });
}

TEST(Split, ASubgroupNeedsItsMembersAlone) {
  std::atomic<bool> over{false};
  on_ranks(3, [&](Communicator& c) {
    if (c.rank() == 1) {  // takes no part, and makes no call until the others are through
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_THROW(c.subgroup({0, 2}, "edge"), InputError);
      return;
    }
    const auto edge = c.subgroup({2, 0}, "edge");
    EXPECT_EQ(edge->rank(), c.rank() == 2 ? 0 : 1);
    EXPECT_EQ(edge->all_reduce_scalar(c.rank()), 2);
    over = true;
  });
}

// ---- through c10d

TEST_P(TensorCollectives, BackendAdapter) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size(), me = c.rank();
    const c10::intrusive_ptr<c10d::Backend> backend =
        c10::make_intrusive<ShmBackend>(std::make_shared<Communicator>(c.group()));
    const std::vector<int64_t> rows = uneven_rows(n);
    std::vector<at::Tensor> parts;
    for (int64_t r = 0; r < n; ++r) parts.push_back(rows_of(r, rows[static_cast<size_t>(r)], {3}));

    std::vector<std::vector<at::Tensor>> lists(1);
    for (int64_t r = 0; r < n; ++r) lists[0].push_back(at::empty({rows[static_cast<size_t>(r)], 3}));
    std::vector<at::Tensor> in = {parts[static_cast<size_t>(me)]};
    backend->allgather(lists, in, {})->wait();
    for (int64_t r = 0; r < n; ++r) EXPECT_TRUE(lists[0][static_cast<size_t>(r)].equal(parts[static_cast<size_t>(r)]));

    std::vector<at::Tensor> out = {at::empty({rows[static_cast<size_t>(me)], 3})};
    std::vector<std::vector<at::Tensor>> ones(1);
    for (int64_t r = 0; r < n; ++r) ones[0].push_back(at::ones({rows[static_cast<size_t>(r)], 3}));
    c10d::ReduceScatterOptions average;
    average.reduceOp = c10d::ReduceOp::AVG;
    backend->reduce_scatter(out, ones, average)->wait();
    EXPECT_TRUE(out[0].equal(at::ones({rows[static_cast<size_t>(me)], 3})));

    std::vector<at::Tensor> t = {at::ones({4}), at::ones({2, 2})};
    c10d::AllreduceCoalescedOptions premul;
    premul.reduceOp = c10d::makePreMulSum(0.5);
    backend->allreduce_coalesced(t, premul)->wait();
    EXPECT_TRUE(t[1].equal(at::full({2, 2}, 0.5 * static_cast<double>(n))));

    std::vector<at::Tensor> one = {at::full({3}, static_cast<double>(me))};
    c10d::ReduceOptions to_last;
    to_last.rootRank = n - 1;
    backend->reduce(one, to_last)->wait();
    EXPECT_EQ(one[0][0].item<int64_t>(), me == n - 1 ? n * (n - 1) / 2 : me);

    std::vector<std::vector<at::Tensor>> gathered, scattered;
    if (me == 0) {
      gathered.resize(1);
      scattered.resize(1);
      for (int64_t r = 0; r < n; ++r) {
        gathered[0].push_back(at::empty({2}));
        scattered[0].push_back(at::full({2}, static_cast<double>(r)));
      }
    }
    std::vector<at::Tensor> mine = {at::empty({2})};
    backend->scatter(mine, scattered, c10d::ScatterOptions{})->wait();
    EXPECT_TRUE(mine[0].equal(at::full({2}, static_cast<double>(me))));
    backend->gather(gathered, mine, c10d::GatherOptions{})->wait();
    if (me == 0) {
      EXPECT_TRUE(gathered[0].back().equal(at::full({2}, static_cast<double>(n - 1))));
    }

    std::vector<at::Tensor> wide = {at::empty({2 * n}), at::empty({n, 3})}, narrow = {at::ones({2}), at::ones({3})};
    backend->allgather_into_tensor_coalesced(wide, narrow, {})->wait();
    EXPECT_TRUE(wide[1].equal(at::ones({n, 3})));
    backend->reduce_scatter_tensor_coalesced(narrow, wide, {})->wait();
    EXPECT_TRUE(narrow[1].equal(at::full({3}, static_cast<double>(n))));

    std::vector<at::Tensor> sends, receives;
    for (int64_t r = 0; r < n; ++r) {
      sends.push_back(at::full({me + r}, static_cast<double>(me)));
      receives.push_back(at::empty({me + r}));
    }
    backend->alltoall(receives, sends, {})->wait();
    for (int64_t r = 0; r < n; ++r)
      EXPECT_TRUE(receives[static_cast<size_t>(r)].equal(at::full({me + r}, static_cast<double>(r))));
    std::vector<int64_t> splits;
    for (int64_t r = 0; r < n; ++r) splits.push_back(me + r);
    at::Tensor flat_in = at::cat(sends), flat_out = at::empty_like(flat_in);
    backend->alltoall_base(flat_out, flat_in, splits, splits, {})->wait();
    EXPECT_TRUE(flat_out.equal(at::cat(receives)));

    if (n > 1) {
      std::vector<at::Tensor> a = {at::full({4}, static_cast<double>(me))}, b = {at::empty({4})};
      backend->startCoalescing();
      backend->recv(b, static_cast<int>((me + n - 1) % n), 0);
      backend->send(a, static_cast<int>((me + 1) % n), 0);
      auto both = backend->endCoalescing();
      both->wait();
      EXPECT_TRUE(both->isCompleted());
      EXPECT_EQ(b[0][0].item<int64_t>(), (me + n - 1) % n);
      const auto pair = backend->split(nullptr, {1, 0}, nullptr);
      EXPECT_EQ(pair == nullptr, me > 1);
      if (pair) {
        EXPECT_EQ(pair->getRank(), 1 - me);
      }
    }
  });
}

}  // namespace
}  // namespace trireme::comm
