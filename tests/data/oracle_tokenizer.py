"""Compares our tokenizer with tiktoken's, id by id, on the same ranks and pattern.

usage: oracle_tokenizer.py PIPE SOURCE_DIR WORK_DIR

PIPE is the program test_tokenizer_pipe. It trains on the repository's own files and on synthetic text, and then encodes
thousands of texts: those files, random cuts of them, and random Unicode of several flavours. tiktoken reads the very rank
file that was saved, so the format is compared as well.
"""

import base64
import hashlib
import json
import pathlib
import random
import struct
import subprocess
import sys
import unicodedata

try:
    import tiktoken
except ImportError:
    sys.exit("tiktoken is missing: it is the oracle of this test; `make venv` installs it")

CASES = 4000  # random texts for each pattern
VOCAB = 1500


def repository_texts(source):
    """Tracked-looking text files of the repository: real English, C++, CMake, Python, Markdown."""
    found = []
    for folder in ("src", "tests", "docs", "cmake", "configs", "tools", "bench"):
        found += sorted(p for p in (source / folder).rglob("*") if p.is_file())
    found += [p for p in (source / "CMakeLists.txt", source / "README.md") if p.is_file()]
    texts = {}
    for path in found:
        try:
            texts[path] = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
    return texts


def assigned_characters():
    """Characters whose class is the same in every engine: assigned in this Python's Unicode (14 for 3.11), as in PCRE2 10.42's.

    A code point that a later version assigns is a letter to one engine and nothing to another; those are left out. So are
    characters that existed but changed their class between the versions.
    """
    if unicodedata.unidata_version.split(".")[0] > "14":
        print(f"note: this Python knows Unicode {unicodedata.unidata_version}; characters newer than 14 may differ")
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def random_text(rng, everything, corpus):
    """One text of a random flavour: each flavour aims at another alternative of the patterns."""
    ascii_all = [chr(c) for c in range(128)]
    wide_space = list("\u0085\u00a0\u1680\u180e\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff")
    flavours = {
        "ascii": ascii_all,
        "spaces": list(" \t\n\r\x0b\x0c") + ["  ", "\r\n", "a", "1", "."],
        "wide spaces": wide_space + list(" \n\ra1."),
        "contractions": ["'", "s", "S", "\u017f", "t", "re", "RE", "vE", "ll", "Ll", "d", "m", " ", "\u2019", "l", "K", "\u212a"],
        "digits": list("0123456789 .,") + ["\u0663", "\u00bd", "\u2167", "\u4e00", "a"],
        "punctuation": list("!?.,;:'\"()[]{}<>@#$%^&*-_=+\\/|~` \n\r") + ["\u2014", "\u201c", "\u20ac", "x"],
        "everything": everything,
        "capitals": list("ABCabc'/ \n.\u01c5\u02b0\u00c9\u00e9\u0301") + ["'S", "'ll", "\u017f", "HTTPServer", "iPhone"],
        "latin": list("abcdefgABCDEFG \u00e9\u00e8\u00fc\u00df\u00c5") + ["e\u0301", "\u2014"],
        "words": corpus,
    }
    letters = flavours[rng.choice(list(flavours))]
    mixed = rng.random() < 0.3
    text = ""
    for _ in range(rng.choice([1, 2, 3, 5, 10, 40, 200])):
        pool = flavours[rng.choice(list(flavours))] if mixed else letters
        text += rng.choice(pool)
    return text


def encode_all(pipe, folder, texts):
    payload = b"".join(struct.pack("<I", len(data)) + data for data in (t.encode("utf-8") for t in texts))
    done = subprocess.run([pipe, "encode", folder], input=payload, stdout=subprocess.PIPE, check=True, timeout=300)
    ids, at = [], 0
    for _ in texts:
        (count,) = struct.unpack_from("<I", done.stdout, at)
        ids.append(list(struct.unpack_from(f"<{count}i", done.stdout, at + 4)))
        at += 4 + 4 * count
    assert at == len(done.stdout), "the program wrote more than was asked for"
    return ids


def oracle(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    ranks = {}
    for line in (folder / "tokenizer.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    specials = {s["text"]: s["id"] for s in manifest["specials"]}
    encoding = tiktoken.Encoding(
        name=folder.name, pat_str=manifest["pattern"], mergeable_ranks=ranks, special_tokens=specials,
        explicit_n_vocab=manifest["vocab_size"])
    return encoding


def main():
    pipe, source, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run([pipe, "synthetic", work / "text", "50", "7"], check=True)
    repository = repository_texts(source)
    training = [work / "text", *repository]
    everything = assigned_characters()
    failures = 0
    for pattern in ("cl100k", "gpt2", "o200k"):
        folder = work / pattern
        subprocess.run([pipe, "train", folder, str(VOCAB), pattern, "2", *training], check=True, stdout=subprocess.DEVNULL)
        encoding = oracle(folder)
        seed = int(hashlib.sha256(pattern.encode()).hexdigest()[:8], 16)
        rng = random.Random(seed)
        corpus = sorted({w for t in repository.values() for w in t.split(" ")})
        texts = list(repository.values()) + [random_text(rng, everything, corpus) for _ in range(CASES)]
        for text in repository.values():
            for _ in range(5):
                begin = rng.randrange(len(text) + 1)
                texts.append(text[begin : begin + rng.choice([1, 10, 100, 1000])])
        texts += ["".join(everything), "a" * 20000, " " * 20000, "\n" * 5000 + "x", "'" * 5000, "ab" * 10000, "<|endoftext|>", ""]
        ours = encode_all(pipe, folder, texts)
        for text, got in zip(texts, ours):
            expected = encoding.encode_ordinary(text)
            if got != expected:
                failures += 1
                if failures <= 5:
                    first = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
                    around = encoding.decode_bytes([i for i in expected[max(0, first - 3) : first + 3]])
                    print(f"{pattern}: ids differ from token {first} on, near {around!r}\n  ours     {got[first:first + 8]}\n"
                          f"  tiktoken {expected[first:first + 8]}\n  text     {text[:80]!r}")
        print(f"{pattern}: {len(texts)} texts, {sum(map(len, ours))} tokens compared, {failures} differ so far")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
