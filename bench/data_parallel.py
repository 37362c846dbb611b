"""Data parallelism of Trireme, at each level of what ranks divide, beside PyTorch's DDP and FSDP2 over gloo: the same
model, data and micro-batches, a thread a rank, in short turns (turns.py).

usage: data_parallel.py TRIREME CONFIG [--workers 2] [--levels replicate parameters] [--rounds 20] [--turn 4]
                        [--finalists 2] [--peers NAME...] [--fresh] [--json [FILE]]

Levels are parallel.shard: replicate is none of it; optimizer, gradients, parameters. One worker with as many threads as
there are workers trains the same batch, for the scaling. Peers: DDP as in train_ddp.py, and fully_shard
(fsdp_trainer.py) with blocks that are gathered once more for backward (reshard) or not (keep); each compiled and eager,
cross-entropy plain and in chunks. In heats the compiled ones run alone for a few steps, eager those that cannot; the
fastest of DDP and of FSDP go into the final (--peers names them in place of heats; without a name, no peers). All of
the final are in memory together; with --fresh, a turn starts a run anew and ends it.

Memory is the proportional set size of all processes of a run at its highest, looked at many times a step once it is
warm. Ratios are medians over the rounds of the ratio within a round, to the peer that comes off best: the fastest of
its kind; for memory, the one of its kind in the final that takes the least.

--json prints, as the last line, one object. tokens_per_second, ratio_to_best_ddp, memory_ratio_to_ddp and
scaling_of_two_workers are of the first level, ratio_to_best_fsdp and memory_ratio_to_fsdp of the last; `levels` has all
of each. Exit code 0 whoever is faster, 1 when a run of Trireme, or every peer, could not run.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

import contenders
import turns

LEVELS = ("replicate", "optimizer", "gradients", "parameters")
FAMILIES = ("ddp", "fsdp")
PATIENCE_S = 900
WATCHED = 3  # steps
LOG_LINES = 20
TRAINER = pathlib.Path(__file__).parent / "fsdp_trainer.py"


class Run(turns.Contender):
    """Is watched for its memory once it is warm, and tells its command and what its log ends with when it fails."""

    @contextlib.contextmanager
    def telling(self):
        try:
            yield
        except RuntimeError as error:
            log = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
            raise RuntimeError("\n".join([str(error).splitlines()[0], shlex.join(self.commands[0][0]), *log])) from None

    def run_until(self, steps, patience_s):
        with self.telling():
            super().run_until(steps, patience_s)
            self.watch(len(self.records) + WATCHED, patience_s)

    def watch(self, steps, patience_s):
        """As run_until. It slows the run down, and is no part of what counts."""
        deadline = time.monotonic() + patience_s
        self.send(signal.SIGCONT)
        while len(self.records) < steps:
            self.peak_bytes = max(self.peak_bytes, self.resident_bytes())
            time.sleep(0.02)
            self.new_steps()
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did {len(self.records)} of {steps} steps in {patience_s:.0f} s")
        self.send(signal.SIGSTOP)
        self.new_steps()

    def take_turn(self, seconds, patience_s):
        with self.telling():
            super().take_turn(seconds, patience_s)

    def forget(self):
        """Before it is started anew."""
        self.steps.unlink(missing_ok=True)
        self.processes, self.records, self.read_to = [], [], 0

    def rates(self, tokens_per_step):
        """Tokens a second, a number a round."""
        return [tokens_per_step / statistics.median(seconds) for seconds in self.turns]


def resolved(binary, config, workers, **settings):
    """The text of a config with these options in place of its own."""
    words = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
    command = [binary, "config", config, "--workers", str(workers), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          env=contenders.clean_environment())
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stderr.strip()}")
    return done.stdout


def whole_batch(binary, config, workers):
    """Sequences a step: the config's, and as many more as it takes to give each worker whole micro-batches."""
    train = tomllib.loads(resolved(binary, config, 1))["train"]
    share = train["micro_batch_size"] * workers
    return -(-train["global_batch_size"] // share) * share


def contest_of(options, scratch, level, workers):
    """What trains at a level; runs of different contests have folders of their own."""
    # Runs are stopped for longer than workers wait for one another otherwise.
    text = resolved(options.trireme, options.config, workers, train__global_batch_size=options.batch,
                    lr_schedule__name="constant", lr_schedule__decay_steps=0, comm__timeout_s=86400,
                    parallel__shard="none" if level == "replicate" else level)
    folder = scratch / f"{level}-{workers}"
    folder.mkdir()
    path = folder / pathlib.Path(options.config).name
    path.write_text(text, encoding="utf-8")
    return contenders.Contest(options.trireme, str(path), workers, folder)


def ours(contest, name):
    return Run(**vars(contest.trireme()) | {"name": name})


def ways():
    """{name: how} of every peer."""
    found = {}
    for (way, mode), chunked in itertools.product({"eager": "", "compile": "default"}.items(), (False, True)):
        for family, kind in (("ddp", "master"), ("ddp", "autocast"), ("fsdp", "reshard"), ("fsdp", "keep")):
            found[f"{family} {kind}, {way}" + (", chunks" if chunked else "")] = (family, kind, mode, chunked)
    return dict(sorted(found.items()))


def peer(contest, name):
    family, kind, mode, chunked = ways()[name]
    run = contest.torch(name, kind if family == "ddp" else family, mode, chunked)
    if family == "fsdp":
        run.commands = [([python, str(TRAINER), job, kind], its) for (python, _, job), its in run.commands]
    run = Run(**vars(run))
    run.forget()  # its heat left steps
    return run


def heat(contest, name, options):
    """Seconds of a step of a peer that runs alone; None where it cannot, and prints why."""
    run = peer(contest, name)
    try:
        seconds = run.run_alone(options.warmup, options.heat, PATIENCE_S)
    except RuntimeError as error:
        print(f"  could not run: {error}", flush=True)
        return None
    rate = contest.tokens_per_step / seconds
    print(f"  {name:<40}{rate:>10,.0f} tokens/s{run.peak_bytes / 1e6:>10,.0f} MB", flush=True)
    return seconds


def heats(contest, options):
    """The fastest of each family. What compiles is faster, so that the same without runs only where it does not."""
    seconds = {}
    for name in ways():
        if ", compile" in name:
            seconds[name] = heat(contest, name, options)
            if seconds[name] is None:
                eager = name.replace("compile", "eager")
                seconds[eager] = heat(contest, eager, options)
    fastest = sorted((name for name in seconds if seconds[name]), key=seconds.get)
    kinds = [[name for name in fastest if ways()[name][0] == family] for family in FAMILIES]
    return [name for kind in kinds for name in kind[: options.finalists]]


def take_turns(everyone, options):
    return turns.run(everyone, options.rounds, options.turn, options.warmup, PATIENCE_S)


def take_fresh_turns(everyone, options):
    """As turns.run, with one of them in memory at a time."""
    errors = {}
    for number in range(options.rounds):
        for it in everyone if number % 2 == 0 else everyone[::-1]:
            if it.name not in errors:
                it.forget()
                errors |= turns.run([it], 1, options.turn, options.warmup, PATIENCE_S)
    return errors


def table(everyone, tokens_per_step):
    ran = [it for it in everyone if it.turns]
    seen = min((len(it.records) for it in ran), default=0)
    wide = max(len(it.name) for it in everyone) + 2
    print(f"{'':<{wide}}{'tokens/s':>10}{'min':>9}{'max':>9}{'peak MB':>10}{f'loss by step {seen}':>19}")
    for it in ran:
        rates = it.rates(tokens_per_step)
        # All do the same work when they stand at about the same loss.
        loss = statistics.mean(line["loss"] for line in it.records[:seen][-5:])
        print(f"{it.name:<{wide}}{statistics.median(rates):>10,.0f}{min(rates):>9,.0f}{max(rates):>9,.0f}"
              f"{it.peak_bytes / 1e6:>10,.0f}{loss:>19.3f}")


def beside(level, family, peers):
    """How a level compares with a family of peers: {} where one of them did not run; prints it."""
    against = [it for it in peers if it.turns and it.name.startswith(family)]
    if not level.turns or not against:
        return {}
    best = min(against, key=lambda it: turns.ratio(level, it)[0])
    least = min(against, key=lambda it: it.peak_bytes)
    (middle, low, high), memory = turns.ratio(level, best), level.peak_bytes / least.peak_bytes
    print(f"{level.name} / best {family.upper()}: speed {middle:.2f} ({low:.2f} .. {high:.2f}; {best.name}), "
          f"memory {memory:.2f} ({least.name})")
    return {f"ratio_to_best_{family}": middle, f"best_{family}": best.name, f"memory_ratio_to_{family}": memory}


def numbers(run, tokens_per_step):
    if not run.turns:
        return {}
    rates = run.rates(tokens_per_step)
    return {"tokens_per_second": statistics.median(rates), "min": min(rates), "max": max(rates),
            "peak_bytes": run.peak_bytes}


def summary_of(levels, single, peers, tokens_per_step):
    """What --json prints; prints the ratios."""
    results = {}
    for level in levels:
        found = results[level.name] = numbers(level, tokens_per_step)
        for family in FAMILIES:
            found |= beside(level, family, peers)
        if level.turns and single.turns:
            middle, low, high = turns.ratio(level, single)
            found["scaling"] = middle
            print(f"{level.name} / {single.name}: speed {middle:.2f} ({low:.2f} .. {high:.2f})")
    first, last = results[levels[0].name], results[levels[-1].name]
    others = {it.name: numbers(it, tokens_per_step) for it in [single, *peers] if it.turns}
    theirs = [others[it.name]["tokens_per_second"] for it in peers if it.turns]
    return {**{key: first.get(key) for key in ("tokens_per_second", "ratio_to_best_ddp", "memory_ratio_to_ddp")},
            **{key: last.get(key) for key in ("ratio_to_best_fsdp", "memory_ratio_to_fsdp")},
            "best_torch_tokens_per_second": max(theirs, default=None), "scaling_of_two_workers": first.get("scaling"),
            "levels": results, "others": others}


def pin(workers):
    """To as many processors as workers: a rank has one thread, and the single worker as many as there are ranks."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < workers:
        print(f"{workers} workers share {len(cpus)} processors: what is measured is how they wait for each other")
    os.sched_setaffinity(0, cpus[:workers])


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("config")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=["replicate", "parameters"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turn", type=float, default=4, help="seconds")
    parser.add_argument("--warmup", type=int, default=5, help="steps that do not count")
    parser.add_argument("--heat", type=int, default=6, help="steps of a peer alone, after the warm-up")
    parser.add_argument("--finalists", type=int, default=2, help="of DDP and of FSDP each")
    parser.add_argument("--peers", nargs="*", metavar="NAME",
                        help="these in place of heats, such as \"fsdp reshard, compile, chunks\"")
    parser.add_argument("--fresh", action="store_true",
                        help="start each anew for each turn: for models of which not all fit into memory")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE")
    options = parser.parse_args()
    counts = (options.rounds, options.warmup, options.heat, options.finalists, options.workers - 1)
    if min(counts) < 1 or options.turn <= 0:
        parser.error("numbers have to be above 0, and workers above 1")
    if unknown := [name for name in options.peers or [] if name not in ways()]:
        parser.error(f"--peers has {'; '.join(unknown)}; there are {'; '.join(ways())}")
    options.trireme, options.config = (str(pathlib.Path(path).resolve()) for path in (options.trireme, options.config))
    return options


def main():
    options = read_options()
    pin(options.workers)
    # Compiled by the ranks themselves: what helps a rank to compile would stay, and count as memory of the run.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    options.batch = whole_batch(options.trireme, options.config, options.workers)
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
        scratch = pathlib.Path(folder)
        contests = {level: contest_of(options, scratch, level, options.workers) for level in options.levels}
        contest = contests[options.levels[0]]
        contest.say(options)
        names = options.peers
        if names is None:
            print("heats:")
            names = heats(contest, options)
        levels = [ours(it, level) for level, it in contests.items()]
        threads = len(os.sched_getaffinity(0))
        single = ours(contest_of(options, scratch, "replicate", 1), f"1 worker x {threads} threads")
        peers = [peer(contest, name) for name in names]
        everyone, before = [*levels, single, *peers], os.getloadavg()[0]
        errors = take_fresh_turns(everyone, options) if options.fresh else take_turns(everyone, options)
        print("final:")
        table(everyone, contest.tokens_per_step)
        print()
        summary = {"config": options.config, "workers": options.workers, "load_before": before}
        summary |= summary_of(levels, single, peers, contest.tokens_per_step)
        for text in errors.values():
            print(f"\n{text}")
        print(f"load average before: {before:.2f} (what else ran on this machine; 0 is a quiet one)")
    if options.json == "-":
        print(json.dumps(summary))
    elif options.json:
        pathlib.Path(options.json).write_text(json.dumps(summary) + "\n", encoding="utf-8")
    ran = all(it.turns for it in [*levels, single]) and (not peers or any(it.turns for it in peers))
    sys.exit(0 if ran else 1)


if __name__ == "__main__":
    main()
