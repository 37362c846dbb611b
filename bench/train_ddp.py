"""Training throughput of Trireme beside PyTorch's DistributedDataParallel over gloo: the same model, batch, sequence length, data
and number of workers, on this machine, in short turns (turns.py).

usage: train_ddp.py TRIREME CONFIG [--workers 2] [--rounds 20] [--turn 3] [--warmup 15] [--only NAME...] [--json FILE]

The peers are torch_trainer.py in four ways: bf16 weights with fp32 masters, and fp32 weights under autocast, each eager and under
torch.compile. They get what is known to help them: fused AdamW, the fused attention kernel, pinned ranks, and a caching allocator
(tcmalloc or jemalloc) preloaded where the machine has one; it is said when it has none. Tokens a second come from the median step;
`trireme is` is the median over the rounds of the ratio within a round. Exit code 0 whoever is faster, 1 when a contender could not run.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

import contenders
import turns

PEERS = {f"{precision}, {way}": (precision, "default" if way == "compile" else "") for precision in ("master", "autocast")
         for way in ("eager", "compile")}


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
    binary, config = (str(pathlib.Path(path).resolve()) for path in (options.trireme, options.config))

    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as scratch:
        contest = contenders.Contest(binary, config, options.workers, pathlib.Path(scratch))
        contest.say(options)
        before = os.getloadavg()[0]
        wanted = options.only or ["trireme", *PEERS]
        all_of_them = [contest.trireme() if name == "trireme" else contest.torch(name, *PEERS[name]) for name in wanted]
        errors = turns.run(all_of_them, options.rounds, options.turn, options.warmup)
        results = contenders.report(all_of_them, contest.tokens_per_step)
        best = contenders.best_peer(results)
        if best:
            print(f"trireme / best peer ({best[0]}): {best[1]:.2f}")
        for name, text in errors.items():
            print(f"\n{text}" if text.startswith(name) else f"\n{name}: {text}")
        print(f"load average before: {before:.2f} (what else ran on this machine; 0 is a quiet one)")
    if options.json:
        options.json.write_text(json.dumps({"contenders": results, "load_before": before}) + "\n")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
