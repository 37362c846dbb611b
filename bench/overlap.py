"""How much communication compute hides when weights and gradients are divided: the time of a step beside what an emulated link makes
of its exchanges.

usage: overlap.py TRIREME CONFIG [--workers 2] [--steps 6] [--shares 0.5 0.9 1.5] [--set SECTION.KEY=VALUE ...] [--json]

First the run is timed as it is: the exchanges through shared memory take next to nothing, so that is compute. Its flight record tells
what each step moves over the shard axis. Then the link of that axis is emulated (comm.emulate.shard.gb_per_s) so that those bytes take
each of the shares of the compute, with parallel.prefetch = 1 and with 0. Foretold for the former is

    compute + first gather + last reduce + max(0, what else is moved - forward and backward),

since the first gather has nothing to hide under, nor has the last reduce, and between them communication runs beside compute.
Medians of the steps after the first two. With --json the last line is one object with a row for each share.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

WARMUP = 2


def run(options, folder, more):
    """Trains in `folder`; the folder of the run."""
    settings = {"run.dir": folder, "data.eval_path": "", "train.steps": options.steps + WARMUP, "lr_schedule.warmup_steps": 1,
                "metrics.interval": 1, "parallel.shard": "parameters", "checkpoint.interval": 0, "comm.flight_recorder": 100000,
                "train.global_batch_size": -1, **more}
    command = [options.trireme, "train", options.config, "--workers", str(options.workers)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    for text in options.set:
        command += ["--set", text]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return folder


def step_time(folder):
    """Medians of the whole step, and of what compute waited for in it."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line][WARMUP:]
    return (statistics.median(line["step_time_s"] for line in steps),
            statistics.median(line.get("comm_exposed_s", 0) for line in steps))


def operations_of_a_step(options, folder):
    """[(operation, bytes on a rank's link)] of the last step on the shard axis: gathers, and reductions of gradients."""
    told = subprocess.run([options.trireme, "inspect", folder, "--flight", "--json", "--last", "100000"], capture_output=True,
                          text=True, check=True).stdout
    calls = [call for call in json.loads(told)["ranks"][0]["operations"] if call["axis"] == "shard"]
    # A step ends with the sum of the squares of all gradients.
    ends = [i for i, call in enumerate(calls) if call["operation"] == "all_reduce"]
    own = calls[ends[-2] + 1 : ends[-1]]
    return [(call["operation"], call["bytes"] * (options.workers - 1) / options.workers) for call in own]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("config")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.9, 1.5])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.trireme = str(pathlib.Path(options.trireme).resolve())

    rows = []
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as scratch:
        scratch = pathlib.Path(scratch)
        plain = run(options, scratch / "plain", {})
        compute, waited = step_time(plain)
        moved = operations_of_a_step(options, plain)
        total = sum(size for _, size in moved)
        first = next(size for name, size in moved if name == "all_gather")
        last = next(size for name, size in reversed(moved) if name == "reduce_scatter")
        print(f"compute {compute:.3f} s a step, {waited:.3f} s of it waiting for the other workers; {len(moved)} exchanges move "
              f"{total / 1e6:.1f} MB over each link, the first gather {first / 1e6:.1f}, the last reduce {last / 1e6:.1f}", flush=True)
        print(f"{'share':>6}{'GB/s':>8}{'moved':>9}{'foretold':>10}{'prefetch 1':>12}{'/ foretold':>12}{'prefetch 0':>12}", flush=True)
        for share in options.shares:
            speed = total / (share * compute) / 1e9
            link = {"comm.emulate.shard.gb_per_s": speed}
            ahead, _ = step_time(run(options, scratch / f"ahead {share}", link))
            behind, _ = step_time(run(options, scratch / f"behind {share}", {**link, "parallel.prefetch": 0}))
            ends = (first + last) / speed / 1e9
            foretold = compute + ends + max(0, share * compute - ends - compute)
            rows.append({"share": share, "gb_per_s": speed, "compute_s": compute, "moved_s": share * compute, "foretold_s": foretold,
                         "prefetch_1_s": ahead, "prefetch_0_s": behind, "ratio_to_foretold": ahead / foretold})
            print(f"{share:6.2f}{speed:8.3f}{share * compute:9.3f}{foretold:10.3f}{ahead:12.3f}{ahead / foretold:12.3f}{behind:12.3f}",
                  flush=True)
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
