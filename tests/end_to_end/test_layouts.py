"""The number of workers is not part of the result: the same global batch on 1 to 4 workers, with and without accumulation, gives
the same losses and gradient norms up to rounding; the same layout twice gives the same bits."""

from harness import SOAK, EndToEnd, main

STEPS = 20
# Learning that is tame enough for rounding to stay rounding: at configs/tiny.toml's rate small differences grow with each step.
BASE = {"train.steps": STEPS, "lr_schedule.steps": STEPS, "lr_schedule.warmup_steps": 5, "optimizer.lr": 1e-3,
        "train.global_batch_size": 12}

# Workers, micro batch, accumulation.
LAYOUTS = [(2, 6, 1), (3, 4, 1), (4, 3, 1), (2, 3, 2), (1, 4, 3), (1, 6, 2), (3, 2, 2)]

# Bounds of |loss - loss| and |norm - norm| / norm, and the layouts of a run that is not soak. fp64 shows that what is left in fp32
# is rounding and not a small fault.
PRECISIONS = {"fp32": (1e-6, 1e-5, LAYOUTS[:5]), "fp64": (1e-12, 1e-12, LAYOUTS[2:4])}

TWICE = [("fp32", 3, 2), ("bf16", 2, 6), ("fp32", 1, 6), ("bf16", 4, 3), ("fp64", 2, 3)]


class LayoutTest(EndToEnd):
    def settings(self, precision, micro):
        return {**BASE, "train.precision": precision, "train.micro_batch_size": micro}

    def test_same_losses_on_any_number_of_workers(self):
        for precision, (loss_bound, norm_bound, layouts) in PRECISIONS.items():
            alone = self.trained(self.new_run(f"{precision} 1"), 1, self.settings(precision, 12))
            self.assertEqual(len(alone.steps()), STEPS)
            self.assertLess(alone.steps()[-1]["loss"], alone.steps()[0]["loss"] - 0.1, "it must learn something")
            for workers, micro, accumulation in LAYOUTS if SOAK else layouts:
                name = f"{precision}, {workers} workers x {micro} x {accumulation}"
                with self.subTest(name):
                    self.assertEqual(workers * micro * accumulation, 12)
                    run = self.trained(self.new_run(name), workers, self.settings(precision, micro))
                    pairs = list(zip(alone.steps(), run.steps(), strict=True))
                    loss = max(abs(a["loss"] - b["loss"]) for a, b in pairs)
                    norm = max(abs(a["grad_norm"] - b["grad_norm"]) / a["grad_norm"] for a, b in pairs)
                    print(f"  {name}: losses within {loss:.1e}, norms within {norm:.1e}", flush=True)
                    self.assertLessEqual(loss, loss_bound)
                    self.assertLessEqual(norm, norm_bound)
                    self.assertEqual(alone.values("lr", "tokens"), run.values("lr", "tokens"))
                    self.assertEqual(alone.state()["loader"], run.state()["loader"])

    def test_same_layout_twice_is_the_same_to_the_bit(self):
        for precision, workers, micro in TWICE if SOAK else TWICE[:2]:
            with self.subTest(f"{precision}, {workers} workers x {micro}"):
                once, twice = (self.trained(self.new_run(f"{precision} {n}"), workers, self.settings(precision, micro))
                               for n in ("once", "twice"))
                self.assert_same_run(once, twice)

    def test_another_seed_is_another_run(self):
        """The digest can tell: without this, equal digests would say nothing."""
        one, other = (self.trained(self.new_run(f"seed {seed}"), 1, {**self.settings("fp32", 12), "train.steps": 2,
                                                                   "run.seed": seed}) for seed in (1, 2))
        self.assertNotEqual(self.digest(one).splitlines()[-1], self.digest(other).splitlines()[-1])


if __name__ == "__main__":
    main()
