"""What ZeRO++'s options do on a slow link: bytes that a step moves over each rank's link, and its time with emulated links.

usage: zeropp.py TRIREME CONFIG [--workers 4] [--steps 6] [--gb-per-s 1] [--near-gb-per-s 0] [--set SECTION.KEY=VALUE ...] [--json]

Each row trains with parallel.shard = "parameters" and other options. The link of the axis shard has --gb-per-s; that of a second shard,
which lies within a machine, has --near-gb-per-s (0: this machine's memory). The last rows have two copies: each is a machine, and what goes
between them (axis replicate) has --gb-per-s. Bytes are from the flight record: what a ring, or an all-to-all, moves over the slow link of a
rank. Medians of the steps after the first two.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

WARMUP = 2
ROWS = [("plain", {}),
        ("second shard", {"parallel.reshard_after_forward": "HALF"}),
        ("int8 weights", {"parallel.quantize_weights": "int8"}),
        ("int8 gradients", {"parallel.quantize_gradients": "int8"}),
        ("int4 gradients", {"parallel.quantize_gradients": "int4"}),
        ("int8 weights, second shard, int8 gradients", {"parallel.quantize_weights": "int8", "parallel.reshard_after_forward": "HALF",
                                                        "parallel.quantize_gradients": "int8"}),
        ("int8 weights, second shard, int4 gradients", {"parallel.quantize_weights": "int8", "parallel.reshard_after_forward": "HALF",
                                                        "parallel.quantize_gradients": "int4"}),
        ("two copies", {"parallel.shard_size": "HALF"}),
        ("two copies, int8 gradients", {"parallel.shard_size": "HALF", "parallel.quantize_gradients": "int8"}),
        ("two copies, int4 gradients", {"parallel.shard_size": "HALF", "parallel.quantize_gradients": "int4"})]


def train(options, folder, more):
    settings = {"run.dir": folder, "data.eval_path": "", "train.steps": options.steps + WARMUP, "lr_schedule.warmup_steps": 1,
                "metrics.interval": 1, "parallel.shard": "parameters", "checkpoint.interval": 0, "comm.flight_recorder": 100000,
                "train.global_batch_size": -1, "comm.emulate.shard.gb_per_s": options.gb_per_s, **more}
    if "parallel.reshard_after_forward" in more:
        settings["comm.emulate.second_shard.gb_per_s"] = options.near_gb_per_s
    if "parallel.shard_size" in more:
        settings["comm.emulate.shard.gb_per_s"] = options.near_gb_per_s
        settings["comm.emulate.replicate.gb_per_s"] = options.gb_per_s
    command = [options.trireme, "train", options.config, "--workers", str(options.workers)]
    for text in [f"{key}={value}" for key, value in settings.items()] + options.set:
        command += ["--set", text.replace("HALF", str(options.workers // 2))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def bytes_of_a_step(options, folder, copies):
    """{axis: {operation: bytes on a rank's link}} of the last step."""
    told = subprocess.run([options.trireme, "inspect", folder, "--flight", "--json", "--last", "100000"], capture_output=True,
                          text=True, check=True).stdout
    ranks = {"shard": options.workers // copies, "second_shard": options.workers // 2, "replicate": copies}
    calls = [call for call in json.loads(told)["ranks"][0]["operations"] if call["axis"] in ranks]
    # A step ends with the sum of the squares of all gradients.
    ends = [i for i, call in enumerate(calls) if call["operation"] == "all_reduce" and call["axis"] == "shard"]
    moved = {}
    for call in calls[ends[-2] + 1 : ends[-1]]:
        rest = (ranks[call["axis"]] - 1) / ranks[call["axis"]]
        # Of an all-to-all a rank's own part is no part.
        share = {"all_to_all": 1, "all_reduce": 2 * rest}.get(call["operation"], rest)
        of_axis = moved.setdefault(call["axis"], {})
        of_axis[call["operation"]] = of_axis.get(call["operation"], 0) + call["bytes"] * share
    return moved


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("config")
    parser.add_argument("--workers", type=int, default=4, help="even, and at least 4")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--gb-per-s", type=float, default=1.0)
    parser.add_argument("--near-gb-per-s", type=float, default=0.0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.trireme = str(pathlib.Path(options.trireme).resolve())
    if options.workers < 4 or options.workers % 2 != 0:
        sys.exit("--workers: a second shard needs two groups of at least two, so 4, 6, 8, ...")
    rows = []
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as scratch:
        print(f"{'':44}{'gathers MB':>12}{'near MB':>10}{'gradients MB':>14}{'step s':>9}{'exposed s':>11}{'loss':>8}", flush=True)
        for i, (name, settings) in enumerate(ROWS):
            folder = pathlib.Path(scratch) / str(i)
            steps = train(options, folder, settings)
            copies = 2 if "parallel.shard_size" in settings else 1
            moved = bytes_of_a_step(options, folder, copies)
            near = moved.get("second_shard", {}) if copies == 1 else moved["shard"]
            far = moved["shard"] if copies == 1 else moved["replicate"]
            # Between copies all is of gradients: their sums are gathered.
            gathered = far.get("all_gather", 0) if copies == 1 else 0
            row = {"name": name, "gathered_mb": gathered / 1e6, "near_mb": sum(near.values()) / 1e6,
                   "reduced_mb": (sum(far.values()) - gathered) / 1e6,
                   "step_s": statistics.median(step["step_time_s"] for step in steps[WARMUP:]),
                   "exposed_s": statistics.median(step.get("comm_exposed_s", 0) for step in steps[WARMUP:]), "loss": steps[-1]["loss"]}
            rows.append(row)
            print(f"{name:44}{row['gathered_mb']:12.1f}{row['near_mb']:10.1f}{row['reduced_mb']:14.1f}{row['step_s']:9.3f}"
                  f"{row['exposed_s']:11.3f}{row['loss']:8.3f}", flush=True)
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
