"""A run that was interrupted, in whatever way, ends as the undisturbed one: the same bits, every step told once."""

import json
import os
import random
import shutil
import signal
import time

from harness import DONE, SEED, SOAK, EndToEnd, is_alive, main, wait_until

STEPS = 40
FIXED = {"train.global_batch_size": 12, "lr_schedule.steps": STEPS, "train.precision": "fp32", "optimizer.lr": 1e-3}


GPT16 = {"train.precision": "fp16", "loss_scale.initial": 2.0**22, "loss_scale.growth_interval": 4, "model.architecture": "gpt",
         "model.kv_heads": 4, "model.dropout": 0.1, "batch_ramp.start": 8, "batch_ramp.increment": 8, "batch_ramp.samples": 300,
         "train.global_batch_size": 24, "train.micro_batch_size": 4, "optimizer.lr": 3e-3}


def flip_byte(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


class ResumeTest(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = {}

    def undisturbed(self, workers, settings=()):
        """A run of all 40 steps at once; each kind is made once and shared."""
        key = (workers, tuple(sorted(dict(settings).items())))
        if key not in self.whole:
            self.whole[key] = self.trained(self.new_run("undisturbed"), workers, settings)
        return self.whole[key]

    def copy_of(self, run, name):
        """A run folder that a test may spoil. Its path is not part of its meaning, so it goes on elsewhere."""
        copy = self.new_run(name)
        shutil.copytree(run.folder, copy.folder)
        return copy

    def halved(self, workers, settings=()):
        """A run that was stopped after step 20."""
        key = (workers, "half", tuple(sorted(dict(settings).items())))
        if key not in self.whole:
            self.whole[key] = self.trained(self.new_run("half"), workers, {**dict(settings), "train.stop_after": 20})
        return self.copy_of(self.whole[key], "half")

    def test_two_halves_are_the_whole(self):
        rows = {
            "bf16, 2 workers": (2, {}),
            "fp32, 1 worker, 3 micro-batches": (1, {**FIXED, "train.micro_batch_size": 4}),
            # The scale grows and falls, and each step's batch and masks are others: all of it has to go on where it was.
            "fp16, gpt, 2 workers": (2, GPT16),
            "average, documents, spikes, 2 workers": (2, {
                "train.ema_decay": 0.9, "train.document_mask": "true", "train.mask_document_starts": "true", "train.z_loss": 1e-3,
                "spike_guard.factor": 1.1, "spike_guard.window": 5, "model.qk_norm": "true", "optimizer.lr": 1e-3}),
            "fp64, 3 workers, 2 micro-batches": (3, {**FIXED, "train.micro_batch_size": 2, "train.precision": "fp64"}),
        }
        for name, (workers, settings) in rows.items():
            with self.subTest(name):
                whole = self.undisturbed(workers, settings)
                run = self.halved(workers, settings)
                self.assertEqual([folder.name for folder in run.checkpoints()], ["step-00000020"])
                self.assert_no_step_twice(run, 20)
                self.trained(run, workers, settings)
                self.assert_no_step_twice(run, STEPS)
                self.assert_same_run(run, whole)
                if settings is GPT16:
                    scales = [line["loss_scale"] for line in whole.steps()]
                    self.assertGreater(len(set(scales[20:])), 1, "the scale has to move after the resume")
                    self.assertTrue(any(line.get("skipped") for line in whole.steps()), "a scale of 2^22 overflows")
                    tokens = [b["tokens"] - a["tokens"] for a, b in zip(whole.steps(), whole.steps()[1:])]
                    self.assertEqual(sorted(set(tokens)), [8 * 64, 16 * 64, 24 * 64], "the ramp")
                if "spike_guard.factor" in settings:
                    spikes = [line["step"] for line in whole.steps() if line.get("skipped_spike")]
                    self.assertTrue(any(step > 20 for step in spikes), f"no spike after the resume: {spikes}")

    def test_another_number_of_workers_goes_on(self):
        def settings(micro):
            return {**FIXED, "train.micro_batch_size": micro}

        whole = self.undisturbed(2, settings(6))
        #       before, micro batch, after, micro batch
        rows = [(2, 6, 3, 4), (2, 6, 1, 4), (2, 6, 4, 3), (1, 6, 2, 3), (3, 2, 2, 6)]
        for before, micro_before, after, micro_after in rows if SOAK else rows[:2]:
            name = f"{before} workers x {micro_before}, then {after} x {micro_after}"
            with self.subTest(name):
                run = self.halved(before, settings(micro_before))
                result = self.train(run, after, settings(micro_after))
                self.assertEqual(result.code, DONE, str(result))
                self.assert_no_step_twice(run, STEPS)
                worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(run.steps(), whole.steps(), strict=True))
                print(f"  {name}: losses within {worst:.1e}", flush=True)
                self.assertLessEqual(worst, 1e-5)
                # A step takes the samples position .. position + 12 of one global order, whoever reads them: equal positions
                # and equal losses at each step are the exact multiset of samples.
                self.assertEqual(run.values("lr", "tokens"), whole.values("lr", "tokens"))
                self.assertEqual(run.state()["loader"], whole.state()["loader"])
                self.assertEqual(run.state()["loader"]["position"], 12 * STEPS)

    def kill_somewhere(self, run, settings, chance):
        """Starts a run and kills launcher and workers with SIGKILL at some moment; returns what the moment was."""
        started = self.start_train(run, 2, settings)
        # At some step, or while a folder of a save is being written; then a little later, so that no instant is special.
        during_save = chance.random() < 0.5
        step = chance.randrange(1, STEPS - 3)
        delay_s = chance.random() * (0.005 if during_save else 0.15)

        def moment():
            if started.process.poll() is not None:
                return True
            return run.last_step() >= step and (not during_save or any(run.folder.glob("checkpoints/*.tmp-*")))

        wait_until(moment, f"step {step}{' and a save' if during_save else ''} of {run.folder}", tick_s=0.0005)
        time.sleep(delay_s)
        workers = started.worker_pids()
        victims = [*workers, started.pid] if chance.random() < 0.5 else [started.pid, *workers]
        for pid in victims:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        started.wait()
        self.assert_nothing_left(workers)
        return f"{'in a save after' if during_save else 'after'} step {step}, {1000 * delay_s:.1f} ms later"

    def test_kill_of_all_at_a_random_moment(self):
        settings = {"checkpoint.interval": 1, "checkpoint.keep": 2, "eval.interval": 0}
        whole = self.undisturbed(2, settings)
        left_half_saves = 0
        for number in range(20 if SOAK else 4):
            chance = random.Random(SEED + number)
            run = self.new_run(f"killed {number}")
            with self.subTest(f"try {number}"):
                print(f"  try {number}: killed {self.kill_somewhere(run, settings, chance)}", flush=True)
                left_half_saves += any(run.folder.glob("checkpoints/*.tmp-*"))
                newest = run.checkpoints()[-1:]
                result = self.train(run, 2, settings)
                self.assertEqual(result.code, DONE, str(result))
                if newest:
                    self.assertIn(f"resumed from {newest[0]}", result.out)
                else:
                    self.assertNotIn("resumed from", result.out)
                self.assert_no_step_twice(run, STEPS)
                self.assert_same_run(run, whole)
                self.assertEqual(list(run.folder.glob("checkpoints/*.tmp-*")), [], "what was half saved is swept")
        print(f"  {left_half_saves} of the kills left half a save", flush=True)

    def test_damaged_newest_checkpoint_is_named_and_the_one_before_taken(self):
        def flip_in(name, share):
            def damage(folder):
                path = folder / name
                flip_byte(path, int(path.stat().st_size * share))
                return path
            return damage

        def cut(folder):
            path = folder / "rank-00000.safetensors"
            os.truncate(path, path.stat().st_size // 2)
            return path

        def remove(folder):
            path = folder / "rank-00001.safetensors"
            path.unlink()
            return path

        rows = {"a byte of a tensor": flip_in("rank-00001.safetensors", 0.7), "a file cut short": cut,
                "a byte of the index": flip_in("index.json", 0.5),
                "a byte of a header": flip_in("rank-00000.safetensors", 0.01), "a file is missing": remove}
        settings = {"checkpoint.interval": 10, "checkpoint.keep": 0}
        whole = self.undisturbed(2, settings)
        for name, damage in list(rows.items())[: None if SOAK else 3]:
            with self.subTest(name):
                run = self.copy_of(whole, "damaged")
                shutil.rmtree(run.folder / "checkpoints" / "step-00000040")
                damaged = damage(run.folder / "checkpoints" / "step-00000030")
                result = self.train(run, 2, settings)
                self.assertEqual(result.code, DONE, str(result))
                self.assertRegex(result.out, r"step-00000030 cannot be loaded: .*" + damaged.name)
                self.assertIn(f"resumed from {run.folder}/checkpoints/step-00000020", result.out)
                self.assert_no_step_twice(run, STEPS)
                self.assert_same_run(run, whole)

    def test_changed_config(self):
        #       what is changed: what the refusal names; None: the run goes on
        rows = {
            "optimizer.lr": (0.02, ["optimizer.lr", "0.01", "0.02"]),
            "model.ffn": (192, ["model.ffn", "128", "192"]),
            "run.seed": (7, ["run.seed", "1", "7"]),
            "train.global_batch_size": (16, ["train.global_batch_size", "8", "16"]),
            "train.seq_len": (32, ["train.seq_len", "64", "32"]),
            "train.precision": ("fp32", ["train.precision", "bf16", "fp32"]),
            "lr_schedule.steps": (50, ["lr_schedule.steps", "40", "50"]),
        }
        run = self.halved(2)
        before = run.content()
        for key, (value, texts) in rows.items():
            with self.subTest(key):
                self.assert_refused(self.train(run, 2, {key: value}), *texts, run.folder)
                self.assertEqual(run.content(), before)
        with self.subTest("all at once"):
            changed = {key: value for key, (value, _) in rows.items()}
            self.assert_refused(self.train(run, 2, changed), *rows)
            self.assertEqual(run.content(), before)
        with self.subTest("what may change"):
            allowed = {"checkpoint.interval": 7, "checkpoint.keep": 1, "metrics.interval": 1, "eval.interval": 3,
                       "comm.timeout_s": 100, "metrics.layer_grad_norms": "true", "run.time_limit_minutes": 60}
            result = self.train(run, 2, allowed)
            self.assertEqual(result.code, DONE, str(result))
            self.assertIn("checkpoint.keep was 3, is 1", result.out)
            self.assertEqual([folder.name for folder in run.checkpoints()], ["step-00000040"])
            self.assert_same_run(run, self.undisturbed(2))

    def test_more_steps(self):
        """A finished run has nothing to do; with train.steps raised it goes on, past the horizon at the last rate."""
        run = self.copy_of(self.undisturbed(2), "more")
        before = run.content()
        result = self.train(run, 2)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("nothing to do", result.out)
        # The resolved config names the folder, which this copy of a run has changed.
        self.assertEqual({**run.content(), "config.toml": ""}, {**before, "config.toml": ""})
        self.trained(run, 2, {"train.steps": 45})
        self.assert_no_step_twice(run, 45)
        self.assertEqual([line["lr"] for line in run.steps()[STEPS:]], [0.001] * 5)
        self.assert_same_run(run, self.trained(self.new_run("45 at once"), 2, {"train.steps": 45}))

    def test_weights_of_another_run(self):
        donor = self.halved(2)
        source = donor.checkpoints()[-1]
        run = self.new_run("loaded")
        settings = {"checkpoint.load": source, "train.steps": 3, "lr_schedule.warmup_steps": 2}
        result = self.train(run, 2, settings)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn(f"weights of {source}", result.out)
        self.assert_no_step_twice(run, 3)
        # Data and schedule start anew; the loss does not.
        self.assertLess(run.steps()[0]["loss"], donor.steps()[0]["loss"] - 0.3)
        self.assertEqual(run.steps()[0]["tokens"], donor.steps()[0]["tokens"])
        self.assertEqual(run.steps()[0]["lr"], 0.005)
        with self.subTest("a resume goes before it"):
            result = self.train(run, 2, {**settings, "train.steps": 5})
            self.assertEqual(result.code, DONE, str(result))
            self.assertNotIn("weights of", result.out)
            self.assert_no_step_twice(run, 5)

    def test_resume_switched_off(self):
        run = self.halved(2)
        before = run.content()
        self.assert_refused(self.train(run, 2, {"checkpoint.resume": "false"}), "checkpoint.resume", run.folder)
        self.assertEqual(run.content(), before)

    def test_checkpoint_is_plain_safetensors(self):
        """The format promised to other readers."""
        from safetensors import safe_open

        run = self.halved(2)
        index = json.loads((run.checkpoints()[-1] / "index.json").read_text())
        elements = {}
        for file in index["files"]:
            with safe_open(run.checkpoints()[-1] / file["name"], "np") as tensors:
                for key in tensors.keys():
                    name = key.split("@")[0]
                    elements[name] = elements.get(name, 0) + tensors.get_tensor(key).size
        wanted = {}
        for tensor in index["tensors"]:
            wanted[tensor["name"]] = 1
            for size in tensor["shape"]:
                wanted[tensor["name"]] *= size
        self.assertEqual(elements, wanted)
        self.assertEqual(sum(count for name, count in elements.items() if name.startswith("model.")), 106_816)


if __name__ == "__main__":
    main()
