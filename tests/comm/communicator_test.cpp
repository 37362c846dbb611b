// Tensors over the core: Communicator, Mesh, the c10d adapter and the bench, with ranks as threads.
#include "comm/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/backend.h"
#include "comm/bench_collectives.h"
#include "comm/mesh.h"
#include "comm/shm_group.h"
#include "tensor_ranks.h"

namespace trireme::comm {
namespace {

using testing::on_ranks;

// Small whole numbers: exact in every dtype and every order.
at::Tensor input_of(int64_t rank, int64_t count, at::ScalarType dtype) {
  return ((at::arange(count, at::kLong) * 3 + rank * 5) % 13).to(dtype);
}

at::Tensor sum_of(int64_t ranks, int64_t count, at::ScalarType dtype) {
  at::Tensor total = at::zeros({count}, at::kDouble);
  for (int64_t r = 0; r < ranks; ++r) total += input_of(r, count, at::kDouble);
  return total.to(dtype);
}

class Communicators : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Communicators, ::testing::Values(1, 2, 3));

TEST_P(Communicators, CollectivesOnTensors) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size();
    const int64_t me = c.rank();
    for (const at::ScalarType dtype :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte}) {
      for (const int64_t count : {0, 1, 37, 4097}) {
        for (const bool in_arena : {false, true}) {
          const std::string row =
              fmt::format("{} x {} {} rank {} of {}", c10::toString(dtype), count, in_arena ? "arena" : "heap", me, n);
          const auto make = [&](int64_t elements) {
            return in_arena ? c.shared_empty("test", {elements}, dtype) : at::empty({elements}, dtype);
          };
          at::Tensor x = make(count).copy_(input_of(me, count, dtype));
          c.all_reduce(x);
          ASSERT_TRUE(x.equal(sum_of(n, count, dtype))) << "all_reduce " << row;

          at::Tensor in = make(count).copy_(input_of(me, count, dtype));
          at::Tensor wide = make(count * n);
          c.all_gather_into(wide, in);
          for (int64_t r = 0; r < n; ++r) {
            ASSERT_TRUE(wide.narrow(0, r * count, count).equal(input_of(r, count, dtype))) << "all_gather " << row;
          }
          wide.copy_(input_of(me, count * n, dtype));
          c.reduce_scatter_into(in, wide);
          ASSERT_TRUE(in.equal(sum_of(n, count * n, dtype).narrow(0, me * count, count))) << "reduce_scatter " << row;

          at::Tensor other = make(count * n);
          wide.copy_(input_of(me, count * n, dtype));
          c.all_to_all_into(other, wide);
          for (int64_t r = 0; r < n; ++r) {
            ASSERT_TRUE(
                other.narrow(0, r * count, count).equal(input_of(r, count * n, dtype).narrow(0, me * count, count)))
                << "all_to_all " << row;
          }
          in.copy_(input_of(me, count, dtype));
          c.broadcast(in, n - 1);
          ASSERT_TRUE(in.equal(input_of(n - 1, count, dtype))) << "broadcast " << row;
        }
      }
    }
    // A dtype that cannot be reduced can be moved.
    at::Tensor flags = at::zeros({5}, at::kBool);
    if (me == 0) flags.fill_(true);
    c.broadcast(flags, 0);
    EXPECT_TRUE(flags.all().item<bool>());
    EXPECT_THROW(c.all_reduce(flags), InputError);
    EXPECT_THROW(c.all_reduce(at::zeros({4, 4}).t().narrow(0, 0, 2)), InputError);
    EXPECT_THROW(c.all_gather_into(at::zeros({3 * n + 1}), at::zeros({3})), InputError);
    const at::Tensor elsewhere = at::empty({3}, at::kMeta);
    EXPECT_THROW(c.all_gather_v({at::zeros({3 * n})}, {elsewhere}, std::vector<int64_t>(static_cast<size_t>(n), 3)),
                 InputError)
        << "two devices";
    if (n > 1 && !c.group()->reaches_devices()) {
      EXPECT_THROW(c.all_reduce(elsewhere), InputError);
    }
  });
}

TEST_P(Communicators, Helpers) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int64_t n = c.size();
    EXPECT_EQ(c.shares_memory(), n > 1 && !testing::under_mpi() && !testing::over_nccl());
    EXPECT_EQ(c.all_reduce_scalar(c.rank() + 1), n * (n + 1) / 2);
    EXPECT_EQ(c.all_reduce_scalar(static_cast<double>(c.rank()), ReduceOp::max), static_cast<double>(n - 1));
    EXPECT_TRUE(c.any(c.rank() == n - 1));
    EXPECT_FALSE(c.any(false));
    const auto texts = c.all_gather_strings(std::string(static_cast<size_t>(c.rank() * 3000), 'x'));
    ASSERT_EQ(static_cast<int64_t>(texts.size()), n);
    for (int64_t r = 0; r < n; ++r)
      EXPECT_EQ(texts[static_cast<size_t>(r)], std::string(static_cast<size_t>(r * 3000), 'x'));
    c.barrier();
    c.progress();
  });
}

TEST_P(Communicators, AsynchronousWorkKeepsItsTensors) {
  on_ranks(GetParam(), [](Communicator& c) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> pending;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(c.shared_empty("bucket", {10'000}, at::kFloat).copy_(input_of(c.rank(), 10'000, at::kFloat)));
      pending.push_back(c.all_reduce_async(tensors.back()));
      c.progress();
    }
    Work dropped = c.all_reduce_async(at::ones({5000}));  // its only tensor lives in the work
    for (auto it = pending.rbegin(); it != pending.rend(); ++it) it->wait();
    for (const at::Tensor& t : tensors) EXPECT_TRUE(t.equal(sum_of(c.size(), 10'000, at::kFloat)));
    dropped.wait();
    dropped.wait();
    EXPECT_TRUE(dropped.done());
    EXPECT_TRUE(Work().done());
  });
}

TEST(Communicator, SharedOnceIsOneMemory) {
  on_ranks(3, [](Communicator& c) {
    at::Tensor all = c.shared_empty("weights", {3, 4}, at::kFloat, Sharing::once);
    EXPECT_EQ(all.sum().item<float>(), 0);
    c.barrier();
    all[c.rank()].fill_(static_cast<float>(c.rank() + 1));
    c.barrier();
    EXPECT_EQ(all.sum().item<float>(), 4 * (1 + 2 + 3));
  });
}

TEST(Communicator, MessagesBetweenRanks) {
  on_ranks(3, [](Communicator& c) {
    for (const int64_t count : {0, 5, 200'000}) {
      at::Tensor out = input_of(c.rank(), count, at::kFloat);
      at::Tensor in = at::empty({count});
      Work sent = c.send_async(out, (c.rank() + 1) % 3);
      c.recv(in, (c.rank() + 2) % 3);
      sent.wait();
      EXPECT_TRUE(in.equal(input_of((c.rank() + 2) % 3, count, at::kFloat))) << count;
    }
  });
}

TEST(Mesh, HasACommunicatorForEveryAxis) {
  on_ranks(2, [](Communicator& world) {
    const auto shared = std::make_shared<Communicator>(world.group());
    const Mesh mesh(shared, MeshSizes{.replicate = 2});
    EXPECT_EQ(mesh.data().all_reduce_scalar(int64_t{1}), 2);
    EXPECT_EQ(mesh.axis("replicate").all_reduce_scalar(int64_t{1}), 2);
    EXPECT_EQ(mesh.axis("tensor").all_reduce_scalar(int64_t{1}), 1);
    EXPECT_EQ(mesh.data().axis(), "data");
    const Mesh again(shared, MeshSizes{.replicate = 2});
    EXPECT_EQ(again.data().all_reduce_scalar(int64_t{1}), 2) << "a second mesh of the same ranks";
    EXPECT_THROW(mesh.axis("tensors"), InputError);
    EXPECT_THROW(Mesh(shared, MeshSizes{}), InputError);
    EXPECT_THROW(Mesh(shared, MeshSizes{.replicate = 3}), InputError);
    EXPECT_THROW(Mesh(shared, MeshSizes{.replicate = 2}, {"tensor", "tensor"}), InputError);
  });
}

// Each axis sums the ranks of its group, which the layout of ranks gives (rank_grid_test.cpp compares that with
// Megatron-LM's).
TEST(Mesh, AxesFlattenedAxesAndSlicesOfEightRanks) {
  for (const char* order : {"default", "megatron"}) {
    on_ranks(8, [&](Communicator& world) {
      const auto shared = std::make_shared<Communicator>(world.group());
      Mesh mesh(shared, MeshSizes{.tensor = 2, .pipeline = 2, .replicate = -1}, named_order(order));
      const auto expect_sum = [&](Communicator& c, std::vector<std::string> axes) {
        int64_t expected = 0;
        for (const int64_t rank : mesh.grid().group_of(world.rank(), axes)) expected += 1 + rank * rank;
        EXPECT_EQ(c.all_reduce_scalar(1 + world.rank() * world.rank()), expected) << order << " " << c.axis();
      };
      EXPECT_EQ(mesh.grid().size("replicate"), 2);
      for (const std::string axis : {"tensor", "pipeline", "replicate", "shard"}) expect_sum(mesh.axis(axis), {axis});
      expect_sum(mesh.data(), {"shard", "replicate"});
      const std::vector<std::string> model = {"tensor", "pipeline"};
      expect_sum(mesh.flatten(model, "model"), model);
      expect_sum(mesh.axis("model"), model);
      EXPECT_THROW(mesh.flatten(model, "model"), InputError);
      const Mesh stage = mesh.slice(std::vector<std::string>{"tensor", "replicate"}, "stage");
      EXPECT_EQ(stage.size(), 4);
      expect_sum(stage.world(), {"tensor", "replicate"});
      expect_sum(stage.axis("tensor"), {"tensor"});
      EXPECT_EQ(stage.coordinate("replicate"), mesh.coordinate("replicate"));
      EXPECT_EQ(stage.axis("pipeline").size(), 1);
    });
  }
}

// The adapter through PyTorch's own interface, a row a call.
TEST_P(Communicators, BackendAdapter) {
  on_ranks(GetParam(), [](Communicator& c) {
    const auto n = c.size();
    const auto me = c.rank();
    const int64_t count = 3000;
    c10::intrusive_ptr<c10d::Backend> backend =
        c10::make_intrusive<ShmBackend>(std::make_shared<Communicator>(c.group()));
    EXPECT_EQ(backend->getSize(), n);
    EXPECT_EQ(backend->getRank(), me);
    const auto gathered = [&] {
      std::vector<at::Tensor> parts;
      for (int64_t r = 0; r < n; ++r) parts.push_back(input_of(r, count, at::kFloat));
      return at::cat(parts);
    }();
    const at::Tensor wide = input_of(me, count * n, at::kFloat);
    const at::Tensor scattered = sum_of(n, count * n, at::kFloat).narrow(0, me * count, count);
    struct Row {
      const char* name;
      std::function<at::Tensor()> run;
      at::Tensor expected;
    };
    const std::vector<Row> rows = {
        {"allreduce",
         [&] {
           std::vector<at::Tensor> t = {input_of(me, count, at::kFloat)};
           backend->allreduce(t)->wait();
           return t[0];
         },
         sum_of(n, count, at::kFloat)},
        {"broadcast",
         [&] {
           std::vector<at::Tensor> t = {input_of(me, count, at::kFloat)};
           c10d::BroadcastOptions options;
           options.rootRank = n - 1;
           backend->broadcast(t, options)->wait();
           return t[0];
         },
         input_of(n - 1, count, at::kFloat)},
        {"_allgather_base",
         [&] {
           at::Tensor out = at::empty({count * n});
           at::Tensor in = input_of(me, count, at::kFloat);
           backend->_allgather_base(out, in)->wait();
           return out;
         },
         gathered},
        {"allgather",
         [&] {
           std::vector<std::vector<at::Tensor>> out(1);
           for (int64_t r = 0; r < n; ++r) out[0].push_back(at::empty({count}));
           std::vector<at::Tensor> in = {input_of(me, count, at::kFloat)};
           auto work = backend->allgather(out, in);
           while (!work->isCompleted()) {
           }
           EXPECT_TRUE(work->isSuccess());
           return at::cat(out[0]);
         },
         gathered},
        {"_reduce_scatter_base",
         [&] {
           at::Tensor out = at::empty({count});
           at::Tensor in = wide;
           backend->_reduce_scatter_base(out, in)->wait();
           return out;
         },
         scattered},
        {"reduce_scatter",
         [&] {
           std::vector<at::Tensor> out = {at::empty({count})};
           std::vector<std::vector<at::Tensor>> in(1);
           for (int64_t r = 0; r < n; ++r) in[0].push_back(wide.narrow(0, r * count, count));
           backend->reduce_scatter(out, in)->wait();
           return out[0];
         },
         scattered},
        {"alltoall_base",
         [&] {
           at::Tensor out = at::empty({count * n});
           at::Tensor in = wide;
           std::vector<int64_t> even;
           backend->alltoall_base(out, in, even, even)->wait();
           return out;
         },
         [&] {
           std::vector<at::Tensor> parts;
           for (int64_t r = 0; r < n; ++r)
             parts.push_back(input_of(r, count * n, at::kFloat).narrow(0, me * count, count));
           return at::cat(parts);
         }()},
    };
    for (const Row& row : rows) EXPECT_TRUE(row.run().equal(row.expected)) << row.name << " rank " << me << " of " << n;
    backend->barrier()->wait();
    if (n > 1) {
      std::vector<at::Tensor> out = {input_of(me, count, at::kFloat)};
      std::vector<at::Tensor> in = {at::empty({count})};
      auto sent = backend->send(out, static_cast<int>((me + 1) % n), 0);
      backend->recv(in, static_cast<int>((me + n - 1) % n), 0)->wait();
      sent->wait();
      EXPECT_TRUE(in[0].equal(input_of((me + n - 1) % n, count, at::kFloat))) << "send, recv";
    }
    std::vector<at::Tensor> t = {at::ones({2})};
    c10d::AllreduceOptions product;
    product.reduceOp = c10d::ReduceOp::PRODUCT;
    EXPECT_THROW(backend->allreduce(t, product), InputError);
    std::vector<at::Tensor> two = {at::ones({2}), at::ones({2})};
    EXPECT_THROW(backend->allreduce(two), InputError);
  });
}

TEST(BackendAdapter, AWaitKeepsTheDeadlineThatItIsGiven) {
  std::atomic<bool> over{false};
  on_ranks(2, [&](Communicator& c) {
    if (c.rank() == 0) {
      const c10::intrusive_ptr<c10d::Backend> backend =
          c10::make_intrusive<ShmBackend>(std::make_shared<Communicator>(c.group()));
      std::vector<at::Tensor> t = {at::ones({4})};
      const auto work = backend->allreduce(t);
      try {
        work->wait(std::chrono::milliseconds(300));  // the group's own deadline is a minute
        ADD_FAILURE() << "rank 1 has not come";
      } catch (const WorkerError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("its deadline of 0.3 s is over"));
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1"));
      }
      EXPECT_THROW(work->wait(std::chrono::milliseconds(300)), WorkerError);
      over = true;
    }
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
}

TEST(Bench, MeasuresEveryCollectiveAndPrintsATable) {
  on_ranks(2, [](Communicator& c) {
    BenchOptions options;
    options.max_bytes = 64 << 10;
    options.factor = 64;
    options.seconds_per_size = 0.001;
    const auto results = bench_collectives(c, options);
    EXPECT_EQ(results.size(), 12U * 2U);  // nine operations, three of them also in place
    for (const BenchResult& r : results) {
      EXPECT_GT(r.microseconds, 0) << r.collective;
      EXPECT_EQ(r.wrong, 0) << r.collective << ", " << r.bytes << " bytes";
    }
    const std::string table = format_bench(results, c, options);
    if (c.rank() == 0) std::printf("%s", table.c_str());
    EXPECT_NE(table.find("busbw"), std::string::npos);
    options.collectives = {"all_reduces"};
    EXPECT_THROW(bench_collectives(c, options), InputError);
  });
}

}  // namespace
}  // namespace trireme::comm
