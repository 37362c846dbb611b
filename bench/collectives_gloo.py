"""gloo, through torch.distributed, as a contender of collectives.py: collectives_gloo.py STORE RANK RANKS COMMANDS."""
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist


class Gloo:
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.input = torch.zeros(16 << 20)
        self.output = torch.zeros(16 << 20)

    def run(self, operation, floats):
        part = floats // self.ranks
        if operation == "all_reduce":
            dist.all_reduce(self.input[:floats])
        elif operation == "all_gather":
            dist.all_gather_into_tensor(self.output[:floats], self.input[:part])
        else:
            dist.reduce_scatter_tensor(self.output[:part], self.input[:floats])

    def values(self, rank, floats):
        return ((torch.arange(floats) * 3 + rank * 5) % 13).float()

    def count_wrong(self, operation, floats):
        part = floats // self.ranks
        given = part if operation == "all_gather" else floats
        self.input[:given] = self.values(self.rank, given)
        self.run(operation, floats)
        if operation == "all_gather":
            expected = torch.cat([self.values(r, part) for r in range(self.ranks)])
        else:
            expected = sum(self.values(r, floats) for r in range(self.ranks))
        if operation == "reduce_scatter":
            expected = expected[self.rank * part : (self.rank + 1) * part]
        got = (self.input if operation == "all_reduce" else self.output)[: len(expected)]
        wrong = int((got != expected).sum())
        self.input[:floats] = 0
        return wrong

    def slowest(self, seconds):
        most = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return most.item()


def main():
    store, rank, ranks, commands = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    warnings.simplefilter("ignore")  # the calls have newer names, with the same meaning
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    gloo = Gloo(rank, ranks)
    with open(commands, encoding="utf-8") as lines:
        for line in iter(lines.readline, ""):
            operation, size, repeats = line.split()
            floats, repeats = int(size) // 4, int(repeats)
            wrong = gloo.slowest(gloo.count_wrong(operation, floats))
            gloo.run(operation, floats)
            dist.barrier()
            # Short batches: another process that takes a processor spoils a few of them, not the median.
            batches = min(repeats, 15)
            times = []
            for _ in range(batches):
                begin = time.perf_counter()
                for _ in range(repeats // batches):
                    gloo.run(operation, floats)
                times.append((time.perf_counter() - begin) / (repeats // batches))
            slowest = gloo.slowest(statistics.median(times))
            if rank == 0:
                print(slowest * 1e6, wrong, flush=True)


if __name__ == "__main__":
    main()
