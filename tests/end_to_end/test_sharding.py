"""What data ranks divide changes memory, and nothing that is learned: equal bits at every level, checkpoints that go from one to
another, evaluation, averages and histograms of divided weights, and the arithmetic of memory."""

import json

from harness import SOAK, BAD_INPUT, EndToEnd, main
from tensorboard.backend.event_processing import event_accumulator

LEVELS = ("none", "optimizer", "gradients", "parameters")
STEPS = 12
# Without clipping nothing depends on the norm, whose sum goes over shards: then all levels have the same bits.
BASE = {"train.steps": STEPS, "lr_schedule.steps": STEPS, "lr_schedule.warmup_steps": 3, "train.global_batch_size": 12,
        "train.clip_grad_norm": 0, "checkpoint.interval": 6, "checkpoint.keep": 0}


class ShardingTest(EndToEnd):
    def sharded(self, name, level, workers, settings=()):
        return self.trained(self.new_run(name), workers, {**BASE, "parallel.shard": level, **dict(settings)})

    def test_the_same_bits_at_every_level(self):
        rows = [("bf16", 2, 6, {}), ("fp32", 3, 4, {}), ("bf16", 3, 4, {"train.gradient_dtype": "bf16"}),
                ("bf16", 3, 4, {"train.recompute": "full", "parallel.prefetch": 0}),
                ("fp32", 2, 3, {"parallel.reduce_every_micro_batch": "false", "model.tied": "false"}),
                ("fp16", 2, 6, {"model.architecture": "gpt", "model.kv_heads": 4}), ("fp64", 5, 1, {"train.global_batch_size": 5})]
        for precision, workers, micro, more in rows if SOAK else (rows[0], rows[2]):
            settings = {"train.precision": precision, "train.micro_batch_size": micro}
            settings |= {key: value for key, value in more.items() if not key.startswith("parallel.")}
            expected = self.sharded(f"{precision} {workers} none", "none", workers, settings)
            self.assertLess(expected.steps()[-1]["loss"], expected.steps()[0]["loss"] - 0.1, "it must learn something")
            for level in LEVELS[1:]:
                with self.subTest(f"{precision}, {workers} workers, {level}, {more}"):
                    only = {"parallel.prefetch": ("parameters",), "parallel.reduce_every_micro_batch": ("gradients", "parameters")}
                    own = {key: value for key, value in more.items() if level in only.get(key, ())}
                    run = self.sharded(f"{precision} {workers} {level}", level, workers, {**settings, **own})
                    self.assertEqual(self.digest(run), self.digest(expected))
                    self.assertEqual(run.values("loss"), expected.values("loss"))
                    for (_, a), (_, b) in zip(run.values("grad_norm"), expected.values("grad_norm"), strict=True):
                        self.assertAlmostEqual(a / b, 1, delta=1e-12)

    def test_any_number_of_workers_has_the_same_bits(self):
        """run.reproducible = "any_workers": bf16, clipped, with z-loss and dropout, at every level and with copies of shards."""
        settings = {"run.reproducible": "any_workers", "train.global_batch_size": 16, "train.micro_batch_size": 2, "train.precision": "bf16",
                    "train.clip_grad_norm": 0.3, "train.z_loss": 1e-3, "model.dropout": 0.1, "train.steps": 20, "lr_schedule.steps": 20}
        expected = self.sharded("any 1", "none", 1, settings)
        keys = ("loss", "grad_norm", "z_loss")
        rows = [(level, workers, {}) for level in LEVELS for workers in (1, 2, 4, 8)]
        rows += [(level, 4, {"parallel.shard_size": 2}) for level in LEVELS[1:]]
        rows += [("parameters", 2, {"parallel.reduce_every_micro_batch": "false"}), ("parameters", 4, {"train.recompute": "full"})]
        sample = [("none", 8, {}), ("gradients", 2, {}), ("parameters", 4, {"parallel.shard_size": 2})]
        for level, workers, more in rows if SOAK else sample:
            with self.subTest(f"{level}, {workers} workers, {more}"):
                run = self.sharded(f"any {level} {workers}", level, workers, {**settings, **more})
                self.assertEqual(self.digest(run), self.digest(expected))
                self.assertEqual(run.values(*keys), expected.values(*keys))
        # Without the option the number of workers shows: otherwise equal digests would say nothing.
        self.assertNotEqual(self.digest(self.sharded("not any", "none", 2, {**settings, "run.reproducible": "layout"})), self.digest(expected))
        refused = {**BASE, **settings, "train.global_batch_size": 12, "train.micro_batch_size": 1}
        self.assert_refused(self.train(self.new_run("refused"), 3, refused), "3 data ranks is not a power of two; 2 or 4 are",
                            "12 micro-batches", "8 or 16 are")

    def test_exchanges_are_as_many_as_the_formulas_say(self):
        """Of a step, from the flight record: operations on the shard axis and what they move."""
        layers, workers = 5, 3
        settings = {"model.layers": layers, "train.micro_batch_size": 1, "train.steps": 4, "comm.flight_recorder": 10000,
                    "checkpoint.interval": 0, "train.global_batch_size": 6, "train.clip_grad_norm": 1}
        m, units = 2, layers + 1  # micro-batches; a tied embedding and head are one unit
        total = 512 * 64 + 64 + layers * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128 + 2 * 64)
        block = (total - 512 * 64 - 64) // layers
        rows = []
        for level, prefetch, more in [("optimizer", 1, {}), ("gradients", 1, {}), ("parameters", 0, {}), ("parameters", 1, {}), ("parameters", 3, {}),
                                      ("parameters", 1, {"train.recompute": "full"}),
                                      ("parameters", 1, {"parallel.reduce_every_micro_batch": "false"}),
                                      ("parameters", 1, {"parallel.reshard_after_forward": "false"})]:
            kept = layers if "parallel.reshard_after_forward" in more else min(prefetch + 1, layers)
            gathers = units + (2 * m - 1) * (layers - kept) if level == "parameters" else units
            gathered = total + (2 * m - 1) * (layers - kept) * block if level == "parameters" else total
            reduces = units if level == "optimizer" or "parallel.reduce_every_micro_batch" in more else m * units
            rows.append((level, prefetch, more, gathers, gathered, reduces))
        for level, prefetch, more, gathers, gathered, reduces in rows if SOAK else rows[::2] + rows[3:4]:
            with self.subTest(f"{level}, prefetch {prefetch}, {more}"):
                ahead = {"parallel.prefetch": prefetch} if level == "parameters" else {}
                run = self.sharded(f"count {level} {prefetch}", level, workers, {**settings, **ahead, **more})
                told = json.loads(self.call("inspect", run.folder, "--flight", "--json", "--last", 10000).out)
                calls = [call for call in told["ranks"][0]["operations"] if call["axis"] == "shard"]
                # Each step has one sum of squares.
                ends = [i for i, call in enumerate(calls) if call["operation"] == "all_reduce"]
                self.assertEqual(len(ends), 4)
                step = calls[ends[1] + 1 : ends[2]]
                count = {name: [call for call in step if call["operation"] == name] for name in ("all_gather", "reduce_scatter")}
                self.assertEqual(len(count["all_gather"]) + len(count["reduce_scatter"]), len(step))
                self.assertEqual(len(count["all_gather"]), gathers)
                self.assertEqual(len(count["reduce_scatter"]), reduces)
                self.assertEqual(sum(call["elements"] for call in count["all_gather"]), gathered)
                self.assertEqual(sum(call["bytes"] for call in count["all_gather"]), 2 * gathered)
                self.assertEqual(sum(call["bytes"] for call in count["reduce_scatter"]), 4 * total * reduces // units)

    def test_copies_of_shards(self):
        """Sums go over the ranks of a copy first: other bits than in one row, the same numbers."""
        settings = {"train.precision": "fp32", "train.micro_batch_size": 3}
        expected = self.sharded("4 none", "none", 4, settings)
        for level in LEVELS[1:]:
            with self.subTest(level):
                run = self.sharded(f"2 x 2 {level}", level, 4, {**settings, "parallel.shard_size": 2})
                for (_, a), (_, b) in zip(run.values("loss"), expected.values("loss"), strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-5)
                again = self.sharded(f"2 x 2 {level} again", level, 4, {**settings, "parallel.shard_size": 2})
                self.assert_same_run(run, again)

    def test_a_checkpoint_goes_on_at_any_level(self):
        """What a checkpoint holds says nothing of the level: from each to each, the weights are read back to the bit."""
        settings = {"train.precision": "fp32", "train.micro_batch_size": 1, "train.stop_after": 6, "train.ema_decay": 0.9}
        expected = self.trained(self.new_run("whole"), 1, {**BASE, **settings, "train.stop_after": 0})
        path = [("parameters", 3), ("optimizer", 2), ("none", 1), ("gradients", 4), ("parameters", 2)]
        run = self.new_run("journey")
        digests = []
        for i, (level, workers) in enumerate(path):
            more = {"parallel.shard": level, "train.stop_after": 2 * (i + 1), "checkpoint.interval": 1}
            self.trained(run, workers, {**BASE, **settings, **more})
            digests.append(self.digest(run))
        self.trained(run, 3, {**BASE, **settings, "parallel.shard": "gradients", "train.stop_after": 0})
        self.assertEqual(len(set(digests)), len(digests))
        self.assert_no_step_twice(run, STEPS)
        for (_, a), (_, b) in zip(run.values("loss"), expected.values("loss"), strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5)

    def test_saving_again_at_another_level_changes_no_bit(self):
        """A learning rate of nearly nothing and no decay: the second step leaves weights as they were, so digests of them tell whether
        they came and went whole."""
        still = {"optimizer.lr": 1e-30, "optimizer.weight_decay": 0, "train.precision": "fp32", "train.micro_batch_size": 2,
                 "train.steps": 2, "lr_schedule.steps": 2, "lr_schedule.warmup_steps": 0, "checkpoint.interval": 1}
        run = self.new_run("still")
        for stop, (level, workers) in enumerate([("parameters", 3), ("optimizer", 2)], 1):
            self.trained(run, workers, {**BASE, **still, "parallel.shard": level, "train.stop_after": stop})
        first, second = (self.call("inspect", folder, "--digest").out.splitlines() for folder in run.checkpoints())
        weights = [[line for line in lines if " model." in line] for lines in (first, second)]
        self.assertGreater(len(weights[0]), 10)
        self.assertEqual(*weights)

    def test_evaluation_averages_and_histograms(self):
        """Of divided weights, as of whole ones; held-out windows that do not fill all ranks, and choices that do not either."""
        choices = self.new_folder("choices") / "choices.jsonl"
        choices.write_text('{"question": "The cat", "choices": [" sat", " ran away"], "answer": 0}\n' * 3)
        settings = {"train.precision": "fp32", "train.micro_batch_size": 4, "train.ema_decay": 0.8, "data.eval_path": self.held_out,
                    "eval.interval": 4, "eval.tokens": 700, "metrics.tensorboard": "true", "metrics.histograms": 4,
                    "eval.choices": f'["c={choices}"]'}
        runs = {level: self.sharded(f"eval {level}", level, 3, settings) for level in LEVELS}
        expected = [line for line in runs["none"].lines() if "loss" not in line]
        self.assertGreater(len(expected), 8)
        told = {level: self.histograms(run) for level, run in runs.items()}
        self.assertGreater(len(told["none"]), 20)
        for level in LEVELS[1:]:
            with self.subTest(level):
                self.assertEqual([{k: v for k, v in line.items() if not k.endswith("seconds")} for line in runs[level].lines() if "loss" not in line],
                                 [{k: v for k, v in line.items() if not k.endswith("seconds")} for line in expected])
                self.assertEqual(told[level], told["none"])

    def histograms(self, run):
        accumulator = event_accumulator.EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"histograms": 0})
        accumulator.Reload()
        return {tag: [(event.step, event.histogram_value) for event in accumulator.Histograms(tag)]
                for tag in accumulator.Tags()["histograms"]}

    def test_memory_follows_the_arithmetic(self):
        """Bytes a parameter of each purpose with gradients in fp32 and in bf16, as the ZeRO paper counts them (arXiv:1910.02054, section 3), but for
        weights, which exist once for all workers of a machine and count in equal parts."""
        hidden, ffn, layers, vocab = 192, 512, 8, 515  # rows that two and three workers do not divide evenly
        block = 4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden
        ends = vocab * hidden + hidden
        total = layers * block + ends
        shape = {"model.hidden": hidden, "model.ffn": ffn, "model.layers": layers, "model.vocab": vocab, "model.heads": 4,
                 "model.kv_heads": 4, "train.micro_batch_size": 1, "train.global_batch_size": 6, "train.steps": 3, "train.seq_len": 16,
                 "lr_schedule.steps": 3, "lr_schedule.warmup_steps": 1}
        for workers in (2, 3):
            n = workers
            narrow = ("train.gradient_dtype", "bf16")
            rows = {
                ("none", ()): (2 * total, 4 * total, 4 * total, 8 * total),
                ("optimizer", ()): (2 * total / n, 4 * total / n, 4 * total, 8 * total / n),
                ("gradients", ()): (2 * total / n, 4 * total / n, 4 * total / n + 4 * (2 * block + ends), 8 * total / n),
                ("parameters", ()): (2 * (2 * block + ends) / n, 4 * total / n, 4 * total / n + 4 * (2 * block + ends), 8 * total / n),
                ("parameters", (("parallel.prefetch", 3),)):
                    (2 * (4 * block + ends) / n, 4 * total / n, 4 * total / n + 4 * (2 * block + ends), 8 * total / n),
                ("parameters", (("parallel.reshard_after_forward", "false"), ("parallel.reduce_every_micro_batch", "false"))):
                    (2 * total / n, 4 * total / n, 4 * total, 8 * total / n),
                **{(level, (("optimizer.in_backward", "true"), ("train.global_batch_size", n))): (
                    2 * total if level == "none" else 2 * (2 * block + ends) / n if level == "parameters" else 2 * total / n,
                    4 * total if level == "none" else 4 * total / n, 4 * (2 * block + ends), 8 * total if level == "none" else 8 * total / n)
                   for level in LEVELS},
                ("none", (narrow,)): (2 * total, 4 * total, 2 * total, 8 * total),
                ("optimizer", (narrow,)): (2 * total / n, 4 * total / n, 2 * total, 8 * total / n),
                ("gradients", (narrow,)): (2 * total / n, 4 * total / n, 2 * total / n + 2 * (2 * block + ends), 8 * total / n),
                ("parameters", (narrow,)): (2 * (2 * block + ends) / n, 4 * total / n, 2 * total / n + 2 * (2 * block + ends), 8 * total / n),
            }
            # Of each number of workers the other half.
            for (level, more), expected in rows.items() if SOAK else list(rows.items())[workers % 2 :: 2]:
                with self.subTest(f"{workers} workers, {level}, {more}"):
                    run = self.sharded(f"memory {level} {workers}", level, workers, {**shape, **dict(more)})
                    told = run.steps()[-1]["memory"]["at_peak"]
                    for purpose, bytes_expected in zip(("weights", "master weights", "gradients", "moments"), expected):
                        self.assertAlmostEqual(told[purpose] / bytes_expected, 1, delta=0.03, msg=f"{purpose}: {told}")

    def test_memory_of_tiers(self):
        """With the optimizer's state on the host or on disk, the device has none of it but pieces, and the report says so."""
        state, piece = 12, 1 << 20  # bytes of a parameter's masters and moments; elements
        shape = {"model.hidden": 256, "model.ffn": 1024, "model.layers": 8, "model.vocab": 515, "model.heads": 4, "model.kv_heads": 4,
                 "train.micro_batch_size": 3, "train.seq_len": 16, "train.steps": 3, "lr_schedule.steps": 3, "lr_schedule.warmup_steps": 1}
        total = 8 * (4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256) + 515 * 256 + 256
        for level, workers in [("none", 1), ("parameters", 2)]:
            with self.subTest(level):
                runs, told = {}, {}
                for place in ("none", "host", "disk"):
                    run = self.new_run(f"{place} {level}")
                    result = self.train(run, workers, {**BASE, **shape, "parallel.shard": level, "optimizer.offload": place})
                    self.assertEqual(result.code, 0, result)
                    runs[place], told[place] = run.steps()[-1]["memory"], result.out
                held = total // workers
                host = runs["host"]["host_at_peak"]
                self.assertEqual(list(host), ["master weights", "moments"])
                self.assertAlmostEqual(sum(host.values()), state * held + piece * 6, delta=0.01 * state * held)
                self.assertNotIn("host_at_peak", runs["none"])
                copy = 2 * held if level == "parameters" else 0  # of the shard, to gather from
                for place, pieces in (("host", 0), ("disk", piece * 4 * 3 * 3)):
                    memory = runs[place]
                    device = memory["peak_device"] if place == "host" else sum(memory["at_peak"].values())
                    self.assertAlmostEqual(device, sum(runs["none"]["at_peak"].values()) - state * held + copy + pieces, delta=0.02 * state * held)
                self.assertRegex(told["host"], r"master weights +\S+ MiB +4 bytes a parameter.*, in the host's tier")
                self.assertRegex(told["disk"], r"master weights +0 B +.* on disk: 4 bytes a parameter")

    def test_updates_in_backward(self):
        """The same bits as updates after it, at every level and with copies of shards; and what does not go with it."""
        settings = {"train.precision": "bf16", "optimizer.in_backward": "true"}
        rows = [(level, 2, {"train.micro_batch_size": 6}) for level in LEVELS]
        rows += [(level, 4, {"train.micro_batch_size": 3, "parallel.shard_size": 2}) for level in LEVELS[1:]]
        rows += [("parameters", 2, {"train.micro_batch_size": 6, "train.recompute": "full", "train.frozen": '["blocks.1.*", "norm.weight"]',
                                    "train.ema_decay": 0.9, "model.tied": "false", "train.gradient_dtype": "bf16"}),
                 ("none", 1, {"train.micro_batch_size": 12, "model.architecture": "gpt", "model.kv_heads": 4})]
        for i, (level, workers, more) in enumerate(rows):
            if not SOAK and i not in (0, 3, 5, 7):
                continue
            with self.subTest(f"{level}, {workers} workers, {more}"):
                expected = self.sharded(f"after {i}", level, workers, {**settings, **more, "optimizer.in_backward": "false"})
                run = self.sharded(f"in {i}", level, workers, {**settings, **more})
                self.assertEqual(self.digest(run), self.digest(expected))
                self.assertEqual(run.values("loss", "grad_norm"), expected.values("loss", "grad_norm"))
        run = self.new_run("refused")
        self.assert_refused(self.train(run, 2, {**BASE, **settings, "train.micro_batch_size": 2}), "12 has 3 micro-batches of 2",
                            "4 works, or train.micro_batch_size = 6")
        self.assert_refused(self.train(run, 2, {**BASE, **settings, "train.micro_batch_size": 6, "train.clip_grad_norm": 1, "spike_guard.factor": 5,
                                                "metrics.histograms": 5, "metrics.tensorboard": "true", "train.precision": "fp16"}),
                            "train.clip_grad_norm = 0 goes with it", "spike_guard.factor = 5 skips", "skips steps to find its loss scale",
                            "metrics.histograms = 5")
        broken = self.new_run("broken")
        self.assert_refused(self.train(broken, 2, {**BASE, **settings, "train.micro_batch_size": 6, "optimizer.lr": 1e30, "checkpoint.interval": 1,
                                                   "parallel.shard": "parameters", "lr_schedule.warmup_steps": 0}),
                            "is not finite in step 2, and with optimizer.in_backward = true", "step-00000001", "optimizer.in_backward = false")

    def test_state_elsewhere(self):
        """The same bits as in memory; a run goes on either way; nothing stays in the folder."""
        settings = {"train.micro_batch_size": 3, "train.precision": "bf16", "train.clip_grad_norm": 1, "train.ema_decay": 0.9}
        folder = self.new_folder("offload")
        disk, host = {"optimizer.offload": "disk", "run.offload_dir": folder}, {"optimizer.offload": "host"}
        for level, workers, more in [("none", 1, {}), ("optimizer", 2, {}), ("parameters", 2, {"train.precision": "fp32"}),
                                     ("parameters", 4, {"parallel.reshard_after_forward": 2, "train.frozen": '["blocks.0.*"]'}),
                                     ("parameters", 4, {"parallel.shard_size": 2, "optimizer.in_backward": "true", "train.clip_grad_norm": 0})]:
            with self.subTest(level):
                expected = self.sharded(f"memory {level}", level, workers, {**settings, **more})
                for place, offload in [("disk", disk), ("host", host)]:
                    run = self.sharded(f"{place} {level} {workers}", level, workers, {**settings, **more, **offload})
                    self.assertEqual(self.digest(run), self.digest(expected))
                    self.assertEqual(run.values("loss", "grad_norm"), expected.values("loss", "grad_norm"))
                    self.assertEqual(list(folder.iterdir()), [])
        # From disk to memory and back, at another level; at last to the host.
        settings |= {"train.clip_grad_norm": 0, "train.micro_batch_size": 6}  # no bit depends on the level then
        whole = self.sharded("whole", "none", 2, settings)
        run = self.new_run("journey")
        for stop, level, more in [(4, "parameters", disk), (8, "none", {}), (10, "optimizer", disk), (12, "parameters", host)]:
            self.trained(run, 2, {**BASE, **settings, **more, "parallel.shard": level, "train.stop_after": stop})
        self.assertEqual(self.digest(run), self.digest(whole))
        self.assertEqual(run.values("loss"), whole.values("loss"))
        self.assert_refused(self.train(self.new_run("rounded"), 2, {**BASE, **settings, **host, "parallel.shard": "parameters",
                                                                    "parallel.quantize_weights": "int8"}), '"none" for either works')
        file = self.new_folder("a") / "file"
        file.write_text("")
        result = self.train(self.new_run("nowhere"), 1, {**BASE, **settings, **disk, "run.offload_dir": file})
        self.assertIn(str(file), result.err)
        self.assertNotEqual(result.code, 0)

    def test_frozen_weights_stay(self):
        frozen = '["embed.weight", "blocks.0.attention.*"]'
        settings = {"train.frozen": frozen, "train.precision": "fp32", "train.micro_batch_size": 3, "train.ema_decay": 0.9}
        run = self.sharded("frozen", "parameters", 2, settings)
        first, last = ({line.split()[1]: line.split()[0] for line in self.call("inspect", folder, "--digest").out.splitlines()[:-1]}
                       for folder in run.checkpoints()[:: len(run.checkpoints()) - 1])
        still = {name for name in first if name.startswith("model.") and first[name] == last[name]}
        self.assertEqual(still, {f"model.{name}" for name in ("embed.weight", *(f"blocks.0.attention.{part}.weight" for part in
                                                                                 ("q", "k", "v", "output")))})
        self.assertNotIn("optimizer.exp_avg.embed.weight", last)
        self.assertIn("ema.embed.weight", last)
        # It goes on elsewhere, and not with other weights frozen.
        self.trained(run, 3, {**BASE, **settings, "train.micro_batch_size": 4, "parallel.shard": "optimizer", "train.steps": STEPS + 2})
        self.assert_refused(self.train(run, 2, {**BASE, **settings, "train.frozen": "[]"}), "train.frozen was")
        self.assert_refused(self.train(self.new_run("none"), 1, {**BASE, "train.micro_batch_size": 3, "train.frozen":
                                                                 '["nowhere*", "blocks.*.q.weight", "blocks.0.attention.q.weight"]'}),
                            '"nowhere*" matches no weight', "blocks.0.attention.q.weight but not blocks.0.attention.k.weight")
        self.assert_refused(self.train(self.new_run("all"), 1, {**BASE, "train.micro_batch_size": 3, "train.frozen": "*"}), "nothing to train")

    def test_the_mesh_is_told(self):
        settings = {**BASE, "train.micro_batch_size": 3, "parallel.shard": "optimizer", "parallel.shard_size": 2}
        for order, table in [("default", ["shard            2       1  [0 1] [2 3]", "replicate        2       2  [0 2] [1 3]"]),
                             ('["replicate", "shard", "tensor", "context", "pipeline", "expert"]',
                              ["replicate        2       1  [0 1] [2 3]", "shard            2       2  [0 2] [1 3]"])]:
            result = self.train(self.new_run("mesh"), 4, {**settings, "parallel.order": order})
            self.assertEqual(result.code, 0, result)
            for line in table:
                self.assertIn(line, result.out)
        self.assert_refused(self.train(self.new_run("order"), 4, {**settings, "parallel.order": "fast"}), "parallel.order = [fast]")

    def test_what_cannot_be_divided_is_refused(self):
        run = self.new_run("refused")
        self.assert_refused(self.train(run, 6, {**BASE, "parallel.shard": "parameters", "parallel.shard_size": 4, "train.micro_batch_size": 1}),
                            "parallel.shard_size = 4", "3 or 6 work")
        self.assert_refused(self.train(run, 2, {**BASE, "parallel.shard_size": 2, "parallel.prefetch": 3, "train.micro_batch_size": 1}),
                            "parallel.shard_size = 2", "parallel.prefetch = 3", code=BAD_INPUT)


if __name__ == "__main__":
    main()
