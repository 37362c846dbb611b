"""comm.backend = nccl, as far as it goes without a GPU: over a plug-in that stands in for NCCL in host memory the numbers of whole runs
are those of shared memory to the bit, and what goes wrong is told by name. STAND_IN names that plug-in."""

import os
import signal

from harness import BAD_INPUT, DONE, WORKER_FAILED, EndToEnd, environment, main, wait_until

STAND_IN = os.environ["STAND_IN"]
STEPS = {"train.steps": 8, "lr_schedule.steps": 8, "train.precision": "fp32", "train.micro_batch_size": 3,
         "train.global_batch_size": 12}
LONG = {"train.steps": 1_000_000, "checkpoint.interval": 10, "train.precision": "fp32"}


class NcclTest(EndToEnd):
    def over_nccl(self, run, settings=(), workers=2, plugin=STAND_IN, **variables):
        return self.train(run, workers, {"comm.backend": "nccl", **dict(settings)},
                          env=environment(TRIREME_NCCL_PLUGIN=plugin, **variables))

    def test_the_same_bits_as_shared_memory(self):
        rows = {"whole weights": ({}, 2, {}),
                "divided weights": ({"parallel.shard": "parameters"}, 2, {}),
                "divided optimizer in bf16": ({"parallel.shard": "optimizer", "train.precision": "bf16"}, 2, {}),
                "divided gradients, by way of the device's memory":
                    ({"parallel.shard": "gradients", "comm.check": "shapes"}, 2, {"TRIREME_STAND_IN_APART": "1"}),
                "copies of shards": ({"parallel.shard": "parameters", "parallel.shard_size": 2}, 4, {})}
        for name, (settings, workers, variables) in rows.items():
            with self.subTest(name):
                shared = self.trained(self.new_run(f"{name} shm"), workers, {**STEPS, **settings})
                run = self.new_run(f"{name} nccl")
                result = self.over_nccl(run, {**STEPS, **settings}, workers, **variables)
                self.assertEqual(result.code, DONE, str(result))
                self.assert_same_run(shared, run)

    def test_a_rank_that_is_killed_is_named(self):
        run = self.new_run("killed")
        started = self.start_train(run, 2, {"comm.backend": "nccl", **LONG}, env=environment(TRIREME_NCCL_PLUGIN=STAND_IN))
        wait_until(lambda: run.last_step() >= 3 or started.process.poll() is not None, "step 3")
        pids = started.worker_pids()
        os.kill(pids[1], signal.SIGKILL)
        result = started.wait(60)
        self.assertEqual(result.code, WORKER_FAILED, str(result))
        self.assertIn("rank 1", result.err, str(result))
        self.assert_nothing_left(pids)

    def test_an_error_of_the_library_ends_the_run_with_its_words(self):
        result = self.over_nccl(self.new_run("broken"), LONG, TRIREME_STAND_IN_FAULT="1,40")
        self.assertEqual(result.code, WORKER_FAILED, str(result))
        self.assertIn("remote process exited or there was a network error", result.err, str(result))

    def test_what_cannot_be_is_refused_by_name(self):
        absent = self.over_nccl(self.new_run("no plug-in"), plugin="/nowhere/libtrireme_nccl.so")
        self.assertEqual(absent.code, BAD_INPUT, str(absent))
        self.assertIn("tools/build-nccl.sh builds it", absent.err)
        by_default = self.train(self.new_run("by default"), 2, {"run.device": "cuda"},
                                env=environment(TRIREME_NCCL_PLUGIN="/nowhere/libtrireme_nccl.so"))
        self.assert_refused(by_default, "tools/build-nccl.sh builds it")
        for name, settings, words in [("NaN", {"comm.check": "all"}, "comm.check = all"),
                                      ("a link", {"comm.emulate.replicate.latency_us": 500}, "comm.emulate")]:
            with self.subTest(name):
                result = self.over_nccl(self.new_run(name), {**STEPS, **settings})
                self.assertNotEqual(result.code, DONE, str(result))
                self.assertIn(words, result.err, str(result))
        alone = self.over_nccl(self.new_run("one worker"), STEPS, workers=1, plugin="/nowhere/libtrireme_nccl.so")
        self.assertEqual(alone.code, DONE, str(alone))


if __name__ == "__main__":
    main()
