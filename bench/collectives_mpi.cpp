// MPI as a contender of collectives.py: mpirun -n RANKS bench_collectives_mpi COMMANDS, where COMMANDS.RANK is the file
// of each rank.
#include <mpi.h>

#include "collectives_loop.h"

namespace {

class Mpi : public Backend {
 public:
  void prepare(int64_t floats) override {
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    input_.resize(static_cast<size_t>(floats));
    output_.resize(static_cast<size_t>(floats));
  }
  float* input() override { return input_.data(); }
  float* output() override { return output_.data(); }
  void run(const std::string& operation, int64_t floats) override {
    const int count = static_cast<int>(floats), part = count / ranks_;
    if (operation == "all_reduce") MPI_Allreduce(MPI_IN_PLACE, input(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (operation == "all_gather") MPI_Allgather(input(), part, MPI_FLOAT, output(), part, MPI_FLOAT, MPI_COMM_WORLD);
    if (operation == "reduce_scatter")
      MPI_Reduce_scatter_block(input(), output(), part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  double slowest(double seconds) override {
    double most = 0;
    MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  int ranks_ = 1;
  std::vector<float> input_, output_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Mpi backend;
  serve(backend, std::string(argv[1]) + "." + std::to_string(rank), rank, ranks);
  MPI_Finalize();
}
