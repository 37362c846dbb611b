"""`trireme sbatch`: what the script asks of Slurm, and that it saves, goes back into the queue and resumes. srun and scontrol are
scripts of the test's own, which start the tasks as Slurm does and note what was asked."""

import os
import signal
import subprocess

from harness import BINARY, CONFIG, DONE, STOPPED, EndToEnd, environment, main, wait_until

FAKES = {"scontrol": '#!/bin/sh\necho "$@" >> "$NOTES"\n',
         "srun": '#!/bin/bash\necho srun "$@" >> "$NOTES"\nwhile [[ $1 == --* ]]; do shift; done\necho "$@" >> "$NOTES"\n'}


class SbatchTest(EndToEnd):
    def written(self, *arguments, settings=()):
        folder = self.new_folder("script")
        options = [part for key, value in dict(settings).items() for part in ("--set", f"{key}={value}")]
        result = self.call("sbatch", CONFIG, *arguments, *options, "--output", folder / "job.sh")
        self.assertEqual(result.code, DONE, str(result))
        script = folder / "job.sh"
        checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        return script

    def start_job(self, script, **fakes):
        """As Slurm does; notes lie beside the script."""
        folder = script.parent
        for name, text in {**FAKES, **fakes}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "notes").touch()
        # Slurm sets a task's variables for the batch script too.
        variables = {"PATH": f"{folder}:{os.environ['PATH']}", "NOTES": str(folder / "notes"), "SLURM_JOB_ID": "7", "SLURM_PROCID": "0",
                     "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODELIST": "localhost"}
        return self.start(script, program=("bash",), env=environment(**variables)), folder / "notes"

    def test_several_machines(self):
        script = self.written("--nodes", 2, "--workers", 3, "--cpus", 4, "--time", "1:00:00", "--partition", "big", "--notice", 60,
                              settings={"run.dir": "it's here", "train.global_batch_size": 48, "train.micro_batch_size": 4})
        text = script.read_text()
        for line in ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=3", "#SBATCH --cpus-per-task=4", "#SBATCH --time=1:00:00",
                     "#SBATCH --partition=big", "#SBATCH --signal=B:USR1@60", "#SBATCH --requeue", "#SBATCH --job-name=tiny"):
            self.assertIn(line + "\n", text)
        self.assertIn('export SLURM_PMIX_FENCE="${SLURM_PMIX_FENCE:-tree}"\n', text)
        started, notes = self.start_job(script)
        result = started.wait()
        self.assertEqual(result.code, DONE, str(result))
        self.assertEqual(notes.read_text().splitlines(),
                         ["srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=4 " + (command :=
                          f"{BINARY} train {CONFIG} --set run.dir=it's here --set train.global_batch_size=48 "
                          "--set train.micro_batch_size=4 --set comm.backend=mpi"), command])

    def test_one_machine_saves_before_the_end_and_goes_on(self):
        run = self.new_run("job")
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        settings = {"run.dir": run.folder, "data.path": self.data, "data.eval_path": "", "train.steps": 1_000_000,
                    "train.precision": "fp32"}
        script = self.written("--workers", 2, settings=settings)
        self.assertIn("#SBATCH --exclusive\n", script.read_text())
        started, notes = self.start_job(script)
        wait_until(lambda: run.last_step() >= 3 or started.process.poll() is not None, "step 3")
        started.send(signal.SIGUSR1)
        result = started.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertEqual(notes.read_text(), "requeue 7\n")
        saved = run.last_step()
        # The next time it is stopped by hand, and stays out of the queue.
        started, notes = self.start_job(script)
        wait_until(lambda: run.last_step() > saved + 2 or started.process.poll() is not None, "a later step")
        (run.folder / "stop").touch()
        result = started.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertEqual(notes.read_text(), "requeue 7\n")  # of the first time
        steps = [line["step"] for line in run.steps()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_a_signal_that_ends_workers_as_they_start_is_no_loss(self):
        """They do not listen yet, and die of it. Such a script waited for ever."""
        started, notes = self.start_job(self.written("--nodes", 2), srun='#!/bin/sh\necho srun >> "$NOTES"\nexec sleep 100\n')
        wait_until(notes.read_text, "srun")
        started.send(signal.SIGUSR1)
        result = started.wait(30)
        self.assertEqual(result.code, 128 + signal.SIGUSR1, str(result))
        self.assertEqual(notes.read_text(), "srun\nrequeue 7\n")

    def test_what_cannot_be_right_is_refused(self):
        self.assert_refused(self.call("sbatch", CONFIG, "--nodes", 0, "--workers", -1), "--nodes 0", "--workers -1")
        self.assert_refused(self.call("sbatch", CONFIG, "--partition", "a b"), "--partition a b: expected one word")
        self.assert_refused(self.call("sbatch", CONFIG, "--set", "train.stepz=3"), "train.steps")
        for time, seconds in {"5": 300, "1:30": 90, "0:04:00": 240, "0-0": None, "0-0:3": 180, "0-0:1:1": 61, "6": 360, "0:05:01": 301, "0:06:01": None,
                              "1-0": None, "0": None, "UNLIMITED": None}.items():
            with self.subTest(time):
                result = self.call("sbatch", CONFIG, "--time", time)
                if seconds is None:
                    self.assertEqual(result.code, DONE, str(result))
                else:
                    self.assert_refused(result, f"a job of {seconds} s (--time {time}) would be told to end", "more than 360 s work")


if __name__ == "__main__":
    main()
