"""Tokens a second of our loader and of numpy's memmap on the same shard: loader.py BENCH_LOADER FOLDER [SEQ_LEN MICRO STEPS].

The numpy side is the usual small trainer's: random starts, a slice for the inputs and one for the labels, stacked and widened to
int64. Ours also checks each block once, keeps the order of a keyed permutation, and widens to int32.
"""
import json
import pathlib
import subprocess
import sys
import time

import numpy


def numpy_rate(shard: pathlib.Path, entry: dict, id_type: str, seq_len: int, micro: int, steps: int) -> float:
    ids = numpy.memmap(shard, dtype=id_type, mode="r", offset=128, shape=(entry["tokens"],))
    random = numpy.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(steps):
        begins = random.integers(0, len(ids) - seq_len - 1, micro)
        numpy.stack([ids[i : i + seq_len].astype(numpy.int64) for i in begins])
        numpy.stack([ids[i + 1 : i + 1 + seq_len].astype(numpy.int64) for i in begins])
    return steps * micro * seq_len / (time.perf_counter() - start)


def main() -> None:
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    seq_len, micro, steps = (int(a) for a in sys.argv[3:6]) if len(sys.argv) > 5 else (512, 16, 2000)
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["shards"][0]
    ours = json.loads(subprocess.check_output([program, str(folder), str(seq_len), str(micro), str(steps)]))
    theirs = numpy_rate(folder / entry["file"], entry, manifest["id_type"], seq_len, micro, steps)
    print(f"trireme loader  {ours['tokens_per_second'] / 1e6:8.1f} M tokens/s (open and first step {ours['open_and_first_step_s'] * 1e3:.1f} ms)")
    print(f"numpy memmap    {theirs / 1e6:8.1f} M tokens/s")
    print(f"trireme / numpy {ours['tokens_per_second'] / theirs:8.2f}")


if __name__ == "__main__":
    main()
