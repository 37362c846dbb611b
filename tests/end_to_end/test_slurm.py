"""The scripts of `trireme sbatch` on a real Slurm of four nodes on this host: the numbers of shared memory to the bit, a job that saves
before its time is over and resumes, and a rank that is killed."""

import os
import re
import signal
import time
import unittest

import slurm_cluster
from harness import CONFIG, DONE, EndToEnd, environment, main, wait_until

STEPS = {"train.steps": 10, "lr_schedule.steps": 10, "train.precision": "fp32", "train.micro_batch_size": 3,
         "train.global_batch_size": 12}
FOUR_NODES = ("--nodes", 4, "--cpus", 1)
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
ONE_THREAD = environment(OMP_NUM_THREADS="1")  # as a task with one processor has


class SlurmTest(EndToEnd):
    @classmethod
    def setUpClass(cls):
        lacks = slurm_cluster.why_not()
        if lacks:
            raise unittest.SkipTest(lacks)
        super().setUpClass()
        cls.cluster = slurm_cluster.SlurmCluster(cls.new_folder("slurm"), 4)
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()

    def submit(self, run, *arguments, settings=(), config=CONFIG):
        """As a user does: writes the script, and gives it to sbatch."""
        folder = run.folder.parent
        merged = {"run.dir": run.folder, "data.path": self.data, "data.eval_path": "", **dict(settings)}
        options = [part for key, value in merged.items() for part in ("--set", f"{key}={value}")]
        written = self.call("sbatch", config, *arguments, *options, "--output", folder / "job.sh", folder=folder)
        self.assertEqual(written.code, DONE, str(written))
        return self.cluster.submit(folder / "job.sh")

    def printed(self, run):
        """By all lives of the job."""
        return "".join(path.read_text(errors="replace") for path in sorted(run.folder.parent.glob("*.out")))

    def until(self, number, run, condition, what, patience_s=180):
        """`condition` of what Slurm says of the job, before the job ends otherwise; returns that."""
        def look():
            job = self.cluster.job(number)
            if not condition(job):
                self.assertNotIn(job["JobState"], ENDED, f"{what}: {job}\n{self.printed(run)}")
                return None
            return job
        return wait_until(look, what, patience_s, 0.2)

    def end(self, number, run):
        return self.until(number, run, lambda job: job["JobState"] in ENDED, "the end of the job")

    def completed(self, number, run):
        job = self.end(number, run)
        self.assertEqual((job["JobState"], job["ExitCode"]), ("COMPLETED", "0:0"), self.printed(run))
        return job

    def nodes(self, run):
        """[(rank, pid, node)] of the ranks that trained last."""
        shown = self.call("inspect", run.folder, "--flight", "--last", 1)
        found = re.findall(r"^rank (\d+) \(pid (\d+) on (\w+)", shown.out, re.MULTILINE)
        return sorted((int(rank), int(pid), node) for rank, pid, node in found)

    def test_the_same_bits_as_shared_memory(self):
        names = self.cluster.names
        shared = self.trained(self.new_run("shared memory"), 4, STEPS, env=ONE_THREAD)
        rows = {"a worker on each of four nodes": (FOUR_NODES, {}, names),
                "divided weights": (FOUR_NODES, {"parallel.shard": "parameters"}, names),
                "two workers on each of two whole nodes": (("--nodes", 2, "--workers", 2), {}, [names[0]] * 2 + [names[1]] * 2),
                "one node, without srun": (("--workers", 4, "--cpus", 1), {}, [names[0]] * 4)}
        for name, (arguments, settings, places) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                self.completed(self.submit(run, *arguments, settings={**STEPS, **settings}), run)
                self.assert_no_step_twice(run, STEPS["train.steps"])
                self.assertEqual([(rank, node) for rank, _, node in self.nodes(run)], list(enumerate(places)), self.printed(run))
                if settings:
                    other = self.trained(self.new_run(f"{name} shm"), 4, {**STEPS, **settings}, env=ONE_THREAD)
                    self.assert_same_run(other, run)
                else:
                    self.assert_same_run(shared, run)

    def test_a_job_saves_before_its_time_is_over_and_resumes(self):
        """The first life has no end but Slurm's signal; the file is changed for the next."""
        def by_slurm(number, run):
            del number, run  # between 10 and 70 s after the start of a job of 120 s, as Slurm looks every 30 s

        def by_hand(number, run):
            wait_until(lambda: run.last_step() >= 3, "step 3")
            self.cluster.call("scancel", "--signal=USR1", "--batch", number)

        rows = {"the limit of four nodes": ((*FOUR_NODES, "--time", 2, "--notice", 50), by_slurm),
                "a signal on one node": (("--workers", 4, "--cpus", 1, "--time", 10), by_hand)}
        settings = {"train.precision": "fp32", "train.global_batch_size": 48, "lr_schedule.steps": 1000}
        for name, (arguments, stop) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                config = run.folder.parent / "job.toml"
                before = "steps = 40\nseq_len"
                self.assertEqual(CONFIG.read_text().count(before), 1)
                config.write_text(CONFIG.read_text().replace(before, "steps = 1_000_000\nseq_len"))
                number = self.submit(run, *arguments, settings=settings, config=config)
                self.until(number, run, lambda job: job["JobState"] == "RUNNING", "the start of the job")
                stop(number, run)
                self.until(number, run, lambda job: int(job["Restarts"]) > 0, "a job that is back in the queue")
                self.assertTrue(run.checkpoints(), self.printed(run))
                saved = run.last_step()
                self.assertEqual(int(run.checkpoints()[-1].name.removeprefix("step-")), saved)
                self.assertIn("stopped by SIGUSR1", self.printed(run))
                config.write_text(CONFIG.read_text().replace(before, f"steps = {saved + 20}\nseq_len"))
                self.completed(number, run)
                self.assert_no_step_twice(run, saved + 20)
                whole = self.trained(self.new_run(f"{name} undisturbed"), 4, {**settings, "train.steps": saved + 20}, env=ONE_THREAD)
                self.assert_same_run(whole, run)

    def test_a_signal_that_comes_as_the_job_starts_is_no_loss(self):
        """It may find anything: srun, ranks that do not listen yet and die of it, ranks that do."""
        for delay_s in (0, 0.02, 0.05, 0.1, 0.2, 0.4):
            with self.subTest(f"{delay_s} s"):
                run = self.new_run("early")
                number = self.submit(run, *FOUR_NODES, "--time", 10, settings={**STEPS, "train.steps": 1_000_000})
                wait_until(lambda: "srun" in self.cluster.processes().values(), "srun")
                time.sleep(delay_s)
                self.cluster.call("scancel", "--signal=USR1", "--batch", number)
                self.until(number, run, lambda job: int(job["Restarts"]) > 0, "a job that is back in the queue")
                self.cluster.call("scancel", number)
                self.end(number, run)

    def test_a_rank_that_is_killed_is_named(self):
        run = self.new_run("killed")
        number = self.submit(run, *FOUR_NODES, "--time", 10, settings={"train.steps": 1_000_000, "train.precision": "fp32"})
        self.until(number, run, lambda _: run.last_step() >= 3, "step 3")
        ranks = self.nodes(run)
        _, pid, node = ranks[2]
        self.assertIn(pid, self.cluster.processes(), ranks)
        os.kill(pid, signal.SIGKILL)
        # srun asks the others to end, and kills them after KillWait: on other nodes they cannot know that the rank is dead.
        job = self.until(number, run, lambda job: job["JobState"] in ENDED, "the end of the job", 60)
        printed = self.printed(run)
        self.assertEqual(job["JobState"], "FAILED", printed)
        self.assertNotEqual(job["ExitCode"], "0:0", printed)
        self.assertEqual(job["Restarts"], "0", printed)
        self.assertIn(f"error: {node}: task 2: Killed", printed)
        self.assertRegex(printed, rf"rank 2 \(pid {pid} on {node}\): on another machine, it has not said that it waits")
        self.assert_nothing_left([each for _, each, _ in ranks])


if __name__ == "__main__":
    main()
