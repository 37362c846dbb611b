"""What a run is measured by: several held-out sets, in training, after a resume, and by `trireme eval`."""

import json

from tensorboard.backend.event_processing import event_accumulator

from harness import DONE, EndToEnd, main

NUMBERS = ("eval_loss", "eval_bits_per_byte", "eval_tokens", "eval_bytes")
FIXED = {"train.global_batch_size": 8, "train.micro_batch_size": 4, "train.precision": "fp32", "eval.interval": 4,
         "checkpoint.interval": 4, "train.steps": 8}


def evaluations(run, *names):
    """{(step, name): {number: value}} of the held-out sets; a set told twice at a step is an error."""
    found = {}
    for line in run.lines():
        for name in names:
            keys = [f"{number}/{name}" if name else number for number in NUMBERS]
            if keys[0] in line:
                assert list(line) == ["step", *keys], line
                assert (line["step"], name) not in found, f"{name} twice at step {line['step']}"
                found[line["step"], name] = {number: line[key] for number, key in zip(NUMBERS, keys)}
    return found


class HeldOutSetsTest(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.short = cls.prepared("The cat sat on the mat, and the dog lay beside it. " * 40)
        cls.sets = json.dumps([f"same={cls.held_out}", f"short={cls.short}"])
        cls.settings = {**FIXED, "data.eval_path": cls.held_out, "eval.sets": cls.sets}

    def test_each_set_at_each_interval(self):
        runs = {workers: self.trained(self.new_run(f"{workers} workers"), workers, {**self.settings, "metrics.tensorboard": "true"})
                for workers in (1, 2)}
        told = {workers: evaluations(run, "", "same", "short") for workers, run in runs.items()}
        for workers, run in runs.items():
            self.assertEqual(list(told[workers]), [(step, name) for step in (4, 8) for name in ("", "same", "short")])
            for step in (4, 8):
                self.assertEqual(told[workers][step, "same"], told[workers][step, ""])
                self.assertNotEqual(told[workers][step, "short"]["eval_loss"], told[workers][step, ""]["eval_loss"])
            accumulator = event_accumulator.EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"scalars": 0})
            accumulator.Reload()
            for tag, name, number in (("eval/loss", "", "eval_loss"), ("eval/loss/short", "short", "eval_loss"),
                                      ("eval/bits_per_byte/short", "short", "eval_bits_per_byte")):
                events = accumulator.Scalars(tag)
                self.assertEqual([event.step for event in events], [4, 8])
                for event in events:
                    self.assertAlmostEqual(event.value, told[workers][event.step, name][number], delta=1e-5, msg=tag)
        for key, numbers in told[1].items():
            for number, value in numbers.items():
                self.assertAlmostEqual(told[2][key][number] / value, 1, delta=1e-5, msg=f"{key} {number}, 1 and 2 workers")

        run = runs[1]
        with self.subTest("trireme eval, of the run"):
            lines = self.evaluated(run.folder)
            self.assertEqual([line.get("name", "") for line in lines], ["", "same", "short"])
            self.assert_same_numbers(lines, [told[1][8, name] for name in ("", "same", "short")])
        with self.subTest("trireme eval --data"):
            lines = self.evaluated(run.folder, "--data", self.short, "--data", f"mine={self.held_out}")
            self.assertEqual([(line["data"], line.get("name")) for line in lines], [(str(self.short), None), (str(self.held_out), "mine")])
            self.assert_same_numbers(lines, [told[1][8, "short"], told[1][8, ""]])
        with self.subTest("trireme eval, as text"):
            result = self.call("eval", run.folder)
            self.assertEqual(result.out.count("bits per byte"), 3, str(result))
            self.assertIn(f" on short={self.short}\n", result.out)
        with self.subTest("trireme report"):
            self.assertEqual(self.call("report", run.folder).code, DONE)
            page = (run.folder / "report.html").read_text()
            for title in ("Held-out text <", "Held-out text: same <", "Held-out text: short <"):
                self.assertIn(f"<figcaption>{title}", page)

    def evaluated(self, *arguments):
        result = self.call("eval", *arguments, "--json")
        self.assertEqual(result.code, DONE, str(result))
        return [json.loads(line) for line in result.out.splitlines()]

    def assert_same_numbers(self, lines, expected):
        self.assertEqual(len(lines), len(expected))
        for line, numbers in zip(lines, expected):
            for number, value in numbers.items():
                self.assertAlmostEqual(line[number] / value, 1, delta=1e-6, msg=f"{line} {number}")

    def test_a_resumed_run_makes_up_for_the_sets_that_are_missing_and_no_other(self):
        run = self.trained(self.new_run("missing"), 2, {**self.settings, "train.stop_after": 4})
        whole = evaluations(run, "", "same", "short")
        metrics = run.folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text("".join(line for line in lines if "eval_loss/short" not in line))
        self.assertEqual(len(evaluations(run, "", "same", "short")), 2)
        # A set that was not there before is missing too.
        sets = json.dumps([*json.loads(self.sets), f"new={self.short}"])
        self.trained(run, 2, {**self.settings, "eval.sets": sets, "train.stop_after": 5})
        told = evaluations(run, "", "same", "short", "new")
        self.assertEqual(told, {**whole, (4, "new"): whole[4, "short"]})

    def test_no_main_set(self):
        run = self.trained(self.new_run("no main set"), 1, {**FIXED, "eval.sets": f"short={self.short}", "train.steps": 4})
        self.assertEqual(list(evaluations(run, "", "short")), [(4, "short")])

    def test_refused(self):
        other = self.scratch / "other" / "train"
        self.assertEqual(self.train(self.new_run("other"), 1, {"train.steps": 1, "lr_schedule.warmup_steps": 0, "data.path": other,
                                                               "model.vocab": 300}).code, DONE)
        nowhere = self.scratch / "nowhere"
        run = self.new_run("refused")
        sets = json.dumps([f"a={other}", f"b={self.short}", f"c={nowhere}"])
        result = self.train(run, 2, {**FIXED, "eval.sets": sets})
        self.assert_refused(result, "2 problems", f"a={other} of eval.sets was prepared with another tokenizer", self.data,
                            f"c={nowhere} of eval.sets: there is no prepared data")
        self.assertEqual(run.checkpoints(), [])
        result = self.train(run, 2, {**FIXED, "eval.sets": json.dumps([str(other), "a=x", "a=y", f"b={self.data}"])})
        self.assert_refused(result, "3 problems", "expected NAME=PATH", 'the name "a" twice', "which is data.path")
        good = self.trained(self.new_run("good"), 1, {"train.steps": 1, "lr_schedule.warmup_steps": 0})
        self.assert_refused(self.call("eval", good.folder), "eval.sets", "--data")
        self.assert_refused(self.call("eval", good.folder, "--data", other, "--data", nowhere, "--data", self.short), "2 problems",
                            f"{other} was prepared with the tokenizer", nowhere)


if __name__ == "__main__":
    main()
