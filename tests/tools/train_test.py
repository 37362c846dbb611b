"""tools/train.sh does its parts in order in the next free folder; tools/prepare-sotu.sh splits by year; make lists its commands."""

import re
import subprocess
import unittest

import support

FAKE_TRIREME = r"""
[ "$1" != "${FAKE_FAILS:-}" ] || exit "${FAKE_CODE:-3}"
if [ "$1" = train ]; then folder=${*: -1}; folder=${folder#run.dir=}; mkdir -p "$folder"; echo >"$folder/metrics.jsonl"; fi
if [ "$1" = eval ]; then echo "  loss            3.2100 nats a token, 812 tokens"; echo "  bits per byte   1.8654, 3213 bytes of text"; fi
"""


class Train(support.ScriptTest):
    def setUp(self):
        super().setUp()
        for script in ["setup.sh", "venv.sh", "build.sh", "fetch-sotu.sh", "prepare-sotu.sh", "compress-sotu.sh"]:
            self.fake(script, folder=self.root / "tools")
        self.fake("trireme", FAKE_TRIREME, folder=self.root / "build")

    def train(self, code=0, **environment):
        result = self.run_script("train.sh", **environment)
        self.assertEqual(result.returncode, code, result.stdout)
        return result.stdout, self.calls()

    def test_order(self):
        output, calls = self.train()
        self.assertEqual([" ".join(c.split()[:2]) for c in calls],
                         ["setup.sh build", "venv.sh", "build.sh release", "fetch-sotu.sh data/sotu/text",
                          "prepare-sotu.sh data/sotu", "trireme train", "trireme eval", "compress-sotu.sh data/sotu",
                          "trireme generate"])
        self.assertIn("trireme train configs/sotu.toml --workers 2 --set run.dir=runs/sotu", calls)
        self.assertRegex(output, r"trireme +1\.87")
        self.assertIn("runs/sotu/checkpoints", output)

    def test_next_free_folder(self):
        for expected in ["runs/sotu", "runs/sotu-2", "runs/sotu-3"]:
            _, calls = self.train()
            self.assertIn(f"trireme train configs/sotu.toml --workers 2 --set run.dir={expected}", calls)
            self.assertIn(f"trireme eval {expected}", calls)

    def test_an_empty_folder_is_free(self):
        (self.root / "runs/sotu").mkdir(parents=True)
        _, calls = self.train()
        self.assertIn("trireme eval runs/sotu", calls)

    def test_a_failed_training_is_not_evaluated(self):
        _, calls = self.train(code=3, FAKE_FAILS="train")
        self.assertEqual(calls[-1].split()[:2], ["trireme", "train"])

    def test_a_stopped_training_says_how_it_goes_on(self):
        output, calls = self.train(code=5, FAKE_FAILS="train", FAKE_CODE="5")
        self.assertEqual(calls[-1].split()[:2], ["trireme", "train"])
        self.assertIn("goes on with\n  build/trireme train configs/sotu.toml --workers 2 --set run.dir=runs/sotu", output)

    def test_choices(self):
        _, calls = self.train(WORKERS="4", RUN="runs/mine")
        self.assertIn("trireme train configs/sotu.toml --workers 4 --set run.dir=runs/mine", calls)


class Fetch(support.ScriptTest):
    def test_a_folder_of_other_texts_is_left_alone(self):
        self.fake("npm")
        folder = self.scratch / "texts"
        folder.mkdir()
        (folder / "mine.txt").write_text("keep me")
        result = self.run_script("fetch-sotu.sh", folder)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn("mine.txt", result.stdout)
        self.assertEqual(self.calls(), [])
        self.assertEqual((folder / "mine.txt").read_text(), "keep me")


class Prepare(support.ScriptTest):
    def setUp(self):
        super().setUp()
        self.fake("trireme", '[ "$2" != tokenizer ] || { mkdir -p data/sotu/tokenizer; touch data/sotu/tokenizer/manifest.json; }',
                  folder=self.root / "build")
        text = self.root / "data/sotu/text"
        text.mkdir(parents=True)
        for name in ["1790_a.txt", "1990_b.txt", "1991_c.txt", "2021_d.txt"]:
            (text / name).write_text(name * 100)

    def test_years(self):
        result = self.run_script("prepare-sotu.sh")
        self.assertEqual(result.returncode, 0, result.stdout)
        tokenizer, prepare = self.calls()
        self.assertEqual(re.findall(r"\d{4}_", tokenizer), ["1790_", "1990_"], "the tokenizer must not see held-out text")
        self.assertEqual((self.root / "data/sotu/held-out.txt").read_text(), "1991_c.txt\n2021_d.txt\n")
        self.assertIn("--eval-list data/sotu/held-out.txt", prepare)
        self.run_script("prepare-sotu.sh")
        self.assertEqual([c.split()[2] for c in self.calls()], ["prepare"], "a tokenizer that is there is kept")

    def test_without_texts(self):
        for file in (self.root / "data/sotu/text").iterdir():
            file.unlink()
        result = self.run_script("prepare-sotu.sh")
        self.assertEqual(result.returncode, 2)
        self.assertIn("fetch-sotu.sh", result.stdout)

    def test_compressors(self):
        for name in ["xz", "bzip2"]:
            self.fake(name, "cat >/dev/null; printf 12345")  # 5 bytes of 2000
        self.run_script("prepare-sotu.sh")
        result = self.run_script("compress-sotu.sh")
        self.assertEqual(result.stdout, "xz -9e     0.02\nbzip2 -9   0.02\n")


class Makefile(unittest.TestCase):
    def test_help_lists_every_command_and_each_runs_a_script_that_is_there(self):
        text = (support.PROJECT / "Makefile").read_text()
        commands = re.search(r"^\.PHONY: (.*)", text, re.M).group(1).split()
        listed = subprocess.run(["make", "-C", support.PROJECT, "--no-print-directory"], text=True, capture_output=True, check=True)
        self.assertEqual(sorted(re.findall(r"^  make ([a-z-]+)", listed.stdout, re.M)), sorted(commands))
        for command in commands:
            dry = subprocess.run(["make", "-C", support.PROJECT, "-n", command], text=True, capture_output=True, check=True)
            for script in re.findall(r"tools/[\w-]+\.sh", dry.stdout):
                with self.subTest(command):
                    self.assertTrue((support.PROJECT / script).stat().st_mode & 0o100, f"{script} cannot be run")


if __name__ == "__main__":
    unittest.main()
