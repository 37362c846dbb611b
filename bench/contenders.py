"""What step.py and train_ddp.py share: Trireme and PyTorch as contenders of turns.py, with the same model, batch and data."""

import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tomllib

import turns

ALLOCATORS = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libjemalloc.so.2")
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


class Contest:
    """A config of Trireme, and whoever trains what it says."""

    def __init__(self, trireme, config, workers, scratch):
        self.binary, self.path, self.workers, self.scratch = trireme, config, workers, scratch
        # The rate of learning does not change with how many steps the bench lets a run do.
        settings = {"train.steps": ENDLESS, "lr_schedule.name": "constant", "lr_schedule.steps": ENDLESS, "metrics.interval": 1,
                    "eval.interval": 0, "data.eval_path": "", "checkpoint.interval": 0, "run.dir": scratch / "run"}
        self.settings = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        done = subprocess.run([trireme, "config", config, "--workers", str(workers), *self.settings], stdout=subprocess.PIPE, text=True,
                              check=True, env=clean_environment())
        self.config = tomllib.loads(done.stdout)
        self.allocator = find_allocator()
        train, model = self.config["train"], self.config["model"]
        self.tokens_per_step = train["global_batch_size"] * train["seq_len"]
        if train["precision"] != "bf16" or model["architecture"] not in ("llama", "gpt") or model["rope_scaling"]["factor"] != 1:
            raise RuntimeError("the peers are a Llama without rotary scaling and GPT-2, in bf16; the config has another model or precision")
        given = [f"model.{key}" for key in ("dropout", "qk_norm", "qkv_bias", "sliding_window") if model.get(key)]
        given += [f"train.{key}" for key in ("document_mask", "mask_document_starts", "z_loss", "ema_decay") if train.get(key)]
        given += ["train.recompute"] * (train["recompute"] != "none") + ["batch_ramp.start"] * bool(self.config.get("batch_ramp", {}).get("start"))
        if given:
            raise RuntimeError(f"the peers have none of what the config asks for: {', '.join(given)}")

    def trireme(self):
        command = [self.binary, "train", self.path, "--workers", str(self.workers), *self.settings]
        return turns.Contender("trireme", [(command, clean_environment())], self.scratch / "run" / "metrics.jsonl",
                               self.scratch / "trireme.log",
                               lambda line: self.tokens_per_step / line["tokens_per_second"] if "loss" in line else None)

    def product(self, name, size):
        """Trireme's product of two bf16 matrices, again and again."""
        steps = self.scratch / "product.jsonl"
        command = [self.binary, "bench", "matmul", "--dtype", "bf16", "--sizes", str(size), "--log", str(steps)]
        return turns.Contender(name, [(command, clean_environment())], steps, self.scratch / "product.log", lambda line: line["seconds"])

    def torch(self, name, precision, compiled="", chunked=False, preload=True):
        train, optimizer = self.config["train"], self.config["optimizer"]
        place = re.sub(r"\W+", "-", name)
        steps, path = self.scratch / f"{place}.jsonl", self.scratch / f"{place}.json"
        path.write_text(json.dumps({
            "model": self.config["model"], "data": self.config["data"]["path"], "seed": self.config["run"]["seed"],
            "precision": precision, "compile": compiled, "chunked": chunked, "seq_len": train["seq_len"],
            "micro_batch_size": train["micro_batch_size"],
            "accumulation": train["global_batch_size"] // (train["micro_batch_size"] * self.workers),
            "warmup_steps": self.config["lr_schedule"]["warmup_steps"], "out": str(steps), "clip_grad_norm": train["clip_grad_norm"],
            **{key: optimizer[key] for key in ("lr", "beta1", "beta2", "eps", "weight_decay")}}))
        command = [sys.executable, str(pathlib.Path(__file__).parent / "torch_trainer.py"), str(path)]
        # As Trireme does: an OpenMP thread that spins for long makes a step many times as slow beside any other process.
        extra = {"GOMP_SPINCOUNT": "1000"} | ({"LD_PRELOAD": self.allocator} if preload and self.allocator else {})
        port, ranks = str(free_port()), []
        for rank in range(self.workers):
            if self.workers > 1:
                extra = {**extra, "RANK": str(rank), "WORLD_SIZE": str(self.workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks.append((command, clean_environment(**extra)))
        return turns.Contender(name, ranks, steps, self.scratch / f"{place}.log", lambda line: line["seconds"])

    def say(self, options):
        if self.allocator is None:
            print("No tcmalloc or jemalloc is on this machine: the peers run without, and are slower than they could be "
                  "(Debian: apt-get install libtcmalloc-minimal4)")
        train = self.config["train"]
        print(f"{self.path}: {self.workers} worker{'s' * (self.workers > 1)}, {train['global_batch_size']} x {train['seq_len']} tokens a step, "
              f"{options.rounds} rounds of {options.turn:g} s each")
        print(f"peers: {pathlib.Path(self.allocator).name if self.allocator else 'no allocator'} preloaded", flush=True)


def report(contenders, tokens_per_step):
    """Prints a table; returns {name: its numbers}."""
    ran = [it for it in contenders if it.turns]
    ours = next((it for it in ran if it.name == "trireme"), None)
    # An eye on whether all do the same work: after the same steps they stand at about the same loss (mean of ten steps).
    seen = min((len(it.records) for it in ran), default=0)
    wide = max([20] + [len(it.name) + 2 for it in ran])
    print(f"{'':<{wide}}{'tokens/s':>10}{'fastest tenth':>15}{'trireme is':>12}{'half of the rounds':>21}{f'loss by step {seen}':>19}")
    results = {}
    for it in ran:
        rate, fast = tokens_per_step / it.median(), tokens_per_step / it.tenth()
        result = results[it.name] = {"tokens_per_second": rate, "fastest_tenth": fast, "turns": it.turns}
        ratio = spread = ""
        if ours and it is not ours:
            middle, low, high = result["trireme_is"] = turns.ratio(ours, it)
            ratio, spread = f"{middle:.2f} x", f"{low:.2f} .. {high:.2f}"
        loss = statistics.mean(line["loss"] for line in it.records[:seen][-10:])
        print(f"{it.name:<{wide}}{rate:>10,.0f}{fast:>15,.0f}{ratio:>12}{spread:>21}{loss:>19.3f}")
    return results


def best_peer(results):
    """(name, how many times as fast Trireme is) of the fastest peer; None without peers."""
    ratios = {name: result["trireme_is"][0] for name, result in results.items() if "trireme_is" in result}
    return min(ratios.items(), key=lambda item: item[1], default=None)
