"""What the end-to-end tests share: the program in a scratch folder, its runs, and what a run left behind.

Every test starts from configs/tiny.toml and changes it with --set. Each script has a scratch folder and data of its own, so
that scripts may run at the same time. Only processes that a test started are ended, by their number.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROJECT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("TRIREME_BINARY", PROJECT / "build" / "trireme")).resolve()
CONFIG = PROJECT / "configs" / "tiny.toml"
SOAK = os.environ.get("TRIREME_SOAK") == "1"
SEED = int(os.environ.get("TRIREME_TEST_SEED", "20240229"))
# A run takes 2 s on a free machine; a machine that does other things may take many times as long. Nothing waits for ever.
PATIENCE_S = 180

DONE, INTERNAL, BAD_INPUT, WORKER_FAILED, DOES_NOT_FIT, STOPPED = range(6)

# What a launcher around the tests may have set must not turn the program under test into a worker.
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
                      "OMP_NUM_THREADS", "TRIREME_STATUS_FD", "TRIREME_PROGRESS_FD")


def environment(**extra):
    clean = {key: value for key, value in os.environ.items()
             if key not in LAUNCHER_VARIABLES and not key.startswith(("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_"))}
    return {**clean, **extra}


def wait_until(condition, what, patience_s=PATIENCE_S, tick_s=0.01):
    """The first true value of `condition`; AssertionError that says `what` when it does not come in time."""
    deadline = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {patience_s} s")
        time.sleep(tick_s)


def is_alive(pid):
    """A zombie counts as gone: it holds nothing but its exit code."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def shared_memory_files():
    """But for what Open MPI makes and removes itself: a test beside this one may run over it."""
    folder = pathlib.Path("/dev/shm")
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in names if not name.startswith(("vader_segment", "sm_segment"))}


class Result:
    """A program that has ended."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def __str__(self):
        tail = "\n".join(self.out.splitlines()[-15:])
        return f"\n{' '.join(map(str, self.command))}\nexit code {self.code}\n-- stdout, end:\n{tail}\n-- stderr:\n{self.err}"


class Started:
    """A program that runs; its output goes to files, so that nothing fills up."""

    def __init__(self, command, folder, env=None):
        self.command = [str(part) for part in command]
        self.out_path, self.err_path = folder / "stdout.txt", folder / "stderr.txt"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                                            env=env or environment())
        self.pid = self.process.pid

    def worker_pids(self):
        """In the order of their ranks: the launcher starts rank after rank."""
        try:
            return sorted(int(child) for child in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            return []

    def err(self):
        return self.err_path.read_text(errors="replace")

    def send(self, number):
        self.process.send_signal(number)

    def wait(self, patience_s=PATIENCE_S):
        try:
            code = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience_s} s: {' '.join(self.command)}\n{self.err()}") from None
        return Result(self.command, code, self.out_path.read_text(errors="replace"), self.err())

    def end(self):
        """Whatever happened: nothing of it stays. Workers go with their launcher."""
        if self.process.poll() is None:
            workers = self.worker_pids()
            self.process.kill()
            self.process.wait(PATIENCE_S)
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


class Run:
    """The folder of a run."""

    def __init__(self, folder):
        self.folder = folder

    def lines(self):
        """All lines of metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self):
        return [line for line in self.lines() if "loss" in line]

    def last_step(self):
        """Also while the run writes: a torn last line does not count."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        steps = [json.loads(line)["step"] for line in text[: text.rfind("\n") + 1].splitlines()]
        return max(steps, default=0)

    def values(self, *keys):
        """[(step, value...)], what a repeated run must repeat."""
        return [tuple(line[key] for key in ("step", *keys)) for line in self.steps()]

    def checkpoints(self):
        """Complete ones, oldest first."""
        return sorted(index.parent for index in self.folder.glob("checkpoints/step-*/index.json") if ".tmp-" not in str(index))

    def state(self):
        return json.loads((self.checkpoints()[-1] / "index.json").read_text())["state"]

    def content(self):
        """Every file with a hash of its bytes, but for what a refused run may touch: the lock, the logs and the flight recorders."""
        return {str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(self.folder.rglob("*"))
                if path.is_file() and path.name != ".lock" and path.parent.name not in ("logs", "flight")}


class EndToEnd(unittest.TestCase):
    """One scratch folder a class, with prepared data in it; one folder a test below it."""

    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        # Not in memory: the folder holds checkpoints, and a kill must find them on a real file system.
        cls.scratch = pathlib.Path(tempfile.mkdtemp(prefix="trireme-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.scratch, ignore_errors=True)
        cls.started = []
        cls.addClassCleanup(lambda: [started.end() for started in cls.started])
        cls.data = cls.scratch / "data" / "train"
        cls.held_out = cls.scratch / "data" / "eval"
        cls.count = 0
        cls.shared_memory_before = shared_memory_files()
        first = cls.train(cls.new_run("prepare"), 1, {"train.steps": 5})
        if first.code != DONE:
            raise AssertionError(f"the data could not be prepared: {first}")

    @classmethod
    def new_folder(cls, name):
        cls.count += 1
        folder = cls.scratch / f"{cls.count:03d}-{name.replace(' ', '-').replace('/', '-')}"
        folder.mkdir()
        return folder

    @classmethod
    def new_run(cls, name):
        return Run(cls.new_folder(name) / "run")

    @classmethod
    def start(cls, *arguments, folder=None, program=(BINARY,), env=None):
        started = Started([*program, *arguments], folder or cls.new_folder("process"), env)
        cls.started.append(started)
        return started

    @classmethod
    def call(cls, *arguments, **options):
        """Any command of the program, to its end."""
        return cls.start(*arguments, **options).wait()

    @classmethod
    def train_arguments(cls, run, workers, settings=(), config=CONFIG):
        """`settings`: {key: value} over configs/tiny.toml. No held-out text unless a row asks: it only takes time."""
        merged = {"run.dir": run.folder, "data.path": cls.data, "data.eval_path": "", **dict(settings)}
        arguments = ["train", config] + ([] if workers is None else ["--workers", workers])
        for key, value in merged.items():
            arguments += ["--set", f"{key}={value}"]
        return [str(argument) for argument in arguments]

    @classmethod
    def start_train(cls, run, workers, settings=(), **options):
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        return cls.start(*cls.train_arguments(run, workers, settings), **options)

    @classmethod
    def train(cls, run, workers, settings=(), **options):
        return cls.start_train(run, workers, settings, **options).wait()

    @classmethod
    def prepared(cls, text):
        """Data of another text with the same tokenizer."""
        folder = cls.new_folder("prepared")
        (folder / "text.txt").write_text(text)
        result = cls.call("data", "prepare", folder / "text.txt", "--tokenizer", cls.data / "tokenizer", "--out", folder / "out")
        if result.code != DONE:
            raise AssertionError(f"the data could not be prepared: {result}")
        return folder / "out"

    def trained(self, run, workers, settings=(), **options):
        """train, which must end with 0; returns the run."""
        result = self.train(run, workers, settings, **options)
        self.assertEqual(result.code, DONE, str(result))
        return run

    def digest(self, run):
        """Of the newest complete checkpoint."""
        result = self.call("inspect", run.folder, "--digest")
        self.assertEqual(result.code, DONE, str(result))
        self.assertRegex(result.out.splitlines()[-1], r"^[0-9a-f]{32}  all$")
        return result.out

    def assert_same_run(self, a, b):
        """The same bits: everything that was learned, and everything that was told about it."""
        self.assertEqual(self.digest(a), self.digest(b))
        keys = ("loss", "grad_norm", "lr", "tokens")
        self.assertEqual(a.values(*keys), b.values(*keys))

    def assert_no_step_twice(self, run, steps):
        self.assertEqual([line["step"] for line in run.steps()], list(range(1, steps + 1)))

    def assert_refused(self, result, *texts, code=BAD_INPUT):
        """Ended with `code` and one message that names each of `texts`."""
        self.assertEqual(result.code, code, str(result))
        self.assertEqual(result.err.count("trireme: error:"), 1, str(result))
        message = result.err[result.err.index("trireme: error:"):]
        for text in texts:
            self.assertIn(str(text), message, str(result))

    def assert_nothing_left(self, pids):
        """No process and no shared memory."""
        wait_until(lambda: not any(map(is_alive, pids)), f"the end of the processes {pids}", 10)
        self.assertEqual(shared_memory_files() - self.shared_memory_before, set())


def main():
    """As unittest.main, with each test's time: these tests are where the minutes go."""
    print(f"program {BINARY}, seed {SEED}{', soak' if SOAK else ''}", file=sys.stderr)
    unittest.main(verbosity=2)
