"""Training throughput of Trireme beside PyTorch's DistributedDataParallel over gloo: the same model, batch, sequence length, data
and number of workers, on this machine, in turns.

usage: train_ddp.py TRIREME CONFIG [--workers 2] [--rounds 3] [--steps 40] [--warmup 15] [--only NAME...] [--json FILE]

A round runs each contender once, one after the other, so that what else the machine does meets all of them. The peers are
llama_ddp.py in four ways: bf16 weights with fp32 masters, and fp32 weights under autocast, each eager and under torch.compile.
They get what is known to help them: fused AdamW, the fused attention kernel, pinned ranks, and a caching allocator (tcmalloc or
jemalloc) preloaded where the machine has one; it is said when it has none. Tokens a second come from the median time of the
steps after the warm-up of all rounds. Exit code 0 whoever is faster, 1 when a contender could not run.
"""

import argparse
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import tomllib

ALLOCATORS = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libjemalloc.so.2")
PEERS = {f"{precision}, {way}": (precision, way == "compile") for precision in ("master", "autocast") for way in ("eager", "compile")}
PATIENCE_S = 900


def clean_environment(**extra):
    """Without what a launcher or an earlier preload may have left."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "LD_PRELOAD")
    return {**{key: value for key, value in os.environ.items() if key not in names}, **extra}


def find_allocator():
    listing = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, text=True, check=False).stdout
    for name in ALLOCATORS:
        found = re.search(rf"^\s*{re.escape(name)} .*=> (\S+)$", listing, re.MULTILINE)
        if found:
            return found[1]
    return None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def failed(name, output):
    return RuntimeError(f"{name} could not run:\n" + "\n".join(output.splitlines()[-15:]))


class Bench:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.settings = ["--set", f"train.steps={options.steps}", "--set", "metrics.interval=1", "--set", "eval.interval=0",
                         "--set", "data.eval_path=", "--set", "checkpoint.interval=0", "--set", f"run.dir={scratch}/run"]
        done = subprocess.run([options.trireme, "config", options.config, "--workers", str(options.workers), *self.settings],
                              stdout=subprocess.PIPE, text=True, check=True, env=clean_environment())
        self.config = tomllib.loads(done.stdout)
        self.allocator = find_allocator()
        train = self.config["train"]
        self.tokens_per_step = train["global_batch_size"] * train["seq_len"]
        if self.config["model"]["architecture"] != "llama" or train["precision"] != "bf16" or self.config["model"]["rope_scaling"]["factor"] != 1:
            raise RuntimeError("the peer is a Llama in bf16 without rotary scaling; the config has another model or precision")
        model, extras = self.config["model"], {"qkv_bias", "qk_norm", "sliding_window", "dropout"}
        given = [f"model.{key}" for key in sorted(extras) if model.get(key)]
        given += [f"train.{key}" for key in ("document_mask", "mask_document_starts", "z_loss", "ema_decay") if train.get(key)]
        given += ["train.recompute"] * (train["recompute"] != "none") + ["batch_ramp.start"] * bool(self.config.get("batch_ramp", {}).get("start"))
        if given:
            raise RuntimeError(f"the peer has none of what the config asks for: {', '.join(given)}")

    def trireme(self, number):
        run = self.scratch / f"run-{number}"
        command = [self.options.trireme, "train", self.options.config, "--workers", str(self.options.workers), *self.settings,
                   "--set", f"run.dir={run}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False,
                              env=clean_environment())
        if done.returncode != 0:
            raise failed("trireme", done.stdout)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if "loss" in line]
        return [self.tokens_per_step / line["tokens_per_second"] for line in steps], [line["loss"] for line in steps]

    def peer(self, name):
        train, optimizer = self.config["train"], self.config["optimizer"]
        precision, compiled = PEERS[name]
        workers = self.options.workers
        job = {"model": self.config["model"], "data": self.config["data"]["path"], "seed": self.config["run"]["seed"],
               "precision": precision, "compile": compiled, "steps": self.options.steps, "seq_len": train["seq_len"],
               "micro_batch_size": train["micro_batch_size"],
               "accumulation": train["global_batch_size"] // (train["micro_batch_size"] * workers),
               "warmup_steps": self.config["lr_schedule"]["warmup_steps"],
               "clip_grad_norm": train["clip_grad_norm"], **{key: optimizer[key] for key in ("lr", "beta1", "beta2", "eps", "weight_decay")}}
        path = self.scratch / "job.json"
        path.write_text(json.dumps(job))
        port = str(free_port())
        ranks = []
        for rank in range(workers):
            env = clean_environment(RANK=str(rank), WORLD_SIZE=str(workers), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                    **({"LD_PRELOAD": self.allocator} if self.allocator else {}))
            with open(self.scratch / f"rank-{rank}.log", "w") as log:
                ranks.append(subprocess.Popen([sys.executable, pathlib.Path(__file__).parent / "llama_ddp.py", path], env=env, text=True,
                                              stdout=subprocess.PIPE if rank == 0 else log, stderr=log))
        try:
            output, _ = ranks[0].communicate(timeout=PATIENCE_S)
            codes = [rank.wait(60) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            raise failed(name, "".join((self.scratch / f"rank-{rank}.log").read_text() for rank in range(workers)))
        result = json.loads(output.splitlines()[-1])
        return result["seconds"], result["losses"]

    def run(self):
        names = [name for name in ["trireme", *PEERS] if not self.options.only or name in self.options.only]
        seconds, losses, errors = {name: [] for name in names}, {}, {}
        for number in range(self.options.rounds):
            for name in names:
                if name in errors:
                    continue
                try:
                    times, losses[name] = self.trireme(number) if name == "trireme" else self.peer(name)
                    seconds[name].append(times[self.options.warmup :])
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    errors[name] = str(error)
        return seconds, losses, errors

    def rate(self, times):
        return self.tokens_per_step / statistics.median(times)

    def fast_rate(self, times):
        """Of the fastest tenth of the steps: nearer to a quiet machine's than the median where others compute too."""
        return self.tokens_per_step / sorted(times)[len(times) // 10]

    def report(self, seconds, losses, errors):
        rates = {name: self.rate(sum(rounds, [])) for name, rounds in seconds.items() if rounds}
        peers = {name: rate for name, rate in rates.items() if name != "trireme"}
        ours = rates.get("trireme")
        # An eye on whether all do the same work: after the same steps they stand at about the same loss.
        print(f"{'':<20}{'tokens/s':>10}{'rounds':>20}{'fastest tenth':>15}{'trireme is':>13}{'last loss':>12}")
        for name, rate in rates.items():
            each = [self.rate(times) for times in seconds[name]]
            spread = f"{min(each):,.0f} .. {max(each):,.0f}"
            ratio = f"{ours / rate:.2f} x" if ours and name != "trireme" else ""
            fast = self.fast_rate(sum(seconds[name], []))
            print(f"{name:<20}{rate:>10,.0f}{spread:>20}{fast:>15,.0f}{ratio:>13}{losses[name][-1]:>12.3f}")
        if ours and peers:
            best = max(peers, key=peers.get)
            print(f"trireme / best peer ({best}): {ours / peers[best]:.2f}")
        for name, text in errors.items():
            print(f"\n{text}" if text.startswith(name) else f"\n{name}: {text}")
        return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("config")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--warmup", type=int, default=15, help="steps of each run that do not count")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=["trireme", *PEERS], help=f"of trireme, {', '.join(PEERS)}")
    parser.add_argument("--json", type=pathlib.Path, help="also write the numbers to this file")
    options = parser.parse_args()
    if not 0 <= options.warmup < options.steps:
        parser.error(f"--warmup {options.warmup} has to be less than --steps {options.steps}")
    options.trireme, options.config = (str(pathlib.Path(path).resolve()) for path in (options.trireme, options.config))

    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as scratch:
        bench = Bench(options, pathlib.Path(scratch))
        if bench.allocator is None:
            print("No tcmalloc or jemalloc is on this machine: the peers run without, and are slower than they could be "
                  "(Debian: apt-get install libtcmalloc-minimal4)")
        train = bench.config["train"]
        print(f"{options.config}: {options.workers} workers, {train['global_batch_size']} x {train['seq_len']} tokens a step, "
              f"{options.rounds} rounds of {options.steps} steps, {options.warmup} of them warm-up")
        print(f"peers: {pathlib.Path(bench.allocator).name if bench.allocator else 'no allocator'} preloaded, gloo")
        before = os.getloadavg()[0]
        seconds, losses, errors = bench.run()
        rates = bench.report(seconds, losses, errors)
        print(f"load average before: {before:.2f} (what else ran on this machine; 0 is a quiet one)")
    if options.json:
        options.json.write_text(json.dumps({"tokens_per_second": rates, "seconds": seconds, "load_before": before}) + "\n")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
