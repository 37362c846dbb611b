"""The example of a training loop of one's own: it learns, the same at every level and on any number of workers, and what it saves is
a plain LibTorch file. Catches: a level that learns something else, a public header that lacks another, a worker whose failure is
silent."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import torch
from harness import BAD_INPUT, DONE, PATIENCE_S, PROJECT, environment, main

PROGRAM = pathlib.Path(os.environ.get("TRIREME_OWN_LOOP", PROJECT / "build" / "examples" / "own_loop")).resolve()


class OwnLoopTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-own-loop-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_program(self, *arguments, expect=DONE):
        result = subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder, env=environment(), text=True, timeout=PATIENCE_S,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(result.returncode, expect, result.stdout)
        return result.stdout

    @staticmethod
    def losses(text):
        return [float(number) for number in re.findall(r"loss ([0-9.]+)", text)]

    def test_it_learns_the_same_at_every_level(self):
        alone = self.losses(self.run_program("--workers", 1))
        self.assertEqual(len(alone), 8)
        self.assertLess(alone[-1], 0.75 * alone[0], "it must learn something")
        rows = [(2, "none"), (2, "optimizer"), (2, "gradients"), (2, "parameters"), (3, "parameters"), (3, "none")]
        for workers, level in rows:
            with self.subTest(workers=workers, level=level):
                losses = self.losses(self.run_program("--workers", workers, "--level", level))
                worst = max(abs(a - b) for a, b in zip(alone, losses, strict=True))
                print(f"  {workers} workers, {level}: losses within {worst:.1e}", flush=True)
                # Rounding grows with the steps, and a wrong gradient is seen at once.
                self.assertLess(abs(alone[0] - losses[0]), 1e-4)
                self.assertLess(worst, 2e-2)

    def test_copies_of_shards(self):
        text = self.run_program("--workers", 4, "--shard-size", 2, "--level", "parameters")
        self.assertAlmostEqual(self.losses(text)[0], self.losses(self.run_program("--workers", 1))[0], delta=1e-4)

    def test_what_is_saved_is_plain(self):
        text = self.run_program("--workers", 2, "--save", "encoder.pt")
        difference = float(re.search(r"differs by ([0-9.e+-]+)", text)[1])
        self.assertLess(difference, 1e-5)
        # LibTorch's archives are TorchScript's: Python reads the same weights.
        state = dict(torch.jit.load(str(self.folder / "encoder.pt")).named_parameters())
        self.assertEqual(tuple(state["encoder.layers.0.linear1.weight"].shape), (64, 32))
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name != "runs"], ["encoder.pt"])

    def test_a_failure_is_told(self):
        text = self.run_program("--workers", 2, "--save", "no/such/folder/encoder.pt", expect=BAD_INPUT)
        self.assertIn("cannot write no/such/folder/encoder.pt", text)
        self.run_program("--level", "all", expect=2)


if __name__ == "__main__":
    main()
