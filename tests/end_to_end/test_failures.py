"""A worker or a launcher that fails is named, and nothing of the run stays; a run that is asked to stop saves and goes on later."""

import os
import pathlib
import random
import re
import shutil
import signal
import socket
import sys
import time

from harness import BINARY, CONFIG, DONE, SEED, SOAK, STOPPED, WORKER_FAILED, EndToEnd, environment, main, wait_until

NAMING_BOUND_S = 5
# Long enough that no machine finishes it while a test looks away.
LONG = {"train.steps": 1_000_000, "checkpoint.interval": 10, "train.precision": "fp32"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class FailureTest(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = None

    def undisturbed(self):
        """The first steps of the run that LONG would be."""
        if FailureTest.whole is None:
            FailureTest.whole = self.trained(self.new_run("undisturbed"), 2, {**LONG, "train.stop_after": 60})
        return FailureTest.whole

    def training(self, run, workers, settings=(), step=3):
        """A run that has finished `step` steps and goes on, and the pids of its workers."""
        started = self.start_train(run, workers, {**LONG, **dict(settings)})
        wait_until(lambda: run.last_step() >= step or started.process.poll() is not None, f"step {step} of {run.folder}")
        self.assertIsNone(started.process.poll(), started.err())
        return started, started.worker_pids()

    def launch_two_nodes(self, run, settings, workers=(1, 1)):
        """Two launchers of one run on this machine, each with options of its own."""
        port = free_port()
        return [self.start("launch", "--nodes", 2, "--node-rank", node, "--rendezvous", f"127.0.0.1:{port}",
                           *self.train_arguments(run, workers[node], settings[node])[1:]) for node in (0, 1)]

    def assert_goes_on(self, run, workers=2):
        """The same command resumes where the newest checkpoint is, to the same numbers."""
        last = int(run.checkpoints()[-1].name.split("-")[1])
        # As far as the undisturbed run went; a fast machine may have stopped beyond that.
        end = max(60, last + 3)
        self.trained(run, workers, {**LONG, "train.stop_after": end})
        self.assert_no_step_twice(run, end)
        keys = ("loss", "grad_norm", "lr", "tokens")
        self.assertEqual(run.values(*keys)[:60], self.undisturbed().values(*keys))

    def test_worker_fails(self):
        #                              signal, rank, workers, in words
        rows = {"killed": (signal.SIGKILL, 1, 2, r"was killed by SIGKILL \(9\): someone's kill -9"),
                "the first rank crashes": (signal.SIGSEGV, 0, 2, r"was killed by SIGSEGV \(11\): a segmentation fault"),
                "stopped": (signal.SIGSTOP, 1, 3, r"was stopped by SIGSTOP \(19\) and not continued"),
                "the first rank is stopped": (signal.SIGSTOP, 0, 2, r"was stopped by SIGSTOP \(19\) and not continued")}
        for name, (number, rank, workers, words) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                settings = {"train.global_batch_size": 8, "train.micro_batch_size": 4} if workers == 2 else {}
                started, pids = self.training(run, workers, settings, step=12)
                self.assertEqual(len(pids), workers)
                before = run.last_step()
                sent = time.monotonic()
                os.kill(pids[rank], number)
                wait_until(lambda: "trireme: error:" in started.err(), "the report", 30)
                took = time.monotonic() - sent
                result = started.wait(30)
                print(f"  {name}: named after {took:.2f} s", flush=True)
                self.assertLess(took, NAMING_BOUND_S, str(result))
                self.assert_refused(result, f"rank {rank} (pid {pids[rank]} on {socket.gethostname()})", run.folder / "checkpoints",
                                    code=WORKER_FAILED)
                self.assertRegex(result.err, rf"rank {rank} \(pid {pids[rank]} on [^ ]+\) {words}")
                step = int(re.search(r"last finished step (\d+), (training|saving)", result.err)[1])
                self.assertTrue(before - 1 <= step <= run.last_step() + 1, f"{before} {step} {run.last_step()}\n{result}")
                log = run.folder / "logs" / f"rank-{rank:05d}.log"
                self.assertIn(str(log), result.err)
                if rank == 0:  # the only one that writes while all is well
                    self.assertRegex(result.err, rf"last lines of {re.escape(str(log))}:\n    \| (.*\n)*    \| step +\d+/")
                self.assert_nothing_left(pids)
                if number == signal.SIGKILL:
                    self.assertRegex(result.err, r"its memory after that step: tensors hold \d.* MiB: .*moments ", result)
                if name == "killed":
                    self.assert_goes_on(run)

    def test_worker_fails_at_any_moment_of_divided_training(self):
        """Whatever it does then (forward, a gather, a reduction, a checkpoint): it is named, and nothing stays."""
        draw = random.Random(SEED)
        settings = {"model.hidden": 128, "model.layers": 4, "model.ffn": 384, "checkpoint.interval": 2, "train.micro_batch_size": 2,
                    "train.global_batch_size": 12}
        for i in range(100 if SOAK else 10):
            level = draw.choice(["optimizer", "gradients", "parameters", "parameters"])
            workers, number = draw.choice([2, 3]), draw.choice([signal.SIGKILL, signal.SIGSTOP])
            rank, pause = draw.randrange(workers), draw.uniform(0, 0.4)
            copies = {"parallel.shard_size": 1} if draw.random() < 0.2 else {}
            name = f"{i}: {level}, rank {rank} of {workers}, {number.name} after {pause:.3f} s {copies}"
            with self.subTest(name):
                run = self.new_run(f"moment {i}")
                started, pids = self.training(run, workers, {**settings, **copies, "parallel.shard": level})
                time.sleep(pause)
                sent = time.monotonic()
                os.kill(pids[rank], number)
                result = started.wait(30)
                took = time.monotonic() - sent
                self.assertLess(took, 10, str(result))
                self.assert_refused(result, f"rank {rank} (pid {pids[rank]} on {socket.gethostname()}) was "
                                    + ("killed by SIGKILL" if number == signal.SIGKILL else "stopped by SIGSTOP"), code=WORKER_FAILED)
                self.assert_nothing_left(pids)

    def test_memory_runs_out(self):
        """Under a limit of address space, with activations of some 4 GB."""
        run = self.new_run("no memory")
        arguments = self.train_arguments(run, 1, {"train.micro_batch_size": 16384, "train.global_batch_size": 16384})
        result = self.call(*arguments, program=("prlimit", f"--as={3 << 30}", BINARY))
        self.assertEqual(result.code, WORKER_FAILED, result)
        for part in ("out of memory: ", " MiB more were asked for activations; tensors hold ", "activations ", "moments ",
                     "Less is used by a smaller train.micro_batch_size (now 16384", 'train.recompute = "full"'):
            self.assertIn(part, result.err, result)

    def test_worker_is_killed_before_training(self):
        started = self.start_train(self.new_run("early"), 2, LONG)
        pids = wait_until(lambda: started.worker_pids() if len(started.worker_pids()) == 2 else None, "two workers")
        os.kill(pids[1], signal.SIGKILL)
        result = started.wait(30)
        self.assert_refused(result, f"rank 1 (pid {pids[1]}", "SIGKILL", "before its first step", code=WORKER_FAILED)
        self.assert_nothing_left(pids)

    def test_stopped_and_continued_worker_is_forgiven(self):
        run = self.new_run("continued")
        started, pids = self.training(run, 2)
        os.kill(pids[1], signal.SIGSTOP)
        wait_until(lambda: "is stopped by SIGSTOP" in started.err(), "the notice", 10)
        os.kill(pids[1], signal.SIGCONT)
        step = run.last_step()
        wait_until(lambda: run.last_step() > step + 3, "more steps")
        started.send(signal.SIGTERM)
        self.assertEqual(started.wait().code, STOPPED)

    def program_of(self, started):
        """Its file, without the version; the kernel's own record cuts names."""
        return re.sub(r"-[0-9.]+$", "", pathlib.Path(os.readlink(f"/proc/{started.process.pid}/exe")).name)

    def watched_by(self, run, program, expected):
        """A few steps more of the run, by `program`, whose launcher is then the program `expected`."""
        started = self.start(*self.train_arguments(run, 2, LONG), program=(program,))
        before = run.last_step()
        wait_until(lambda: run.last_step() > before or started.process.poll() is not None, "a step more")
        self.assertEqual(self.program_of(started), expected, started.err())
        started.send(signal.SIGTERM)
        result = started.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        return result

    def cls_folder_with_space(self):
        folder = self.new_folder("a copy") / "by itself"
        folder.mkdir()
        return folder

    def test_launcher_holds_next_to_nothing(self):
        """It becomes a program without LibTorch; where that is not there, it watches by itself, all the same."""
        run = self.new_run("small launcher")
        started, pids = self.training(run, 2)
        self.assertEqual(self.program_of(started), "trireme-supervisor")
        text = pathlib.Path(f"/proc/{started.process.pid}/smaps_rollup").read_text()
        told = dict(line.split(":") for line in text.splitlines()[1:])
        self.assertLess(int(told["Pss"].split()[0]), 8 * 1024, "KiB")
        started.send(signal.SIGTERM)
        self.assertEqual(started.wait().code, STOPPED)
        self.assert_nothing_left(pids)
        folder = self.cls_folder_with_space()
        elsewhere = pathlib.Path(shutil.copy(BINARY, folder / "trireme"))
        self.watched_by(run, elsewhere, "trireme")
        # One that cannot be started is told.
        helper = next(pathlib.Path(BINARY).parent.glob("trireme-supervisor-*"))
        useless = folder / helper.name
        useless.write_text("no program")
        self.assertIn(f"cannot start {useless}: Permission denied", self.watched_by(run, elsewhere, "trireme").err)
        useless.unlink()
        shutil.copy(helper, useless)
        self.watched_by(run, elsewhere, "trireme-supervisor")

    def test_launcher_is_killed(self):
        run = self.new_run("launcher killed")
        started, pids = self.training(run, 2, step=12)
        started.process.kill()
        started.wait()
        self.assert_nothing_left(pids)
        self.assert_goes_on(run)

    def test_stop_after_saving(self):
        def by_signal(number):
            return lambda started, run: started.send(number)

        rows = {"SIGTERM": (by_signal(signal.SIGTERM), {}, "SIGTERM"),
                "SIGUSR1": (by_signal(signal.SIGUSR1), {}, "SIGUSR1"),
                "SIGINT": (by_signal(signal.SIGINT), {}, "SIGINT"),
                "stop file": (lambda started, run: (run.folder / "stop").touch(), {}, "/stop"),
                "time limit": (None, {"run.time_limit_minutes": 0.02}, "run.time_limit_minutes = 0.02")}
        for name, (stop, settings, words) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                # An interval that is not reached: the checkpoint there is comes from the stop.
                settings = {"checkpoint.interval": 0, **settings}
                if stop is None:
                    started = self.start_train(run, 2, {**LONG, **settings})
                    pids = []
                else:
                    started, pids = self.training(run, 2, settings)
                    stop(started, run)
                result = started.wait()
                self.assertEqual(result.code, STOPPED, str(result))
                self.assertRegex(result.out, rf"stopped by [^\n]*{re.escape(words)}")
                self.assertNotIn("trireme: error:", result.err)
                self.assertEqual([folder.name for folder in run.checkpoints()], [f"step-{run.last_step():08d}"])
                self.assertFalse((run.folder / "stop").exists())
                self.assert_nothing_left(pids)
                self.assert_goes_on(run)

    def test_stop_during_an_evaluation(self):
        """The checkpoint is there before it, the stop does not wait for its end, and the resumed run makes up for it."""
        held_out = self.new_folder("held out") / "large"
        shutil.copytree(self.data, held_out)  # takes about 2 s to evaluate
        settings = {**LONG, "data.eval_path": held_out, "eval.interval": 5, "checkpoint.interval": 5}
        run = self.new_run("stopped evaluation")
        started = self.start_train(run, 2, settings)
        wait_until(run.checkpoints, "the checkpoint before the evaluation")
        started.send(signal.SIGTERM)
        result = started.wait(20)
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertEqual([("eval_loss" in line, line["step"]) for line in run.lines()], [(False, step) for step in range(1, 6)])
        self.trained(run, 2, {**settings, "train.stop_after": 6})
        self.assertEqual([("eval_loss" in line, line["step"]) for line in run.lines()],
                         [(False, step) for step in range(1, 6)] + [(True, 5), (False, 6)])

    def test_stop_signal_while_workers_start(self):
        run = self.new_run("early stop")
        started = self.start_train(run, 2, LONG)
        wait_until(lambda: len(started.worker_pids()) == 2, "two workers")
        started.send(signal.SIGTERM)
        result = started.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertEqual([folder.name for folder in run.checkpoints()], ["step-00000001"])

    def test_second_live_run_is_refused(self):
        run = self.new_run("live")
        started, pids = self.training(run, 2)
        log = run.folder / "logs" / "rank-00001.log"
        before = log.read_bytes()
        second = self.train(run, 2, LONG)
        self.assertEqual(log.read_bytes(), before, "the logs are the live run's")
        self.assert_refused(second, run.folder, f"process {pids[0]} on host {socket.gethostname()}")
        step = run.last_step()
        wait_until(lambda: run.last_step() > step + 2, "the first run goes on")
        started.send(signal.SIGTERM)
        self.assertEqual(started.wait().code, STOPPED)
        self.assert_no_step_twice(run, run.last_step())
        # An idle folder is free.
        self.assert_goes_on(run)

    def test_port_is_taken(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            run = self.new_run("port taken")
            arguments = self.train_arguments(run, 2)[1:]
            result = self.call("launch", "--nodes", 1, "--node-rank", 0, "--rendezvous", f"127.0.0.1:{port}", *arguments)
        self.assert_refused(result, f"127.0.0.1:{port}", "taken")
        self.assertEqual(run.checkpoints(), [])

    def test_other_launchers_compute_the_same(self):
        """torchrun with its store and without, two launchers that meet, and the variables of mpirun and srun."""
        settings = {"train.steps": 10, "lr_schedule.steps": 10, "train.precision": "fp32"}
        own = self.trained(self.new_run("own launcher"), 2, settings)
        python = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"]

        def torchrun(*options, **variables):
            def start(run):
                command = [*python, *options, BINARY, *self.train_arguments(run, None, settings)]
                return [self.start(*command, program=(), env=environment(**variables))]
            return start

        def two_launchers(run):
            port = free_port()
            return [self.start("launch", "--nodes", 2, "--node-rank", node, "--rendezvous", f"127.0.0.1:{port}",
                               *self.train_arguments(run, 1, settings)[1:]) for node in (0, 1)]

        def by_variables(of_rank):
            def start(run):
                port = free_port()
                return [self.start(*self.train_arguments(run, None, settings),
                                   env=environment(MASTER_PORT=str(port), **of_rank(str(rank)))) for rank in (0, 1)]
            return start

        rows = {
            "torchrun": torchrun("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
            "torchrun without its store": torchrun("--master-addr", "127.0.0.1", "--master-port", str(free_port()),
                                                   TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"),
            "torchrun --standalone": torchrun("--standalone"),
            "launch, 2 nodes": two_launchers,
            "mpirun": by_variables(lambda rank: {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2",
                                                 "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}),
            "srun": by_variables(lambda rank: {"SLURM_PROCID": rank, "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0",
                                               "SLURM_LOCALID": rank, "SLURM_NODELIST": "localhost", "SLURM_JOB_ID": "7"}),
        }
        for name, start in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                run.folder.parent.mkdir(exist_ok=True)
                for result in [started.wait() for started in start(run)]:
                    self.assertEqual(result.code, DONE, str(result))
                self.assert_same_run(run, own)

    def test_nodes_with_other_options_are_refused(self):
        """They would train different models into one."""
        rows = {"another rate": ({"optimizer.lr": 0.5}, ["optimizer.lr is 0.01 on rank 0 and 0.5 on rank 1"]),
                "other steps and another seed": ({"train.steps": 9, "run.seed": 7}, ["train.steps", "run.seed"]),
                "another model": ({"model.layers": 3}, ["model.layers is 2 on rank 0 and 3 on rank 1"])}
        for name, (settings, words) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                first, second = self.launch_two_nodes(run, [{}, settings])
                for result in (first.wait(30), second.wait(30)):
                    self.assert_refused(result, *words)
                self.assertEqual(run.checkpoints(), [])

    def test_nodes_that_expect_other_numbers_are_refused(self):
        run = self.new_run("other numbers")
        first, second = self.launch_two_nodes(run, [{}, {}], workers=[1, 2])
        for result in (first.wait(30), second.wait(30)):
            self.assert_refused(result, "launchers do not agree", "2 ranks", "4 ranks")

    def test_a_host_that_does_not_exist(self):
        result = self.call("launch", CONFIG, "--nodes", 2, "--node-rank", 1, "--rendezvous", "no-such-host.invalid:29500",
                           "--set", f"run.dir={self.new_run('nowhere').folder}", "--set", f"data.path={self.data}")
        self.assert_refused(result, "no host no-such-host.invalid")

    def test_a_wait_for_others_is_given_up_on_request(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number.name):
                variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
                started = self.start_train(self.new_run("alone"), None, env=environment(**variables))
                wait_until(lambda: "waiting for at most" in started.out_path.read_text() + started.err(), "its wait", 60)
                started.send(number)
                result = started.wait(15)
                self.assertEqual(result.code, STOPPED, str(result))
                self.assertIn("rank 1 did not come", result.out + result.err)

    def test_worker_of_another_node_fails(self):
        run = self.new_run("two nodes")
        nodes = self.launch_two_nodes(run, [LONG, LONG])
        wait_until(lambda: run.last_step() >= 3 or any(node.process.poll() is not None for node in nodes), "step 3")
        pids = [node.worker_pids()[0] for node in nodes]
        os.kill(pids[1], signal.SIGKILL)
        here, there = (node.wait(30) for node in nodes)
        self.assert_refused(there, f"rank 1 (pid {pids[1]}", "SIGKILL", code=WORKER_FAILED)
        self.assert_refused(here, "rank 1", code=WORKER_FAILED)
        self.assert_nothing_left(pids)


if __name__ == "__main__":
    main()
