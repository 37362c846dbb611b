"""The published tokenizers: 313 golden texts, and ids equal to tiktoken's over real text, code, and broken bytes.

usage: published_tokenizers.py PIPE FOLDER SOURCE_DIR

PIPE is the program test_tokenizer_pipe; FOLDER is what tools/fetch-tokenizers.sh made. tiktoken reads the same rank files, with
the patterns and special tokens of its own. Real text: the repository, C and C++ headers of this machine, and the State of the
Union addresses where they have been fetched. Bytes that are not UTF-8 are compared as U+FFFD, which is how tiktoken takes them.
"""

import pathlib
import random
import re
import sys

import tiktoken
from tiktoken_ext import openai_public

from oracle_tokenizer import encode_all, repository_texts

# Written out by tiktoken_ext/openai_public.py in the functions that also fetch the rank files.
SPECIALS = {
    "r50k_base": {"<|endoftext|>": 50256},
    "p50k_base": {"<|endoftext|>": 50256},
    "cl100k_base": {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260,
                    "<|endofprompt|>": 100276},
    "o200k_base": {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
}
VOCABULARIES = {"r50k_base": 50257, "p50k_base": 50281, "cl100k_base": 100277, "o200k_base": 200019}
CODE_BYTES = 5_000_000


def upstream(name, folder):
    """tiktoken's own encoding, with the rank file that lies here in place of a download."""
    ranks = tiktoken.load.load_tiktoken_bpe(str(folder / f"{name}.tiktoken"))
    original = openai_public.load_tiktoken_bpe, openai_public.data_gym_to_mergeable_bpe_ranks
    openai_public.load_tiktoken_bpe = lambda *args, **kwargs: ranks
    openai_public.data_gym_to_mergeable_bpe_ranks = lambda *args, **kwargs: ranks
    try:
        made = openai_public.ENCODING_CONSTRUCTORS[name]()
    finally:
        openai_public.load_tiktoken_bpe, openai_public.data_gym_to_mergeable_bpe_ranks = original
    assert made["special_tokens"] == SPECIALS[name], made["special_tokens"]
    return tiktoken.Encoding(**made)


def golden(folder):
    text = (folder / "TestPlans.txt").read_text(encoding="utf-8")
    plans = re.findall(r"EncodingName: (\S+)\nSample: (.*?)\nEncoded: \[(.*?)\]", text, re.S)
    return [(name, sample, [int(i) for i in ids.split(",")] if ids.strip() else []) for name, sample, ids in plans]


def code_texts():
    total, texts = 0, []
    for path in sorted(pathlib.Path("/usr/include").rglob("*.h*")):
        if total > CODE_BYTES:
            break
        if path.is_file():
            texts.append(path.read_bytes().decode("utf-8", errors="replace"))
            total += len(texts[-1])
    return texts


def broken_texts(texts):
    """Cuts of real text with bytes thrown in, as in mails whose encoding was lost."""
    rng = random.Random(7)
    for _ in range(2000):
        data = bytearray(rng.choice(texts).encode("utf-8"))
        begin = rng.randrange(len(data) + 1)
        data = data[begin : begin + rng.choice([20, 200, 2000])]
        for _ in range(rng.randrange(8)):
            data.insert(rng.randrange(len(data) + 1), rng.randrange(128, 256))
        yield bytes(data).decode("utf-8", errors="replace")


def main():
    pipe, folder, source = sys.argv[1], *map(pathlib.Path, sys.argv[2:4])
    plans = golden(folder)
    assert len(plans) == 313, f"{len(plans)} golden texts"
    texts = list(repository_texts(source).values()) + code_texts()
    addresses = source / "data" / "sotu" / "text"
    texts += [path.read_text(encoding="utf-8") for path in sorted(addresses.glob("*.txt"))]
    texts += list(broken_texts(texts))
    print(f"{len(texts)} texts, {sum(map(len, texts)) / 1e6:.1f} M characters"
          f"{'' if addresses.is_dir() else '; without the State of the Union'}")
    failures = 0
    for name, vocabulary in VOCABULARIES.items():
        ours = folder / f"{name}.tiktoken"
        # p50k_edit differs from p50k_base in special tokens alone, which text never becomes.
        mine = [plan for plan in plans if plan[0].replace("_edit", "_base") == name]
        got = encode_all(pipe, ours, [sample for _, sample, _ in mine])
        wrong = sum(ids != expected for ids, (_, _, expected) in zip(got, mine))
        encoding = upstream(name, folder)
        assert encoding.n_vocab == vocabulary
        different = 0
        for text, ids in zip(texts, encode_all(pipe, ours, texts)):
            if ids != encoding.encode_ordinary(text):
                different += 1
                if different <= 3:
                    print(f"{name}: differs in {text[:60]!r}")
        print(f"{name}: {len(mine)} golden texts, {wrong} wrong; {different} texts differ from tiktoken")
        failures += wrong + different + (len(mine) == 0)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
