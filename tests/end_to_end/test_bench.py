"""`bench ops` and `bench step`: every operation has its line, the sizes are those of configs/bench, the measured step is the
trainer's own, and a run's folder is left alone."""

import json
import statistics

from harness import CONFIG, DONE, PROJECT, EndToEnd, main

OPERATIONS = ["embedding backward"] + [f"{name} {way}" for name in ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "rotary",
              "attention") for way in ("forward", "backward")] + ["linear forward", "linear input gradient", "linear weight gradient"] + [
              f"{name} {way}" for name in ("swiglu", "gelu", "dropout") for way in ("forward", "backward")] + [
              "linear_cross_entropy forward + backward", "adamw", "sum_of_squares"]


class BenchTest(EndToEnd):
    def told(self, *arguments):
        result = self.call("bench", *arguments, "--json")
        self.assertEqual(result.code, DONE, str(result))
        return json.loads(result.out)

    def test_every_operation(self):
        told = self.told("ops", "--sizes", CONFIG, "--dtype", "bf16,fp32", "--seconds", "0.01")
        self.assertEqual([(row["dtype"], row["operation"]) for row in told["operations"]],
                         [(dtype, operation) for dtype in ("bf16", "fp32") for operation in OPERATIONS])
        for row in told["operations"]:
            self.assertGreater(row["bytes"], 0)
            self.assertGreaterEqual(row["median_s"], row["best_s"])
            roofline = max(row["bytes"] / told["memory_bytes_per_second"], row["flops"] / told["matmul_flops_per_second"][row["dtype"]])
            self.assertAlmostEqual(row["roofline_share"], roofline / row["best_s"], delta=1e-9 * row["roofline_share"])

    def test_named_sizes_are_the_configs(self):
        files = [str(PROJECT / "configs" / "bench" / f"{name}.toml") for name in ("llama-30m", "gpt2-124m", "llama-350m")]
        cheap = "rotary forward|attention forward|swiglu forward|rms_norm forward|sum"
        work = lambda sizes: [(row["operation"], row["shape"], row["flops"], row["bytes"])
                              for row in self.told("ops", "--sizes", ",".join(sizes), "--filter", cheap, "--seconds", "0.01")["operations"]]
        self.assertEqual(work(["30m", "124m", "350m"]), work(files))

    def test_the_step_is_the_trainers(self):
        run, settings = self.new_run("trained"), {"train.steps": 8, "train.precision": "fp32"}
        trained = self.trained(run, 1, settings, env=None)
        measured = self.new_run("measured")
        overrides = [word for key, value in {**settings, "run.dir": measured.folder, "data.path": self.data}.items() for word in ("--set", f"{key}={value}")]
        told = self.told("step", CONFIG, "--warmup-steps", "3", "--steps", "5", *overrides)
        self.assertFalse(told["random_tokens"])
        self.assertEqual((len(told["step_s"]), told["tokens_per_step"]), (5, 256))
        # The threads of the two may differ in number, and the sums of products with them.
        [loss] = [line["loss"] for line in trained.steps() if line["step"] == 8]
        self.assertAlmostEqual(told["loss"], loss, delta=1e-4 * loss)
        self.assertEqual(told["median_s"], statistics.median(told["step_s"]))
        self.assertEqual(told["p95_s"], max(told["step_s"]))
        self.assertEqual(told["system_allocations_per_step"], 0)
        self.assertFalse(measured.folder.exists())

    def test_memory_is_what_was_foretold(self):
        size = {"model.layers": 9, "model.hidden": 128, "model.heads": 4, "model.kv_heads": 2, "model.ffn": 512, "model.vocab": 2000,
                "model.max_seq_len": 256, "train.seq_len": 256, "train.micro_batch_size": 8, "train.global_batch_size": 16}
        rows = {"plain": {}, "selective": {"train.recompute": "selective"}, "full": {"train.recompute": "full"},
                "three together": {"train.recompute": "full", "train.recompute_blocks": 3},
                "fp32": {"train.precision": "fp32"}, "average": {"train.ema_decay": 0.99, "model.qk_norm": "true"},
                "gpt": {"model.architecture": "gpt", "model.kv_heads": 4}}
        kept = {}
        for name, changed in rows.items():
            with self.subTest(name):
                overrides = [word for key, value in {**size, "data.generator": "", "data.path": self.scratch / "nothing", **changed}.items()
                             for word in ("--set", f"{key}={value}")]
                told = self.told("memory", CONFIG, "--steps", "2", *overrides)
                foretold, at_peak = told["foretold"], told["at_peak"]
                for purpose in ("weights", "master weights", "gradients", "moments", "moving average"):
                    # Each parameter begins on a cache line of its own.
                    self.assertAlmostEqual(at_peak.get(purpose, 0), foretold.get(purpose, 0), delta=0.002 * foretold.get(purpose, 0), msg=purpose)
                self.assertAlmostEqual(sum(at_peak.values()), sum(foretold.values()), delta=0.03 * sum(foretold.values()), msg=f"{told}")
                self.assertEqual(told["system_allocations_per_step"], 0)
                kept[name] = told["kept_for_backward"]
                if changed.get("train.recompute") != "full":
                    self.assertAlmostEqual(kept[name], foretold["activations"], delta=0.01 * foretold["activations"])
        self.assertLess(kept["three together"], 0.5 * kept["full"])

    def test_memory_of_the_whole_process_is_what_was_foretold(self):
        # Large enough that tensors are most of it.
        told = self.told("memory", str(PROJECT / "configs" / "bench" / "llama-30m.toml"), "--steps", "2", "--set", "data.generator=",
                         "--set", f"data.path={self.scratch / 'nothing'}")
        self.assertGreater(told["libraries"], 5 << 20)
        self.assertGreater(told["files"], 20 << 20)
        self.assertEqual(told["process_foretold"], sum(told["foretold"].values()) + told["libraries"] + told["files"])
        self.assertAlmostEqual(told["peak_resident_bytes"], told["process_foretold"], delta=0.05 * told["process_foretold"], msg=f"{told}")
        # What sizes leave over serves others: the allocator takes hardly more of the system than tensors hold at their most.
        self.assertLess(told["reserved"], 1.02 * sum(told["at_peak"].values()))

    def test_random_tokens_where_there_is_no_data(self):
        told = self.told("step", CONFIG, "--steps", "4", "--set", f"data.path={self.new_folder('none') / 'nothing'}", "--set", "data.generator=",
                         "--set", "model.vocab=70000", "--set", "train.document_mask=true")
        self.assertTrue(told["random_tokens"])
        self.assertEqual(len(told["step_s"]), 4)
        self.assertAlmostEqual(told["loss"], 11.16, delta=1)  # ln 70000: nothing can be learned

    def test_refused(self):
        rows = [(["ops", "--filter", "["], "--filter ["), (["ops", "--filter", "nothing like it", "--sizes", CONFIG], "matches no operation"),
                (["ops", "--sizes", "30m,huge,nowhere.toml"], "--sizes huge"), (["ops", "--sizes", "30m,huge,nowhere.toml"], "nowhere.toml"),
                (["step", CONFIG, "--set", "run.device=cuda"], 'run.device = "cuda"'), (["step", CONFIG, "--steps", "0"], "--steps"),
                (["step", "nowhere.toml"], "nowhere.toml"), (["memory", "nowhere.toml"], "nowhere.toml"),
                (["memory", CONFIG, "--set", "memory.caching_allocator=false"], "it is the allocator that counts")]
        for words, text in rows:
            with self.subTest(words):
                self.assert_refused(self.call("bench", *words), text)


if __name__ == "__main__":
    main()
