"""What a run is measured by: held-out sets and multiple-choice questions, in training, after a resume, and by `trireme eval`."""

import json
import random
import shutil

from tensorboard.backend.event_processing import event_accumulator

import oracle_model
from harness import DONE, SEED, EndToEnd, main

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


class Evaluated(EndToEnd):
    def evaluated(self, *arguments):
        result = self.call("eval", *arguments, "--json")
        self.assertEqual(result.code, DONE, str(result))
        return [json.loads(line) for line in result.out.splitlines()]


class HeldOutSetsTest(Evaluated):
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


class ChoicesTest(Evaluated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.items = cls.draw_items(60)
        cls.file = cls.new_folder("questions") / "drawn.jsonl"
        cls.file.write_text("".join(json.dumps(item) + "\n\n" for item in cls.items))  # every second line is blank
        cls.settings = {**FIXED, "eval.choices": f"drawn={cls.file}"}

    @classmethod
    def draw_items(cls, count):
        """Questions of all kinds: empty, with white space at their end, of several alphabets, longer than the model's 64 tokens."""
        draw = random.Random(SEED)
        words = "the cat sat on a mat and dog ran home tree water quickly seven? yes! no, isn't Zürich наука 水 🙂 x1 42".split()

        def text(least, most):
            return " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))

        items = []
        for number in range(count):
            question = ["", text(1, 3), text(5, 9), text(60, 90)][number % 4] + draw.choice(["", "", " ", "\n", " \u3000\n", "?", ":"])
            choices = [text(1, draw.choice((1, 2, 6))) for _ in range(draw.randint(2, 5))]
            answer = draw.randrange(len(choices))
            forms = [answer]
            if choices[answer] not in "ABCDE":
                forms.append("ABCDE"[answer])
            if choices.count(choices[answer]) == 1:
                forms.append(choices[answer])
            items.append({"question": question, "choices": choices, "answer": draw.choice(forms), "index": answer})
        return items

    def scores(self, run, *arguments):
        """What `trireme eval --items` says: the lines of the questions, and the summary."""
        out = self.new_folder("items") / "items.jsonl"
        summary, = self.evaluated(run.folder, "--choices", f"drawn={self.file}", "--items", out, *arguments)
        return [json.loads(line) for line in out.read_text().splitlines()], summary

    def test_against_transformers(self):
        run = self.trained(self.new_run("fp32"), 1, self.settings)
        lines, summary = self.scores(run)
        model = oracle_model.load_model(run.checkpoints()[-1])
        encoding, end_of_text = oracle_model.load_tokenizer(run.folder / "tokenizer")
        self.assertEqual([line["line"] for line in lines], [2 * i + 1 for i in range(len(self.items))])
        right, right_by_bytes, cut = 0, 0, 0
        for item, line in zip(self.items, lines):
            expected, tokens = zip(*(oracle_model.score(model, encoding, end_of_text, item["question"], choice)
                                     for choice in item["choices"]))
            self.assertEqual(line["answer"], item["index"], item)
            self.assertEqual(line["tokens"], list(tokens), item)
            self.assertEqual(line["bytes"], [len(choice.encode()) for choice in item["choices"]], item)
            for ours, theirs in zip(line["scores"], expected, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-4, msg=item)
            by_bytes = [score / size for score, size in zip(expected, line["bytes"])]
            self.assertEqual(line["acc"], expected.index(max(expected)) == item["index"], item)
            self.assertEqual(line["acc_norm"], by_bytes.index(max(by_bytes)) == item["index"], item)
            right += line["acc"]
            right_by_bytes += line["acc_norm"]
            cut += len(encoding.encode_ordinary(item["question"])) + min(tokens) > 65
        self.assertGreater(cut, 5, "some questions are longer than the model")
        self.assertNotEqual(right, right_by_bytes, "the questions tell the two shares apart")
        self.assertEqual(summary["eval_acc"], right / len(self.items))
        self.assertEqual(summary["eval_acc_norm"], right_by_bytes / len(self.items))
        self.assertEqual(summary["eval_questions"], len(self.items))
        told = [line for line in run.lines() if "eval_acc/drawn" in line]
        self.assertEqual([line["step"] for line in told], [4, 8])
        self.assertEqual(told[-1], {"step": 8, "eval_acc/drawn": summary["eval_acc"], "eval_acc_norm/drawn": summary["eval_acc_norm"],
                                    "eval_questions/drawn": len(self.items)})
        self.assertEqual(self.evaluated(run.folder), [summary], "the run's own questions are what it is evaluated on")

    def test_in_training_and_after_a_resume(self):
        """One checkpoint, whose missing evaluation is made up for by 1, 2 and 3 workers: the same shares."""
        settings = {**self.settings, "train.global_batch_size": 12, "train.micro_batch_size": 2, "train.stop_after": 4,
                    "eval.sets": f"held={self.prepared('The dog ran home. ' * 99)}", "metrics.tensorboard": "true"}
        first = self.trained(self.new_run("first"), 1, {**settings, "eval.choices": "[]"})
        lines, summary = self.scores(first)
        for workers in (1, 2, 3):
            with self.subTest(f"{workers} workers"):
                run = self.new_run(f"{workers} workers")
                shutil.copytree(first.folder, run.folder)
                self.trained(run, workers, settings)
                self.assertEqual(list(evaluations(run, "held")), [(4, "held")])
                told = [(line["step"], line["eval_acc/drawn"], line["eval_acc_norm/drawn"]) for line in run.lines() if "eval_acc/drawn" in line]
                self.assertEqual(told, [(4, summary["eval_acc"], summary["eval_acc_norm"])])
                accumulator = event_accumulator.EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"scalars": 0})
                accumulator.Reload()
                for tag, key in (("eval/acc/drawn", "eval_acc"), ("eval/acc_norm/drawn", "eval_acc_norm")):
                    (event,) = accumulator.Scalars(tag)
                    self.assertEqual(event.step, 4)
                    self.assertAlmostEqual(event.value, summary[key], delta=1e-6)
        with self.subTest("trireme report"):
            self.assertEqual(self.call("report", run.folder).code, DONE)
            self.assertIn("<figcaption>Questions answered right: drawn <", (run.folder / "report.html").read_text())

    def test_refused(self):
        folder = self.new_folder("bad")
        bad, empty, packed = folder / "bad.jsonl", folder / "empty.jsonl", folder / "packed.jsonl.gz"
        good = '{"question": "Q", "choices": ["a", "b"], "answer": 0}\n'
        bad.write_text(good + "{\n" + good + '{"question": "Q", "choices": ["a", "b"], "answer": "C"}\n'
                       + '{"question": "Q", "choices": ["a", "' + "b " * 100 + '"], "answer": 0}\n')
        empty.write_text("\n")
        packed.write_bytes(b"\x1f\x8b")
        texts = ("6 problems", f"{bad}:2: this is no JSON object", f'{bad}:4: answer = "C"', f"{bad}:5: choice 1 has ", " 64; a shorter",
                 f"{empty} has no question", f"{packed} is packed", folder / "nowhere")
        files = {"bad": bad, "empty": empty, "packed": packed, "gone": folder / "nowhere", "good": self.file}
        run = self.new_run("bad questions")
        result = self.train(run, 2, {**FIXED, "eval.choices": json.dumps([f"{name}={path}" for name, path in files.items()])})
        self.assert_refused(result, *texts)
        self.assertEqual(run.checkpoints(), [])
        run = self.trained(self.new_run("good"), 1, {"train.steps": 1, "lr_schedule.warmup_steps": 0})
        items = folder / "items.jsonl"
        arguments = [part for name, path in files.items() for part in ("--choices", f"{name}={path}")]
        self.assert_refused(self.call("eval", run.folder, *arguments, "--items", items), *texts)
        self.assert_refused(self.call("eval", run.folder, "--data", self.held_out, "--items", items), "--items", "--choices")
        self.assert_refused(self.call("eval", run.folder, "--choices", self.file, "--choices", f"drawn={bad}"), "two", '"drawn"', "--choices NAME=FILE")
        self.assertFalse(items.exists())

    def test_where_the_scores_go(self):
        """Never over the questions, into a pipe as into a file, and what cannot be is told before anything is evaluated."""
        run = self.trained(self.new_run("good"), 1, {"train.steps": 1, "lr_schedule.warmup_steps": 0})
        folder = self.new_folder("where")
        questions = folder / "questions.jsonl"
        questions.write_text(self.file.read_text())
        before = questions.read_text()
        link = folder / "link"
        link.symlink_to(questions)
        for target, text in ((questions, "written over them"), (link, "written over them"), (folder, "is a folder"),
                             (folder / "none" / "x", "there is no folder"), ("", "name a file")):
            result = self.call("eval", run.folder, "--choices", questions, "--items", target)
            self.assert_refused(result, "--items", text)
            self.assertEqual(result.out, "")
        self.assertEqual(questions.read_text(), before)
        self.assert_refused(self.call("eval", run.folder, "--choices", "/dev/zero"), "/dev/zero is no file")
        piped = self.call("eval", run.folder, "--choices", questions, "--json", "--items", "/dev/stdout")
        self.assertEqual(piped.code, DONE, str(piped))
        self.assertEqual(sum('"scores"' in line for line in piped.out.splitlines()), len(self.items))
        self.assertEqual(sum('"eval_acc"' in line for line in piped.out.splitlines()), 1, "the results before them stay")


if __name__ == "__main__":
    main()
