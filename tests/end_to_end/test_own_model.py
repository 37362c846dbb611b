"""A user's own model: Trireme is installed, examples/own_model is built against it outside of the tree, and its program trains,
resumes, evaluates and generates as the own one does. Catches: a package that does not stand alone, a part of the program that
knows only the built-in architectures."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from harness import BINARY, DONE, PROJECT, EndToEnd, main

EXAMPLE = PROJECT / "examples" / "own_model"
BUILD_PATIENCE_S = 600
STEPS = 40
# Learning that is tame enough for rounding to stay rounding (test_layouts.py).
TAME = {"train.precision": "fp32", "optimizer.lr": 1e-3, "train.steps": 20, "lr_schedule.steps": 20}


def cmake(*arguments):
    clean = {key: value for key, value in os.environ.items() if key not in ("CMAKE_PREFIX_PATH", "CXXFLAGS", "LDFLAGS", "LD_LIBRARY_PATH")}
    return subprocess.run(["cmake", *map(str, arguments)], env=clean, text=True, timeout=BUILD_PATIENCE_S, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)


class OwnModelTest(EndToEnd):
    @classmethod
    def setUpClass(cls):
        cls.away = pathlib.Path(tempfile.mkdtemp(prefix="trireme-own-"))
        cls.addClassCleanup(shutil.rmtree, cls.away, ignore_errors=True)
        # Moved after it was installed: nothing in a package may hold the place where it was put.
        cls.must(cmake("--install", BINARY.parent, "--prefix", cls.away / "first"))
        (cls.away / "first").rename(cls.away / "prefix")
        cls.source, cls.build = cls.away / "source", cls.away / "build"
        shutil.copytree(EXAMPLE, cls.source)
        cls.must(cls.configure(cls.build, cls.away / "prefix", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"))
        cls.must(cmake("--build", cls.build))
        super().setUpClass()

    @staticmethod
    def must(result):
        if result.returncode != 0:
            raise AssertionError(f"{' '.join(result.args)}\n{result.stdout}")

    @classmethod
    def configure(cls, build, prefix, *arguments):
        return cmake("-S", cls.source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", *arguments)

    @classmethod
    def start(cls, *arguments, **options):
        return super().start(*arguments, **{"program": (cls.build / "own_model",), **options})

    @classmethod
    def train_arguments(cls, run, workers, settings=(), config=None):
        return super().train_arguments(run, workers, settings, config or cls.source / "run.toml")

    def test_nothing_of_our_build_is_asked_of_a_user(self):
        command, = json.loads((self.build / "compile_commands.json").read_text())
        for ours in ("-Werror", "-Wall", "pch", str(PROJECT), "TOML", "-fno-omit-frame-pointer"):
            # The environment that holds LibTorch may lie in the project.
            flags = " ".join(flag for flag in command["command"].split() if "torch" not in flag)
            self.assertNotIn(ours, flags)
        for header in (self.away / "prefix" / "include").rglob("*.h"):
            self.assertNotIn(str(PROJECT), header.read_text())

    def test_two_halves_are_the_whole(self):
        whole = self.trained(self.new_run("whole"), 2)
        self.assertEqual(len(whole.steps()), STEPS)
        self.assertLess(whole.steps()[-1]["loss"], whole.steps()[0]["loss"] - 1, "it must learn something")
        run = self.trained(self.new_run("halves"), 2, {"train.stop_after": 20})
        self.assertEqual([folder.name for folder in run.checkpoints()], ["step-00000020"])
        self.assertNotEqual(self.digest(run), self.digest(whole))
        result = self.train(run, 2)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn(f"resumed from {run.folder}/checkpoints/step-00000020", result.out)
        self.assert_no_step_twice(run, STEPS)
        self.assert_same_run(run, whole)

    def test_one_and_two_workers_lose_the_same(self):
        one, two = (self.trained(self.new_run(f"{n} workers"), n, TAME) for n in (1, 2))
        worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(one.steps(), two.steps(), strict=True))
        print(f"  losses within {worst:.1e}", flush=True)
        self.assertLessEqual(worst, 1e-6)
        self.assertEqual(one.values("lr", "tokens"), two.values("lr", "tokens"))

    def test_divided_among_workers_it_learns_the_same_bits(self):
        settings = {**TAME, "train.clip_grad_norm": 0, "train.micro_batch_size": 2, "train.global_batch_size": 6}
        runs = [self.trained(self.new_run(level), 3, {**settings, "parallel.shard": level}) for level in ("none", "optimizer", "parameters")]
        self.assertEqual(len({self.digest(run) for run in runs}), 1)

    def test_recomputation_changes_no_bit(self):
        """What a block saves and what it runs again must be the same function."""
        self.assert_same_run(*(self.trained(self.new_run(recompute), 2, {"train.steps": 5, "train.recompute": recompute})
                               for recompute in ("none", "full")))

    def test_start_report_evaluation_and_generation(self):
        run = self.new_run("use")
        result = self.train(run, 2, {"data.eval_path": self.held_out})
        self.assertEqual(result.code, DONE, str(result))
        # embedding and head 512 x 64 each; a block: norm 64, q and output 64 x 64, k and v 32 x 64, up and down 256 x 64; norm 64.
        total = 2 * 512 * 64 + 2 * (64 + 2 * 64 * 64 + 2 * 32 * 64 + 2 * 256 * 64) + 64
        self.assertIn(f"parallel, {total:,} parameters", result.out)
        self.assertIn("what parallel keeps inside them is not known", result.out)
        evaluated = self.call("eval", run.folder)
        self.assertEqual(evaluated.code, DONE, str(evaluated))
        self.assertIn("bits per byte", evaluated.out)
        generated = self.call("generate", run.folder, "--prompt", "The ", "--max-tokens", "20", "--seed", "1")
        self.assertEqual(generated.code, DONE, str(generated))
        self.assertTrue(generated.out.startswith("The "), str(generated))
        # The program without the model cannot use the weights, and says why; what it need not know, it tells.
        self.assert_refused(self.call("eval", run.folder, program=(BINARY,)), 'model.architecture = "parallel"', '"llama"',
                            "registers")
        self.assertEqual(self.call("inspect", run.folder, program=(BINARY,)).code, DONE)

    def test_refusals(self):
        rows = {
            "an unknown architecture": ({"model.architecture": "paralel"}, ['"llama"', '"parallel"', 'did you mean "parallel"?']),
            "an option that it lacks": ({"model.options": "deviatoin=1"}, ["did you mean deviation?"]),
            "what its own check refuses": ({"model.tied": "true"}, ["model.tied = true"]),
        }
        for name, (settings, texts) in rows.items():
            with self.subTest(name):
                self.assert_refused(self.train(self.new_run("refused"), 2, settings), *texts)

    def test_options_of_its_own(self):
        """They reach the model in every worker, and are fixed for a run."""
        run, other = (self.trained(self.new_run(f"deviation {value}"), 2, {"train.stop_after": 2, "model.options": f"deviation={value}"})
                      for value in (0.03, 0.01))
        self.assertNotEqual(run.steps()[0]["grad_norm"], other.steps()[0]["grad_norm"])
        self.assert_refused(self.train(run, 2, {"model.options": "deviation=0.01"}), "model.options", "0.03", "0.01")

    def test_another_torch(self):
        """CMAKE_PREFIX_PATH goes before the torch of our build, and another release is refused before it can crash."""
        torch = self.new_folder("torch") / "share" / "cmake" / "Torch"
        torch.mkdir(parents=True)
        (torch / "TorchConfig.cmake").write_text("set(TORCH_LIBRARIES torch)\n")
        (torch / "TorchConfigVersion.cmake").write_text("set(PACKAGE_VERSION 1.2.3)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
        result = self.configure(self.new_folder("build"), f"{self.away}/prefix;{torch.parents[2]}")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(" ".join(result.stdout.split()), rf"trireme was built with LibTorch [0-9.]+, and {torch} is 1\.2\.3")


if __name__ == "__main__":
    main()
