"""Training throughput of Trireme beside PyTorch's DistributedDataParallel over gloo: the same model, batch, sequence length, data
and number of workers, on this machine, in short turns (turns.py).

usage: train_ddp.py TRIREME CONFIG [--workers 2] [--rounds 20] [--turn 3] [--warmup 15] [--only NAME...] [--json FILE]

The peers are llama_ddp.py in four ways: bf16 weights with fp32 masters, and fp32 weights under autocast, each eager and under
torch.compile. They get what is known to help them: fused AdamW, the fused attention kernel, pinned ranks, and a caching allocator
(tcmalloc or jemalloc) preloaded where the machine has one; it is said when it has none. Tokens a second come from the median step;
`trireme is` is the median over the rounds of the ratio within a round. Exit code 0 whoever is faster, 1 when a contender could not run.
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

import turns

ALLOCATORS = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libjemalloc.so.2")
PEERS = {f"{precision}, {way}": (precision, way == "compile") for precision in ("master", "autocast") for way in ("eager", "compile")}
ENDLESS = 1_000_000  # steps: the bench ends the runs


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


class Bench:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        # The rate of learning does not change with how many steps the bench lets a run do.
        settings = {"train.steps": ENDLESS, "lr_schedule.name": "constant", "lr_schedule.steps": ENDLESS, "metrics.interval": 1,
                    "eval.interval": 0, "data.eval_path": "", "checkpoint.interval": 0, "run.dir": scratch / "run"}
        self.settings = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
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

    def trireme(self):
        command = [self.options.trireme, "train", self.options.config, "--workers", str(self.options.workers), *self.settings]
        return turns.Contender("trireme", [(command, clean_environment())], self.scratch / "run" / "metrics.jsonl",
                               self.scratch / "trireme.log",
                               lambda line: self.tokens_per_step / line["tokens_per_second"] if "loss" in line else None)

    def peer(self, name):
        train, optimizer = self.config["train"], self.config["optimizer"]
        precision, compiled = PEERS[name]
        workers, place = self.options.workers, name.replace(", ", "-")
        steps = self.scratch / f"{place}.jsonl"
        job = {"model": self.config["model"], "data": self.config["data"]["path"], "seed": self.config["run"]["seed"],
               "precision": precision, "compile": compiled, "steps": ENDLESS, "seq_len": train["seq_len"],
               "micro_batch_size": train["micro_batch_size"],
               "accumulation": train["global_batch_size"] // (train["micro_batch_size"] * workers),
               "warmup_steps": self.config["lr_schedule"]["warmup_steps"], "out": str(steps),
               "clip_grad_norm": train["clip_grad_norm"], **{key: optimizer[key] for key in ("lr", "beta1", "beta2", "eps", "weight_decay")}}
        path = self.scratch / f"{place}.json"
        path.write_text(json.dumps(job))
        port = str(free_port())
        command = [sys.executable, str(pathlib.Path(__file__).parent / "llama_ddp.py"), str(path)]
        preload = {"LD_PRELOAD": self.allocator} if self.allocator else {}
        ranks = [(command, clean_environment(RANK=str(rank), WORLD_SIZE=str(workers), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **preload))
                 for rank in range(workers)]
        return turns.Contender(name, ranks, steps, self.scratch / f"{place}.log", lambda line: line["seconds"])

    def contenders(self):
        names = [name for name in ["trireme", *PEERS] if not self.options.only or name in self.options.only]
        return [self.trireme() if name == "trireme" else self.peer(name) for name in names]

    def report(self, contenders):
        ran = [it for it in contenders if it.turns]
        ours = next((it for it in ran if it.name == "trireme"), None)
        # An eye on whether all do the same work: after the same steps they stand at about the same loss (mean of ten steps).
        seen = min((len(it.records) for it in ran), default=0)
        print(f"{'':<20}{'tokens/s':>10}{'fastest tenth':>15}{'trireme is':>12}{'half of the rounds':>21}{f'loss by step {seen}':>19}")
        results = {}
        for it in ran:
            rate, fast = self.tokens_per_step / it.median(), self.tokens_per_step / it.tenth()
            result = results[it.name] = {"tokens_per_second": rate, "fastest_tenth": fast, "turns": it.turns}
            ratio = spread = ""
            if ours and it is not ours:
                middle, low, high = result["trireme_is"] = turns.ratio(ours, it)
                ratio, spread = f"{middle:.2f} x", f"{low:.2f} .. {high:.2f}"
            print(f"{it.name:<20}{rate:>10,.0f}{fast:>15,.0f}{ratio:>12}{spread:>21}{statistics.mean(line['loss'] for line in it.records[:seen][-10:]):>19.3f}")
        peers = {name: result["trireme_is"][0] for name, result in results.items() if "trireme_is" in result}
        if peers:
            best = min(peers, key=peers.get)
            print(f"trireme / best peer ({best}): {peers[best]:.2f}")
        return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("config")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turn", type=float, default=3, help="seconds")
    parser.add_argument("--warmup", type=int, default=15, help="steps of each contender before the first round")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=["trireme", *PEERS], help=f"of trireme, {', '.join(PEERS)}")
    parser.add_argument("--json", type=pathlib.Path, help="also write the numbers to this file")
    options = parser.parse_args()
    if options.rounds < 1 or options.warmup < 1 or options.turn <= 0:
        parser.error("--rounds, --warmup and --turn have to be above 0")
    options.trireme, options.config = (str(pathlib.Path(path).resolve()) for path in (options.trireme, options.config))

    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as scratch:
        bench = Bench(options, pathlib.Path(scratch))
        if bench.allocator is None:
            print("No tcmalloc or jemalloc is on this machine: the peers run without, and are slower than they could be "
                  "(Debian: apt-get install libtcmalloc-minimal4)")
        train = bench.config["train"]
        print(f"{options.config}: {options.workers} workers, {train['global_batch_size']} x {train['seq_len']} tokens a step, "
              f"{options.rounds} rounds of {options.turn:g} s each")
        print(f"peers: {pathlib.Path(bench.allocator).name if bench.allocator else 'no allocator'} preloaded, gloo", flush=True)
        before = os.getloadavg()[0]
        contenders = bench.contenders()
        errors = turns.run(contenders, options.rounds, options.turn, options.warmup)
        results = bench.report(contenders)
        for name, text in errors.items():
            print(f"\n{text}" if text.startswith(name) else f"\n{name}: {text}")
        print(f"load average before: {before:.2f} (what else ran on this machine; 0 is a quiet one)")
    if options.json:
        options.json.write_text(json.dumps({"contenders": results, "load_before": before}) + "\n")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
