"""Event files, read back by TensorBoard itself: the scalars of metrics.jsonl, each step once also after a resume."""

import pathlib

from tensorboard.backend.event_processing import event_accumulator

from harness import DONE, EndToEnd, main


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

    def test_off_unless_asked_for(self):
        run = self.trained(self.new_run("off"), 1, {"train.steps": 2, "lr_schedule.warmup_steps": 1})
        self.assertFalse((run.folder / "tensorboard").exists())


if __name__ == "__main__":
    main()
