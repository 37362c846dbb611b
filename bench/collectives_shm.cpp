// Trireme's collectives as a contender of collectives.py: bench_collectives_shm ADDRESS RANK RANKS COMMANDS. Tensors
// are those of shared_empty(), as gradients are in training.
#include <ATen/ATen.h>

#include <cstdlib>
#include <memory>

#include "collectives_loop.h"
#include "comm/arena.h"
#include "comm/communicator.h"
#include "comm/shm_group.h"

namespace {

using namespace trireme::comm;

class Shm : public Backend {
 public:
  Shm(const std::string& address, int64_t rank, int64_t ranks) {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    std::shared_ptr<Arena> arena;
    if (rank == 0) {
      arena = Arena::create(ranks);
      const auto door = Arena::listen(address);
      arena->hand_out(door, deadline);
    } else {
      arena = Arena::attach(address, rank, deadline);
    }
    GroupOptions options;
    options.rank = rank;
    communicator_ = std::make_unique<Communicator>(std::make_shared<ShmGroup>(arena, options));
  }
  void prepare(int64_t floats) override {
    input_ = communicator_->shared_empty("input", {floats}, at::kFloat);
    output_ = communicator_->shared_empty("output", {floats}, at::kFloat);
  }
  float* input() override { return input_.data_ptr<float>(); }
  float* output() override { return output_.data_ptr<float>(); }
  void run(const std::string& operation, int64_t floats) override {
    if (floats != floats_) {  // tensors are cut once, as a trainer cuts them
      floats_ = floats;
      whole_ = input_.narrow(0, 0, floats);
      part_ = input_.narrow(0, 0, floats / communicator_->size());
      other_ = output_.narrow(0, 0, floats);
      other_part_ = output_.narrow(0, 0, floats / communicator_->size());
    }
    if (operation == "all_reduce") communicator_->all_reduce(whole_);
    if (operation == "all_gather") communicator_->all_gather_into(other_, part_);
    if (operation == "reduce_scatter") communicator_->reduce_scatter_into(other_part_, whole_);
  }
  double slowest(double seconds) override { return communicator_->all_reduce_scalar(seconds, ReduceOp::max); }
  void barrier() override { communicator_->barrier(); }

 private:
  std::unique_ptr<Communicator> communicator_;
  at::Tensor input_, output_, whole_, part_, other_, other_part_;
  int64_t floats_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int rank = std::atoi(argv[2]), ranks = std::atoi(argv[3]);
  Shm backend(argv[1], rank, ranks);
  serve(backend, argv[4], rank, ranks);
}
