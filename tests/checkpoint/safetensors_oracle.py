"""Oracle: the reference `safetensors` package reads a one-rank checkpoint as it is, and finds the values of the formula."""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open


def expected():
    def whole(count, dtype):
        return torch.arange(count, dtype=dtype)

    bits = torch.arange(15, dtype=torch.int16)
    return {
        "model.embed.weight": (whole(257 * 33, torch.float32) * 0.25 - 7).reshape(257, 33),
        "model.norm.weight": whole(13, torch.float64) / 3,
        "half": (bits + 0x3F80).view(torch.bfloat16).reshape(3, 5),
        "half16": (bits + 0x3C00).view(torch.float16).reshape(3, 5),
        "count": torch.tensor(1 << 40),
        "empty": torch.zeros(0, 4),
        "small": -whole(7, torch.int32),
        "bytes": whole(5, torch.uint8) + 250,
    }


def main():
    with tempfile.TemporaryDirectory() as run:
        folder = pathlib.Path(subprocess.run([sys.argv[1], run], check=True, capture_output=True, text=True).stdout.strip())
        index = json.loads((folder / "index.json").read_text())
        assert index["step"] == 100 and len(index["files"]) == 1, index
        with safe_open(folder / "rank-00000.safetensors", framework="pt") as file:
            assert file.metadata()["format"] == "pt"
            found = {name: file.get_tensor(name) for name in file.keys()}
        wanted = expected()
        assert sorted(found) == sorted(wanted), (sorted(found), sorted(wanted))
        for name, values in wanted.items():
            assert found[name].dtype == values.dtype, (name, found[name].dtype)
            assert found[name].shape == values.shape, (name, found[name].shape)
            assert torch.equal(found[name], values), (name, found[name], values)
    print(f"{len(wanted)} tensors agree")


main()
