"""Speed of training and encoding, beside tiktoken on the same ranks, pattern and texts.

usage: tokenizer.py PIPE TEXTS [--vocab N] [--pattern NAME] [--repeats N]

PIPE is the program tests/test_tokenizer_pipe of the build folder, TEXTS a folder of .txt files. Encoding on one thread is
measured in CPU time, the best of the repeats: on a shared machine the time of day measures its neighbours. Encoding on
several is measured by the clock, 1, 2, 4, ... threads up to the processors there are, and says how it scales. MB are 10^6
bytes of UTF-8.
"""

import argparse
import base64
import json
import os
import pathlib
import subprocess
import tempfile
import time

import tiktoken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipe")
    parser.add_argument("texts", type=pathlib.Path)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--pattern", default="cl100k")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    files = sorted(options.texts.rglob("*.txt"))
    texts = [f.read_bytes().decode() for f in files]
    megabytes = sum(len(t.encode()) for t in texts) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for threads in (1, 2):
            done = subprocess.run(
                [options.pipe, "train", folder, str(options.vocab), options.pattern, str(threads), *files],
                check=True, stdout=subprocess.PIPE, text=True)
            print(f"train    {options.vocab} tokens on {megabytes:.1f} MB, {threads} threads: {float(done.stdout):.2f} s")
        manifest = json.loads((folder / "manifest.json").read_text())
        ranks = {}
        for line in (folder / "tokenizer.tiktoken").read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        processors = len(os.sched_getaffinity(0))
        teams = sorted({*(2**n for n in range(processors.bit_length()) if 2**n <= processors), processors})
        team_seconds = {}
        for threads in teams:
            done = subprocess.run([options.pipe, "threads", folder, str(options.repeats), str(threads), *files],
                                  check=True, stdout=subprocess.PIPE, text=True)
            team_seconds[threads] = min(map(float, done.stdout.split()))
        done = subprocess.run([options.pipe, "speed", folder, str(options.repeats), *files], check=True,
                              stdout=subprocess.PIPE, text=True)
        ours = min(map(float, done.stdout.split()))
        payload = b"".join(len(t.encode()).to_bytes(4, "little") + t.encode() for t in texts)
        encoded = subprocess.run([options.pipe, "encode", folder], input=payload, check=True, stdout=subprocess.PIPE).stdout

    encoding = tiktoken.Encoding(
        "ours", pat_str=manifest["pattern"], mergeable_ranks=ranks,
        special_tokens={s["text"]: s["id"] for s in manifest["specials"]})
    theirs, expected = float("inf"), []
    for _ in range(min(options.repeats, 3)):
        start = time.thread_time()
        expected = [encoding.encode_ordinary(t) for t in texts]
        theirs = min(theirs, time.thread_time() - start)
    at = 0
    for path, ids in zip(files, expected):
        size = 4 * int.from_bytes(encoded[at : at + 4], "little")
        got = memoryview(encoded[at + 4 : at + 4 + size]).cast("i").tolist()
        at += 4 + size
        assert got == ids, f"{path}: ids differ from tiktoken's"
    tokens = sum(map(len, expected))
    print(f"encode   {tokens} tokens, {megabytes * 1e6 / tokens:.2f} bytes a token; every id equals tiktoken's")
    print(f"ours     {megabytes / ours:.1f} MB/s on one thread")
    print(f"tiktoken {megabytes / theirs:.1f} MB/s on one thread ({theirs / ours:.1f} times as long)")
    print("by the clock   threads   ours MB/s   scaling   tiktoken MB/s   scaling   ours is")
    their_seconds = {}
    for threads in teams:
        for _ in range(min(options.repeats, 3)):
            start = time.perf_counter()
            encoding.encode_ordinary_batch(texts, num_threads=threads)
            their_seconds[threads] = min(their_seconds.get(threads, float("inf")), time.perf_counter() - start)
        a, b = team_seconds[threads], their_seconds[threads]
        print(f"{threads:>22}{megabytes / a:>12.1f}{team_seconds[1] / a:>8.2f} x{megabytes / b:>16.1f}{their_seconds[1] / b:>8.2f} x"
              f"{b / a:>8.1f} x")


if __name__ == "__main__":
    main()
