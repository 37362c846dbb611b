"""Event files, read back by TensorBoard itself: the scalars of metrics.jsonl, each step once also after a resume."""

import pathlib

import numpy as np
from safetensors.torch import load_file
from tensorboard.backend.event_processing import event_accumulator

import oracle_model
from harness import EndToEnd, main


class TensorBoardTest(EndToEnd):
    SCALARS = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "train/tokens": "tokens",
               "speed/tokens_per_second": "tokens_per_second", "speed/step_time_s": "step_time_s",
               "memory/peak_bytes": "peak_memory_bytes"}

    def read(self, run):
        accumulator = event_accumulator.EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"scalars": 0})
        accumulator.Reload()
        return accumulator

    def compare(self, run):
        accumulator = self.read(run)
        for tag, key in self.SCALARS.items():
            with self.subTest(tag):
                told = [(event.step, event.value) for event in accumulator.Scalars(tag)]
                expected = [(line["step"], line[key]) for line in run.steps()]
                self.assertEqual([step for step, _ in told], [step for step, _ in expected])
                for (step, a), (_, b) in zip(told, expected):
                    self.assertAlmostEqual(a / b if b else a, 1 if b else 0, delta=1e-6, msg=f"{tag} at step {step}")
        evaluations = [(line["step"], line["eval_bits_per_byte"]) for line in run.lines() if "eval_loss" in line]
        told = [(event.step, event.value) for event in accumulator.Scalars("eval/bits_per_byte")]
        self.assertEqual([step for step, _ in told], [step for step, _ in evaluations])
        for (_, a), (_, b) in zip(told, evaluations):
            self.assertAlmostEqual(a, b, delta=1e-5)

    def test_scalars_also_after_a_resume(self):
        settings = {"metrics.tensorboard": "true", "metrics.interval": 1, "metrics.layer_grad_norms": "true",
                    "data.eval_path": self.held_out, "eval.interval": 4, "checkpoint.interval": 4, "train.steps": 10,
                    "train.global_batch_size": 8, "train.micro_batch_size": 4}
        run = self.trained(self.new_run("tensorboard"), 2, {**settings, "train.stop_after": 6})
        self.compare(run)
        layers = {tag for tag in self.read(run).Tags()["scalars"] if tag.startswith("layer_grad_norm/")}
        self.assertEqual(layers, {f"layer_grad_norm/{name}" for name in run.steps()[0]["layer_grad_norms"]})
        # Steps 5 and 6 are told again by the run that goes on from step 4.
        for step in (5, 6):
            for checkpoint in run.folder.glob(f"checkpoints/step-{step:08d}"):
                checkpoint.rename(self.new_folder("away") / checkpoint.name)
        run = self.trained(run, 1, settings)
        self.assertEqual([line["step"] for line in run.steps()], list(range(1, 11)))
        self.assertEqual(len(list(pathlib.Path(run.folder / "tensorboard").iterdir())), 2)
        self.compare(run)

    def test_histograms(self):
        """Of every second step: weights those of the step's checkpoint, gradients as layer_grad_norms and the optimizer have them."""
        settings = {"metrics.tensorboard": "true", "metrics.histograms": 2, "metrics.interval": 1, "metrics.layer_grad_norms": "true",
                    "checkpoint.interval": 1, "checkpoint.keep": 0, "train.steps": 4, "train.global_batch_size": 8,
                    "lr_schedule.warmup_steps": 1, "train.clip_grad_norm": 0.01, "train.stop_after": 3}
        run = self.trained(self.new_run("histograms"), 1, settings)
        # Step 4 is told after a resume, once.
        run = self.trained(run, 1, {**settings, "train.stop_after": 4})
        accumulator = event_accumulator.EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"histograms": 0})
        accumulator.Reload()
        names = [name.removeprefix("model.") for name in oracle_model.weights(run.checkpoints()[-1])]
        self.assertGreater(len(names), 10)
        self.assertEqual(sorted(accumulator.Tags()["histograms"]), sorted(f"{kind}/{name}" for name in names for kind in ("weights", "gradients")))
        for name in names:
            events = accumulator.Histograms(f"weights/{name}")
            self.assertEqual([event.step for event in events], [2, 4])
            for event in events:
                checkpoint = run.folder / "checkpoints" / f"step-{event.step:08d}"
                values = oracle_model.weights(checkpoint)[f"model.{name}"].double().flatten().numpy()
                self.compare_histogram(event.histogram_value, values, f"{name} after step {event.step}")
        beta1 = 0.9
        for step in (2, 4):
            moments = [self.exp_avg(run.folder / "checkpoints" / f"step-{at:08d}") for at in (step - 1, step)]
            line = run.steps()[step - 1]
            clip = min(1, 0.01 / (line["grad_norm"] + 1e-6))
            self.assertLess(clip, 0.5, "clipping tells gradients before it from those after it")
            squares = 0
            for name in names:
                event, = [event for event in accumulator.Histograms(f"gradients/{name}") if event.step == step]
                value = event.histogram_value
                gradient = (moments[1][name] - beta1 * moments[0][name]) / (1 - beta1) / clip
                for what, ours, theirs in (("min", value.min, gradient.min()), ("max", value.max, gradient.max())):
                    self.assertAlmostEqual(ours, theirs, delta=1e-4 * np.abs(gradient).max(), msg=f"{what} of {name} at step {step}")
                self.assertEqual(value.num, gradient.size)
                self.assertEqual(sum(value.bucket), value.num)
                self.assertAlmostEqual(value.sum_squares / (gradient @ gradient), 1, delta=1e-4, msg=name)
                squares += value.sum_squares
            self.assertAlmostEqual(squares ** 0.5 / line["grad_norm"], 1, delta=1e-6)
        with self.subTest("only on request"):
            run = self.trained(self.new_run("none"), 1, {"train.steps": 2, "lr_schedule.warmup_steps": 1, "metrics.tensorboard": "true"})
            self.assertEqual(self.read(run).Tags()["histograms"], [])
        with self.subTest("not without TensorBoard"):
            self.assert_refused(self.train(self.new_run("refused"), 1, {"metrics.histograms": 2}), "metrics.histograms = 2", "metrics.tensorboard = true")

    def exp_avg(self, checkpoint):
        tensors = {}
        for path in checkpoint.glob("rank-*.safetensors"):
            tensors.update(load_file(path))
        prefix = "optimizer.exp_avg."
        return {name.removeprefix(prefix): tensor.double().flatten().numpy() for name, tensor in tensors.items() if name.startswith(prefix)}

    def compare_histogram(self, told, values, message):
        self.assertEqual(told.num, values.size, message)
        self.assertEqual((told.min, told.max), (values.min(), values.max()), message)
        self.assertAlmostEqual(told.sum, values.sum(), delta=1e-12 * np.abs(values).sum(), msg=message)
        self.assertAlmostEqual(told.sum_squares, values @ values, delta=1e-12 * (values @ values), msg=message)
        edges, limit = [], 1e-12
        while limit < 1e20:
            edges.append(limit)
            limit *= 1.1
        edges = [-edge for edge in reversed(edges)] + [0.0] + edges
        counts, _ = np.histogram(values, edges)
        filled = np.flatnonzero(counts)
        first, last = filled[0], filled[-1]
        self.assertEqual(list(told.bucket), list(counts[first:last + 1]), message)
        self.assertEqual(list(told.bucket_limit), edges[first + 1:last + 2], message)

    def test_off_unless_asked_for(self):
        run = self.trained(self.new_run("off"), 1, {"train.steps": 2, "lr_schedule.warmup_steps": 1})
        self.assertFalse((run.folder / "tensorboard").exists())


if __name__ == "__main__":
    main()
