"""One worker of Trireme beside PyTorch at its best: steps of the same model on the same batches, in short turns (turns.py).

usage: step.py TRIREME CONFIG [--rounds 20] [--turn 4] [--finalists 3] [--max-autotune] [--json [FILE]]

PyTorch has many ways to run a step: bf16 weights with fp32 masters or autocast; eager, torch.compile (with --max-autotune also in
that mode, which takes minutes to compile); cross-entropy plain or in chunks; with or without a caching allocator preloaded. In heats each
runs alone for a few steps, and its fastest quarter counts; the best of them go into the final beside Trireme. There a product of two
bf16 matrices of 2048 x 2048 takes turns too, PyTorch's and our own: model FLOPs (6 N + 12 L d s a token) as a share of the rate of the
faster are printed, and the peak of memory that all processes of a contender held (PSS), beside what they hold without a model.

--json prints, as the last line, one object: tokens_per_second best_torch_tokens_per_second ratio_to_best_torch matmul_share
peak_memory_ratio and more. Exit code 0 whoever is faster, 1 when Trireme or every peer could not run.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import contenders
import turns

SIZE = 2048
MATMUL, OUR_MATMUL = f"{SIZE}^3 product, PyTorch", f"{SIZE}^3 product, Trireme"
PRODUCT_FLOPS = 2 * SIZE**3


def ways(contest, max_autotune):
    """{name: arguments of Contest.torch} of every way to run PyTorch."""
    compiled = {"eager": "", "compile": "default"} | ({"max-autotune": "max-autotune"} if max_autotune else {})
    allocators = [True, False] if contest.allocator else [False]
    found = {}
    for precision, (way, mode), chunked, preload in itertools.product(("master", "autocast"), compiled.items(), (False, True), allocators):
        name = f"{precision}, {way}" + (", chunks" if chunked else "") + ("" if preload else ", malloc")
        found[name] = {"precision": precision, "compiled": mode, "chunked": chunked, "preload": preload}
    return found


def heats(contest, options):
    seconds = {}
    for name, how in ways(contest, options.max_autotune).items():
        try:
            seconds[name] = contest.torch(name, **how).run_alone(options.warmup, options.heat)
            print(f"  {name:<40}{contest.tokens_per_step / seconds[name]:>10,.0f} tokens/s", flush=True)
        except RuntimeError as error:
            print(f"  {name:<40} could not run: {str(error).splitlines()[-1]}", flush=True)
    return sorted(seconds, key=seconds.get)


def held_by(arguments):
    """PSS of a process once it is idle, in bytes."""
    with subprocess.Popen(arguments, env=contenders.clean_environment(), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, start_new_session=True) as process:
        time.sleep(6)
        probe = turns.Contender("probe", [], pathlib.Path(), pathlib.Path(), lambda line: None, processes=[process])
        held = probe.resident_bytes()
        probe.end()
    return held


def flops_per_token(config):
    """6 N + 12 L d s (Chowdhery et al., PaLM, appendix B); N without the tables that are looked up."""
    m, seq = config["model"], config["train"]["seq_len"]
    width, kv = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
    feed_forward = (2 if m["architecture"] == "gpt" else 3) * m["hidden"] * m["ffn"]
    block = m["hidden"] * (2 * width + 2 * kv) + feed_forward
    return 6 * (m["layers"] * block + m["vocab"] * m["hidden"]) + 12 * m["layers"] * width * seq


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("config")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turn", type=float, default=4, help="seconds")
    parser.add_argument("--warmup", type=int, default=4, help="steps of each contender that do not count")
    parser.add_argument("--heat", type=int, default=8, help="steps of a peer alone, after the warm-up")
    parser.add_argument("--finalists", type=int, default=3, help="peers that run beside Trireme")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="these peers in place of heats, such as \"master, compile, chunks\"")
    parser.add_argument("--max-autotune", action="store_true")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE")
    options = parser.parse_args()
    if min(options.rounds, options.warmup, options.heat, options.finalists) < 1 or options.turn <= 0:
        parser.error("numbers have to be above 0")
    binary, config = (str(pathlib.Path(path).resolve()) for path in (options.trireme, options.config))

    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as scratch:
        contest = contenders.Contest(binary, config, 1, pathlib.Path(scratch))
        contest.say(options)
        known = ways(contest, True)
        if options.peers:
            if unknown := [name for name in options.peers if name not in known]:
                parser.error(f"--peers has {', '.join(unknown)}; there are {'; '.join(known)}")
            peers = options.peers
        else:
            print("heats:")
            peers = heats(contest, options)[: options.finalists]
        ours = contest.trireme()
        final = [ours, *(contest.torch(name, **known[name]) for name in peers), contest.torch(MATMUL, "matmul"),
                 contest.product(OUR_MATMUL, SIZE)]
        products = final[-2:]
        before = os.getloadavg()[0]
        errors = turns.run(final, options.rounds, options.turn, options.warmup)
        print("final:")
        results = contenders.report(final[:-2], contest.tokens_per_step)
        for name, text in errors.items():
            print(f"\n{text}" if text.startswith(name) else f"\n{name}: {text}")
        best = contenders.best_peer(results)
        flops = flops_per_token(contest.config) * contest.tokens_per_step
        rates = {it.name: PRODUCT_FLOPS / it.median() for it in products if it.turns}
        product = min((it for it in products if it.turns), key=lambda it: it.median(), default=None)
        share = [flops / statistics.median(a) / (PRODUCT_FLOPS / statistics.median(b)) for a, b in zip(ours.turns, product.turns)] if product else []
        baselines = {"trireme": held_by([binary, "bench", "matmul", "--dtype", "fp32", "--sizes", "8", "--seconds", "60"]),
                     "torch": held_by([sys.executable, "-c", "import torch, torch._dynamo, numpy, time; time.sleep(60)"])}
        summary = {"config": config, "tokens_per_second": results.get("trireme", {}).get("tokens_per_second"),
                   "matmul_share": statistics.median(share) if share else None,
                   "matmul_flops_per_second": max(rates.values(), default=None), "matmul_rates": rates,
                   "model_flops_per_token": flops_per_token(contest.config),
                   "peak_bytes": {it.name: it.peak_bytes for it in final if it.turns}, "baseline_bytes": baselines, "load_before": before}
        if best and "trireme" in results:
            name = best[0]
            compiled = [it.peak_bytes for it in final if it.turns and "compile" in it.name]
            summary |= {"best_torch": name, "best_torch_tokens_per_second": results[name]["tokens_per_second"], "ratio_to_best_torch": best[1],
                        "peak_memory_ratio": ours.peak_bytes / min(compiled) if compiled else None}
            print(f"\ntrireme / best peer ({name}): {best[1]:.2f}")
            for it, rate in rates.items():
                print(f"{it}: {rate / 1e12:.2f} TFLOP/s")
            if share:
                print(f"model FLOPs as a share of the faster: {100 * summary['matmul_share']:.0f} %")
        print(f"\n{'memory (PSS)':<40}{'peak MB':>10}{'without a model':>18}")
        for it in final[:-2]:
            if it.turns:
                base = baselines["trireme" if it is ours else "torch"]
                print(f"{it.name:<40}{it.peak_bytes / 1e6:>10,.0f}{base / 1e6:>18,.0f}")
        print(f"load average before: {before:.2f} (what else ran on this machine; 0 is a quiet one)")
    if options.json == "-":
        print(json.dumps(summary))
    elif options.json:
        pathlib.Path(options.json).write_text(json.dumps(summary) + "\n", encoding="utf-8")
    sys.exit(0 if best else 1)


if __name__ == "__main__":
    main()
