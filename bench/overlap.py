"""How much communication compute hides when weights and gradients are divided: the time of a step beside what an emulated link makes
of its exchanges.

usage: overlap.py TRIREME CONFIG [--workers 2] [--steps 6] [--shares 0.5 0.9 1.5] [--prefetch 1] [--set SECTION.KEY=VALUE ...] [--json]

First the run is timed as it is: the exchanges through shared memory take next to nothing, so that is compute; a profile of two more steps
divides it into blocks forward and backward, the head and its loss, and the rest (the update). Its flight record tells what each step moves
over the shard axis. Then the link of that axis is emulated (comm.emulate.shard.gb_per_s) so that those bytes take each of the shares of
the compute, with parallel.prefetch as given and with 0.

Foretold is what a schedule without losses would take, by playing it: exchanges use the link one after another in the order in which they
are posted (each unit gathered under the compute of those before it, as many as prefetch says; each block's gradients reduced under the compute of the next), and
compute waits for what it needs. Beside it stands the bound that no schedule can beat, compute or link + the first gather + the last reduce:
what must be there before the first block, and what is complete only after the last. A tied embedding is both. The schedule is played with
the compute of each step itself (its time less what it waited), since machines are not equally fast all the time; the ratio is the median
over steps. Medians of the steps after the first two. With --json the last line is one object with a row for each share.
"""

import argparse
import collections
import dataclasses
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


def steps_of(folder):
    """(seconds of the whole step, seconds that compute waited in it) of each step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step_time_s"], line.get("comm_exposed_s", 0)) for line in lines if "loss" in line][WARMUP:]


def step_time(folder):
    """Medians of the whole step, and of what compute waited for in it."""
    steps = steps_of(folder)
    return statistics.median(whole for whole, _ in steps), statistics.median(waited for _, waited in steps)


def operations_of_a_step(options, folder):
    """[(operation, bytes on a rank's link)] of the last step on the shard axis: gathers, and reductions of gradients."""
    told = subprocess.run([options.trireme, "inspect", folder, "--flight", "--json", "--last", "100000"], capture_output=True,
                          text=True, check=True).stdout
    calls = [call for call in json.loads(told)["ranks"][0]["operations"] if call["axis"] == "shard"]
    # A step ends with the sum of the squares of all gradients.
    ends = [i for i, call in enumerate(calls) if call["operation"] == "all_reduce"]
    own = calls[ends[-2] + 1 : ends[-1]]
    return [(call["operation"], call["bytes"] * (options.workers - 1) / options.workers) for call in own]


@dataclasses.dataclass
class Exchanges:
    """Bytes on a rank's link of each unit of a step of one micro-batch."""
    blocks: int
    gather: float  # of a block
    reduce: float
    first: list  # gathers before the first block
    behind: list  # gathers after the last block: an untied head
    last: list  # reductions after the last block's
    early: float  # reductions before the first block's: of an untied head


def structure(moved):
    """What is exchanged when, from the order of a step's exchanges: units of blocks are those of the most frequent size."""
    common = {name: collections.Counter(size for op, size in moved if op == name).most_common(1)[0][0] for name in ("all_gather", "reduce_scatter")}
    gathers = [size for op, size in moved if op == "all_gather"]
    reduces = [size for op, size in moved if op == "reduce_scatter"]
    block, of_reduce = common["all_gather"], common["reduce_scatter"]
    start = gathers.index(block)
    end = len(reduces) - reduces[::-1].index(of_reduce)
    begin = reduces.index(of_reduce)
    return Exchanges(blocks=reduces.count(of_reduce), gather=block, reduce=of_reduce, first=gathers[:start],
                     behind=[size for size in gathers[start:] if size != block], last=reduces[end:], early=sum(reduces[:begin]))


@dataclasses.dataclass
class Compute:
    """Seconds of a step."""
    forward: float  # of all blocks
    backward: float
    head: float  # with its loss and its gradients, between the two
    rest: float  # the update

    def scaled_to(self, seconds):
        """In the same proportions, all together so long."""
        factor = seconds / (self.forward + self.backward + self.head + self.rest)
        return Compute(*(factor * part for part in (self.forward, self.backward, self.head, self.rest)))


HEAD = ("head", "cross-entropy", "head, input gradient", "head, weight gradient")


def compute_of(folder, seconds):
    """The step's compute, in the proportions of the profile."""
    operations = json.loads((folder / "profile" / "profile-rank0.json").read_text())["operations"]
    share = collections.Counter()
    for it in operations:
        if it["phase"] == "communication":
            continue
        part = "head" if it["name"] in HEAD else it["phase"] if it["phase"] in ("forward", "backward") else "rest"
        share[part] += it["self_ns"]
    whole = sum(share.values())
    return Compute(**{part: seconds * share[part] / whole for part in ("forward", "backward", "head", "rest")})


def play(exchanges, compute, speed, prefetch=1):
    """Seconds of a step whose exchanges take the link one after another at `speed` bytes a second."""
    now = link = 0.0
    blocks = exchanges.blocks

    def post(size):
        nonlocal link
        link = max(link, now) + size / speed
        return link

    # In the order of use: (bytes to gather, seconds of compute, bytes to reduce afterwards).
    kept = min(prefetch + 1, blocks)
    uses = [(size, 0, 0) for size in exchanges.first]
    uses += [(exchanges.gather, compute.forward / blocks, 0)] * blocks
    uses += [(size, 0, 0) for size in exchanges.behind] + [(0, compute.head, exchanges.early)]
    first_backward = len(uses)
    uses += [(exchanges.gather if i >= kept else 0, compute.backward / blocks, exchanges.reduce) for i in range(blocks)]
    there, reduced = {}, []
    for i, (_, seconds, reduce) in enumerate(uses):
        for j in range(i, min(i + prefetch + 1, len(uses))):
            if j not in there:
                there[j] = post(uses[j][0]) if uses[j][0] else 0.0
        now = max(now, there[i])
        if i >= first_backward and len(reduced) >= 2:
            now = max(now, reduced[-2])  # whose buffer is written
        now += seconds
        if reduce and i < first_backward:
            post(reduce)  # of the head, which has a buffer of its own
        elif reduce:
            reduced.append(post(reduce))
    for size in exchanges.last:
        post(size)
    return max(now, link) + compute.rest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("config")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.9, 1.5])
    parser.add_argument("--prefetch", type=int, default=1)
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
        exchanges = structure(moved)
        run(options, scratch / "profile", {"profile.steps": 2, "profile.warmup_steps": 2})
        parts = compute_of(scratch / "profile", compute - waited)
        ends = sum(exchanges.first) + sum(exchanges.last)
        print(f"compute {compute - waited:.3f} s a step (blocks {parts.forward:.3f} forward and {parts.backward:.3f} backward, head {parts.head:.3f}, "
              f"the rest {parts.rest:.3f}), and {waited:.3f} s of waiting for the other workers; {len(moved)} exchanges move {total / 1e6:.1f} MB "
              f"over each link, {sum(exchanges.first) / 1e6:.1f} before the first block and {sum(exchanges.last) / 1e6:.1f} after the last", flush=True)
        print(f"{'share':>6}{'GB/s':>8}{'moved':>9}{'bound':>9}{'foretold':>10}{f'prefetch {options.prefetch}':>12}{'/ foretold':>12}{'prefetch 0':>12}{'hidden':>8}", flush=True)
        for share in options.shares:
            speed = total / (share * compute) / 1e9
            link = {"comm.emulate.shard.gb_per_s": speed}
            with_link = run(options, scratch / f"ahead {share}", {**link, "parallel.prefetch": options.prefetch})
            ahead, _ = step_time(with_link)
            behind, _ = step_time(run(options, scratch / f"behind {share}", {**link, "parallel.prefetch": 0}))
            edges = ends / speed / 1e9
            bound = max(compute, share * compute - edges) + edges
            # For each step with its own compute: the machine is not as fast in every minute. While the link is waited for, others are too.
            foretold_of = [max(play(exchanges, parts.scaled_to(whole - exposed), speed * 1e9, options.prefetch), whole - exposed + waited)
                           for whole, exposed in steps_of(with_link)]
            foretold = statistics.median(foretold_of)
            ratio = statistics.median(whole / told for (whole, _), told in zip(steps_of(with_link), foretold_of, strict=True))
            # Of what is moved between the edges, the share that costs the step nothing.
            hidden = 1 - max(0, ahead - compute - edges) / max(share * compute - edges, 1e-9)
            rows.append({"share": share, "gb_per_s": speed, "compute_s": compute, "moved_s": share * compute, "bound_s": bound, "foretold_s": foretold,
                         "prefetch": options.prefetch, "prefetch_s": ahead, "prefetch_0_s": behind, "ratio_to_foretold": ratio, "hidden": hidden})
            print(f"{share:6.2f}{speed:8.3f}{share * compute:9.3f}{bound:9.3f}{foretold:10.3f}{ahead:12.3f}{ratio:12.3f}{behind:12.3f}{hidden:8.2f}",
                  flush=True)
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
