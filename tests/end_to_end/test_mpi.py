"""comm.backend = mpi: mpirun starts the workers, the numbers are those of shared memory to the bit, and what goes wrong is told by
name. MPIRUN names the program; CTest leaves this out where there is no MPI."""

import os
import shutil
import signal

from harness import BAD_INPUT, BINARY, DONE, STOPPED, EndToEnd, environment, main, wait_until

MPIRUN = os.environ.get("MPIRUN") or shutil.which("mpirun")
# Variables rather than options: other libraries' mpirun knows other options. Without binding a worker sees all processors, as a
# worker of our own launcher does.
VARIABLES = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
             "OMPI_MCA_hwloc_base_binding_policy": "none"}
STEPS = {"train.steps": 10, "lr_schedule.steps": 10, "train.precision": "fp32", "train.micro_batch_size": 3,
         "train.global_batch_size": 12}
LONG = {"train.steps": 1_000_000, "checkpoint.interval": 10, "train.precision": "fp32"}


class MpiTest(EndToEnd):
    def start_mpi(self, run, settings=(), ranks=2, **variables):
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        return self.start(*self.train_arguments(run, None, {"comm.backend": "mpi", **dict(settings)}),
                          program=(MPIRUN, "-n", ranks, BINARY), env=environment(**VARIABLES, **variables))

    def train_mpi(self, run, settings=(), **options):
        result = self.start_mpi(run, settings, **options).wait()
        self.assertEqual(result.code, DONE, str(result))
        return run

    def ranks(self, run):
        """Process numbers in the order of the ranks."""
        shown = self.call("inspect", run.folder, "--flight", "--last", 1)
        lines = [line for line in shown.out.splitlines() if line.startswith("rank ") and "(pid " in line]
        return [int(line.split("(pid ")[1].split()[0]) for line in lines]

    def test_the_same_bits_as_shared_memory(self):
        rows = {"whole weights": {}, "divided weights": {"parallel.shard": "parameters"},
                "what travels in 8 bits": {"parallel.shard": "parameters", "parallel.quantize_weights": "int8",
                                           "parallel.quantize_gradients": "int8", "parallel.quantize_error_feedback": "true"},
                "a second shard": {"workers": 4, "parallel.shard": "parameters", "parallel.reshard_after_forward": 2,
                                   "train.micro_batch_size": 1, "model.layers": 5, "train.recompute": "full"},
                "an emulated link": {"comm.emulate.replicate.latency_us": 500},
                "divided optimizer in bf16": {"parallel.shard": "optimizer", "train.precision": "bf16"},
                "divided gradients, everything compared": {"parallel.shard": "gradients", "comm.check": "all"}}
        for name, settings in rows.items():
            with self.subTest(name):
                workers = settings.pop("workers", 2)
                shared = self.trained(self.new_run(f"{name} shm"), workers, {**STEPS, **settings})
                over_mpi = self.train_mpi(self.new_run(f"{name} mpi"), {**STEPS, **settings}, ranks=workers)
                self.assert_same_run(shared, over_mpi)

    def test_a_run_goes_on_over_another_backend(self):
        whole = self.trained(self.new_run("whole"), 2, STEPS)
        run = self.new_run("in two parts")
        self.train_mpi(run, {**STEPS, "train.steps": 5, "checkpoint.interval": 5})
        self.trained(run, 2, STEPS)
        self.assert_same_run(whole, run)

    def test_a_stop_saves_and_ends_with_its_code(self):
        run = self.new_run("stop")
        started = self.start_mpi(run, LONG)
        wait_until(lambda: run.last_step() >= 3 or started.process.poll() is not None, "step 3")
        os.kill(self.ranks(run)[1], signal.SIGUSR1)
        result = started.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertTrue(run.checkpoints(), str(result))

    def test_a_rank_that_is_killed_is_named(self):
        run = self.new_run("killed")
        started = self.start_mpi(run, LONG)
        wait_until(lambda: run.last_step() >= 3 or started.process.poll() is not None, "step 3")
        pids = self.ranks(run)
        os.kill(pids[1], signal.SIGKILL)
        result = started.wait(60)
        self.assertNotEqual(result.code, DONE, str(result))
        self.assertIn(f"rank 1 (pid {pids[1]} on ", result.err, str(result))
        self.assertIn("died", result.err, str(result))
        self.assert_nothing_left(pids)

    def test_what_mpi_cannot_do_is_refused_by_name(self):
        run = self.new_run("own launcher")
        result = self.train(run, 2, {"comm.backend": "mpi"})
        self.assert_refused(result, "mpirun -n 2 trireme train")
        result = self.train(self.new_run("one worker"), 1, {**STEPS, "comm.backend": "mpi"})
        self.assertEqual(result.code, DONE, str(result))
        result = self.start_mpi(self.new_run("no plug-in"), TRIREME_MPI_PLUGIN="/nowhere/libtrireme_mpi.so").wait()
        self.assertEqual(result.code, BAD_INPUT, str(result))
        self.assertIn("libopenmpi-dev and openmpi-bin", result.err)
        variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": "29500"}
        alone = self.train(self.new_run("no mpirun"), None, {"comm.backend": "mpi"}, env=environment(**VARIABLES, **variables))
        self.assert_refused(alone, "rank 0 of 2, MPI says rank 0 of 1", "mpirun -n 2")

    def test_nodes_with_other_options_are_refused(self):
        """Every rank reads the file itself."""
        run = self.new_run("other options")
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        common = {"comm.backend": "mpi", **STEPS}
        first = self.train_arguments(run, None, common)
        second = self.train_arguments(run, None, {**common, "optimizer.lr": 0.5})
        result = self.start("-n", 1, BINARY, *first, ":", "-n", 1, BINARY, *second, program=(MPIRUN,),
                            env=environment(**VARIABLES)).wait()
        self.assertEqual(result.code, BAD_INPUT, str(result))
        self.assertIn("optimizer.lr is 0.01 on rank 0 and 0.5 on rank 1", result.err)


if __name__ == "__main__":
    main()
