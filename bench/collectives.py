"""Collectives of two ranks (or --ranks) beside gloo and Open MPI: collectives.py BUILD_DIR [--json].

All contenders run at once and take turns: for each size, in each round, one after the other measures the same operation for
about --seconds while the others sleep in a read. Ratios are taken within a round and their median is printed, since a machine
that does other things changes its rate from one second to the next. Each turn first checks every element on whole numbers.

A last line of --json holds, by bytes, how many times as fast Trireme is: OPERATION_busbw_ratio_to_gloo, OPERATION_busbw_ratio_to_mpi.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from turns import die_with_parent

OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter"]
SIZES = [1 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20]
HERE = pathlib.Path(__file__).resolve().parent


class Contender:
    """Processes that run a collective when they are told to, and sleep otherwise."""

    def __init__(self, name, folder, commands_of):
        self.name = name
        self.fifos = [folder / f"{name}.{rank}" for rank in range(len(commands_of["ranks"]))]
        for fifo in self.fifos:
            os.mkfifo(fifo)
        # Workers of a trainer are pinned to their share of the processors; an idle OpenMP thread spins nowhere.
        environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE if k == 0 else subprocess.DEVNULL, env=environment,
                             text=True, preexec_fn=die_with_parent)
            for k, command in enumerate(commands_of["processes"])]
        self.inputs = [open(fifo, "w", encoding="utf-8") for fifo in self.fifos]  # opens when its rank has opened it

    def measure(self, operation, size, repeats):
        """Microseconds of one call."""
        for stream in self.inputs:
            stream.write(f"{operation} {size} {repeats}\n")
            stream.flush()
        line = self.processes[0].stdout.readline().split()
        if not line:
            raise RuntimeError(f"{self.name} ended")
        if float(line[1]) != 0:
            raise RuntimeError(f"{self.name}: {operation} of {size} bytes gave wrong elements")
        return float(line[0])

    def end(self):
        for stream in self.inputs:
            stream.close()
        for process in self.processes:
            process.wait(timeout=30)


def start(name, build, folder, ranks):
    everyone = range(ranks)
    fifo = str(folder / name)
    pin = [["taskset", "-c", str(sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))])] for rank in everyone]
    if name == "trireme":
        address = f"trireme-bench-{os.getpid()}"
        commands = [pin[r] + [str(build / "bench_collectives_shm"), address, str(r), str(ranks), f"{fifo}.{r}"] for r in everyone]
    elif name == "gloo":
        commands = [pin[r] + [sys.executable, "-B", str(HERE / "collectives_gloo.py"), str(folder / "store"), str(r), str(ranks),
                              f"{fifo}.{r}"] for r in everyone]
    else:
        commands = [["mpirun", "--oversubscribe", "--bind-to", "core" if ranks <= os.cpu_count() else "none", "-n", str(ranks),
                     str(build / "bench_collectives_mpi"), fifo]]
    return Contender(name, folder, {"ranks": list(everyone), "processes": commands})


def bus_factor(operation, ranks):
    return (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="build folder with bench_collectives_shm")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.15, help="of each turn")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes of the larger buffer")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = ["trireme", "gloo"]
    if shutil.which("mpirun") and (options.build / "bench_collectives_mpi").exists():
        names.append("mpi")
    else:
        print("no Open MPI: packages libopenmpi-dev and openmpi-bin, then build again (tools/build.sh bench)")
    with tempfile.TemporaryDirectory(prefix="trireme-collectives-") as folder:
        contenders = [start(name, options.build, pathlib.Path(folder), options.ranks) for name in names]
        result = {f"{operation}_busbw_ratio_to_{name}": {} for operation in options.operations for name in names[1:]}
        result["time_us"] = {}
        print(f"{options.ranks} ranks, fp32; medians of {options.rounds} rounds; load {os.getloadavg()[0]:.1f}")
        print(f"{'operation':<16}{'bytes':>10}" + "".join(f"{name + ' us':>14}{'busbw GB/s':>12}" for name in names) +
              "".join(f"{'x ' + name:>8}" for name in names[1:]))
        for operation in options.operations:
            for size in options.sizes:
                repeats = {c.name: max(3, int(options.seconds / (c.measure(operation, size, 5) * 1e-6))) for c in contenders}
                times = {c.name: [] for c in contenders}
                for number in range(options.rounds):
                    # Back and forth, so that none always follows the same one.
                    for c in contenders if number % 2 == 0 else contenders[::-1]:
                        times[c.name].append(c.measure(operation, size, repeats[c.name]))
                row = f"{operation:<16}{size:>10}"
                for name in names:
                    median = statistics.median(times[name])
                    result["time_us"].setdefault(name, {}).setdefault(operation, {})[str(size)] = round(median, 3)
                    row += f"{median:>14.2f}{size / median * 1e-3 * bus_factor(operation, options.ranks):>12.2f}"
                for name in names[1:]:
                    ratio = statistics.median(b / a for a, b in zip(times["trireme"], times[name]))
                    result[f"{operation}_busbw_ratio_to_{name}"][str(size)] = round(ratio, 2)
                    row += f"{ratio:>8.1f}"
                print(row, flush=True)
        for contender in contenders:
            contender.end()
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
