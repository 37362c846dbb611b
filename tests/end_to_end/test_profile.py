"""`train --profile`: the times add up, the FLOPs are those of the model, the trace is one that Perfetto opens, and nothing that is
learned changes."""

import json
import pathlib
import tempfile

import torch

from harness import BAD_INPUT, DONE, EndToEnd, main

# configs/tiny.toml
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, SEQ, MICRO = 2, 64, 4, 2, 16, 128, 512, 64, 4
QUERY, KEY_VALUE = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
BLOCK_WEIGHTS = LAYERS * (HIDDEN * (QUERY + 2 * KEY_VALUE) + QUERY * HIDDEN + 3 * HIDDEN * FFN)
# Forward FLOPs of a token: two a weight, and four a feature of every pair that attention sees.
BLOCKS = 2 * BLOCK_WEIGHTS + 4 * LAYERS * QUERY * (SEQ + 1) / 2
HEAD = 2 * VOCAB * HIDDEN
NORMS = 2 * (2 * LAYERS + 1) * HIDDEN


class ProfileTest(EndToEnd):
    def profiled(self, run, workers, settings=(), profile=("--profile",), first=4, steps=3):
        result = self.start(*self.train_arguments(run, workers, {"train.steps": 10, **dict(settings)}), *profile).wait()
        self.assertEqual(result.code, DONE, str(result))
        profiles = [json.loads((run.folder / "profile" / f"profile-rank{rank}.json").read_text()) for rank in range(workers)]
        for rank, profile in enumerate(profiles):
            self.assertEqual((profile["rank"], profile["ranks"]), (rank, workers))
            self.assertEqual(profile["steps"], list(range(first, first + steps)))
            self.assertEqual(sum(row["self_ns"] for row in profile["operations"]) + sum(profile["other_ns"].values()), profile["total_ns"])
            self.assertEqual(sum(profile["step_ns"]), profile["total_ns"])
            self.assertEqual(profile["flops"], sum(row["flops"] for row in profile["operations"]))
            self.assertTrue(all(row["self_ns"] >= 0 and row["calls"] > 0 for row in profile["operations"]))
        self.assertIn(f"Profile of steps {first} to {first + steps - 1} on rank 0 of {workers}", result.out)
        return profiles

    def trace(self, run, rank):
        return json.loads((run.folder / "profile" / f"trace-rank{rank}.json").read_text())["traceEvents"]

    def assert_nested(self, events):
        """Of each thread: an event lies within the one around it, or after it."""
        for thread in {event["tid"] for event in events}:
            around = []
            # In whole nanoseconds: a microsecond's fraction is no exact float.
            spans = [(round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000), e["name"]) for e in events if e["tid"] == thread]
            for begin, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
                while around and around[-1][0] <= begin:
                    around.pop()
                self.assertTrue(not around or end <= around[-1][0], f"{name} ends after {around[-1:]}, which is around it")
                around.append((end, name))

    def test_flops_are_those_of_the_model(self):
        # Full recomputation repeats the forward pass of the blocks: a third more of their part. Selective repeats no product.
        rows = {"none": 3 * (BLOCKS + HEAD), "selective": 3 * (BLOCKS + HEAD), "full": 4 * BLOCKS + 3 * HEAD}
        for recompute, a_token in rows.items():
            for precision in ("bf16", "fp32"):  # tiles of our own, and ATen's attention
                with self.subTest(f"{recompute}, {precision}"):
                    run = self.new_run("flops")
                    [profile] = self.profiled(run, 1, {"train.recompute": recompute, "train.precision": precision})
                    tokens = 3 * MICRO * SEQ
                    self.assertEqual(profile["flops"], tokens * a_token)
                    self.assertEqual(profile["model_flops"], tokens * 3 * (BLOCKS + HEAD + NORMS))
                    phases = {row["phase"] for row in profile["operations"]}
                    self.assertEqual("recompute" in phases, recompute != "none")
                    again = {row["name"] for row in profile["operations"] if row["phase"] == "recompute"}
                    self.assertEqual({"linear", "attention"} <= again, recompute == "full")

    def test_every_operation_has_its_row(self):
        [profile] = self.profiled(self.new_run("rows"), 1)
        rows = {(row["name"], row["of"], row["phase"]): row for row in profile["operations"] if not row["name"].startswith("aten::")}
        a_block, tokens = 3 * LAYERS, MICRO * SEQ
        for role, (rows_out, cols_in) in {"attention.q+k+v": (QUERY + 2 * KEY_VALUE, HIDDEN), "attention.output": (HIDDEN, QUERY),
                                          "feed_forward.gate+up": (2 * FFN, HIDDEN), "feed_forward.down": (HIDDEN, FFN)}.items():
            shapes = {"linear": [tokens, rows_out, cols_in], "linear, input gradient": [tokens, cols_in, rows_out],
                      "linear, weight gradient": [rows_out, cols_in, tokens]}
            for name, shape in shapes.items():
                row = rows[name, role, "forward" if name == "linear" else "backward"]
                self.assertEqual((row["calls"], row["shape"], row["flops"]), (a_block, shape, a_block * 2 * tokens * rows_out * cols_in))
        for name, of, phase, calls in [("head", "", "forward", 3), ("head, input gradient", "", "backward", 3),
                                       ("head, weight gradient", "", "backward", 3), ("cross-entropy", "", "forward", 3),
                                       ("attention", "", "forward", a_block), ("attention", "", "backward", a_block),
                                       ("rotary", "", "forward", a_block), ("rotary", "", "backward", a_block),
                                       ("rms_norm", "attention_norm", "forward", a_block), ("rms_norm", "feed_forward_norm", "backward", a_block),
                                       ("rms_norm", "norm", "forward", 3), ("swiglu", "", "forward", a_block), ("swiglu", "", "backward", a_block),
                                       ("residual add", "", "forward", a_block), ("embedding", "embed", "forward", 3),
                                       ("embedding", "embed", "backward", 3), ("wait for data", "", "data", 3)]:
            self.assertEqual(rows[name, of, phase]["calls"], calls, (name, of, phase))
        weights = VOCAB * HIDDEN + BLOCK_WEIGHTS + NORMS // 2
        # Master, two moments: read and written; gradient read; bf16 copy written.
        self.assertEqual(rows["adamw", "", "optimizer"]["bytes"], 3 * weights * (3 * 8 + 4 + 2))
        self.assertEqual(rows["sum of squares", "", "optimizer"]["bytes"], 3 * weights * 4)
        self.assertEqual(rows["swiglu", "", "forward"]["bytes"], a_block * tokens * 3 * FFN * 2)

    def test_numbers_stay_and_the_trace_nests(self):
        for workers in (1, 2):
            with self.subTest(workers=workers):
                plain, run = self.new_run("plain"), self.new_run("profiled")
                settings = {"train.steps": 10, "train.global_batch_size": 8, "train.micro_batch_size": 2}
                self.trained(plain, workers, settings)
                self.profiled(run, workers, settings, ("--profile", "2"), steps=2)
                self.assert_same_run(plain, run)
                self.assertEqual(len(list((run.folder / "profile").iterdir())), 2 * workers)
                for rank in range(workers):
                    told = self.trace(run, rank)
                    self.assertEqual({event["pid"] for event in told}, {rank})
                    self.assertEqual({event["ph"] for event in told}, {"X", "M"})
                    named = {event["tid"]: event["args"]["name"] for event in told if event["name"] == "thread_name"}
                    events = [event for event in told if event["ph"] == "X"]
                    self.assertEqual({event["tid"] for event in events} - set(named), set())
                    self.assertLessEqual({"step", "loader"}, set(named.values()))
                    self.assert_nested(events)
                    self.assertLessEqual({"forward", "backward", "optimizer", "communication", "data"}, {event["cat"] for event in events})
                    self.assertIn("linear blocks.1.attention.output.weight", {event["name"] for event in events})
                if workers == 2:  # one clock: the steps of both ranks are at the same time
                    spans = [[e for e in self.trace(run, rank) if e["name"] == "step 4"][0] for rank in range(2)]
                    self.assertLess(max(span["ts"] for span in spans), min(span["ts"] + span["dur"] for span in spans))

    def test_trace_has_the_form_of_torchs(self):
        run = self.new_run("form")
        self.profiled(run, 1)
        with torch.profiler.profile() as profiler:
            torch.mm(torch.ones(8, 8), torch.ones(8, 8))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            theirs = json.loads(path.read_text())["traceEvents"]
        types = lambda event: {key: float if isinstance(value, (int, float)) else type(value) for key, value in event.items()}
        [expected] = [types(event) for event in theirs if event["ph"] == "X" and event["name"] == "aten::mm"]
        for event in self.trace(run, 0):
            if event["ph"] == "X":
                self.assertEqual(types(event), expected)
        process = [event for event in theirs if event["name"] == "process_name"][0]
        self.assertLessEqual({"ph", "pid", "name", "args"}, set(process) & set(self.trace(run, 0)[0]))

    def test_a_resumed_run_counts_from_where_it_goes_on(self):
        run = self.new_run("resumed")
        self.trained(run, 2, {"train.steps": 20, "train.stop_after": 10})
        older = run.folder / "profile" / "trace-rank7.json"
        older.parent.mkdir()
        older.write_text("of eight workers")
        self.profiled(run, 1, {"train.steps": 20, "train.global_batch_size": 8}, ("--profile", "2", "--set", "profile.warmup_steps=1"), first=12, steps=2)
        self.assertFalse(older.exists())

    def test_a_run_that_ends_early_says_so(self):
        run = self.new_run("early")
        self.trained(run, 1, {"train.steps": 20, "train.stop_after": 16})
        result = self.start(*self.train_arguments(run, 1, {"train.steps": 20}), "--profile", "5").wait()
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("1 of the 5 steps of its profile", result.out)
        self.assertIn("Profile of step 20", result.out)

    def test_without_it_nothing_is_written(self):
        self.assertFalse((self.trained(self.new_run("off"), 1, {"train.steps": 5}).folder / "profile").exists())

    def test_refused(self):
        run = self.new_run("refused")
        rows = [(["--profile", "-1"], "-1"), (["--profile", "many"], "expected a number of steps, found many"),
                (["--profile", "1001"], "profile.steps"), (["--profile", "9"], "profile.steps = 9 after profile.warmup_steps = 3 need 12 steps"),
                (["--set", "profile.warmup_steps=-1"], "profile.warmup_steps"),
                (["--profile", "--set", "run.device=cuda"], 'run.device = "cuda"')]
        for words, text in rows:
            with self.subTest(words):
                self.assert_refused(self.start(*self.train_arguments(run, 1, {"train.steps": 10}), *words).wait(), text)
        self.assertFalse(run.folder.exists())


if __name__ == "__main__":
    main()
