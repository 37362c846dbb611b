"""`trireme convert --to hf`: what transformers makes of the folder. Equal logits, equal token ids, and the same held-out bits
per byte computed by transformers from the text alone; for every architecture, sharded and tied, from weights and average."""

import json
import math
import os
import pathlib

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from harness import BAD_INPUT, BINARY, DONE, SOAK, EndToEnd, main

DUMP = pathlib.Path(os.environ.get("TRIREME_DUMP", BINARY.parent / "tests" / "trireme_dump"))
SEQ = 64
# What text may hold: contractions, numbers, several scripts, spaces of all kinds, a special token spelled out.
TEXT = ("I'll say it's 1234567 times\n\n  the   GOOD'S worth,\tisn't it?\r\n Größe, naïve café — Ωμέγα, Привет мир, 日本語の文章。 "
        "مرحبا بالعالم 👩‍👩‍👧 e\u0301 \u00a0\u2003x <|endoftext|> {\"a\": [1, 2.5e-3]}  \n    def f(x):\n        return x**2\n") * 3

CASES = {
    "gpt": {"model.architecture": "gpt", "model.kv_heads": 4, "model.dropout": 0.1},
    "gpt free head": {"model.architecture": "gpt", "model.kv_heads": 4, "model.tied": "false"},
    "llama": {"model.rope_scaling.factor": 4, "model.rope_scaling.original_max_seq_len": 32, "model.head_dim": 24},
    "llama free head": {"model.tied": "false", "model.rope_scaling.type": "ntk", "model.rope_scaling.factor": 2},
    "linear": {"model.rope_scaling.type": "linear", "model.rope_scaling.factor": 2},
    "yarn": {"model.rope_scaling.type": "yarn", "model.rope_scaling.factor": 4, "model.rope_scaling.original_max_seq_len": 32},
    "qwen2": {"model.qkv_bias": "true", "model.norm_eps": 1e-6},
    "qwen2 window": {"model.qkv_bias": "true", "model.sliding_window": 16, "model.tied": "false"},
    "qwen3": {"model.qk_norm": "true", "model.head_dim": 32, "model.rope_theta": 1000000},
    "qwen3 window": {"model.qk_norm": "true", "model.sliding_window": 16},
    "mistral": {"model.sliding_window": 16, "model.tied": "false"},
}
QUICK = ("gpt", "llama", "yarn", "qwen2", "qwen3", "mistral")  # one of each name table and of each form of config.json
ARCHITECTURES = {"gpt": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "linear": "LlamaForCausalLM", "yarn": "LlamaForCausalLM",
                 "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "mistral": "MistralForCausalLM"}


class ConvertTest(EndToEnd):
    def run_for(self, name, settings=()):
        return self.trained(self.new_run(name), 1, {"train.precision": "fp32", "train.steps": 8, "lr_schedule.steps": 8,
                                                    "lr_schedule.warmup_steps": 2, "data.eval_path": self.held_out,
                                                    "eval.interval": 0, **dict(settings)})

    def converted(self, run, *arguments):
        out = self.new_folder("converted") / "hf"
        result = self.call("convert", run.folder, out, "--to", "hf", *arguments)
        self.assertEqual(result.code, DONE, str(result))
        return out

    def dump(self, *arguments):
        result = self.call(*arguments, program=(DUMP,))
        self.assertEqual(result.code, DONE, str(result))
        return result.out

    def our_logits(self, run, rows):
        folder = self.new_folder("logits")
        (folder / "ids.json").write_text(json.dumps(rows.tolist()))
        self.dump("logits", run.folder, folder / "ids.json", folder / "out.bin")
        return torch.frombuffer(bytearray((folder / "out.bin").read_bytes()), dtype=torch.float32).view(*rows.shape, -1)

    def stream(self):
        return json.loads(self.dump("tokens", self.held_out))

    def bits_per_byte(self, model, tokenizer):
        """From the text of the documents alone, in windows as docs/data.md has them."""
        stream, documents = self.stream(), [[]]
        for token in stream:
            documents.append([]) if token == tokenizer.eos_token_id else documents[-1].append(token)
        texts = [tokenizer.decode(document) for document in documents[:-1]]
        self.assertEqual(documents[-1], [])
        ids = [tokenizer.eos_token_id]
        for text in texts:
            ids += tokenizer.encode(text, add_special_tokens=False) + [tokenizer.eos_token_id]
        self.assertEqual(ids[1:], stream, "the ids of the data are those of the exported tokenizer")
        total = 0.0
        with torch.no_grad():
            for first in range(0, len(ids) - 1, SEQ):
                window = torch.tensor(ids[first:first + SEQ + 1])
                logits = model(window[None, :-1]).logits[0]
                total += torch.nn.functional.cross_entropy(logits.double(), window[1:], reduction="sum").item()
        return total / math.log(2) / sum(len(text.encode()) for text in texts)

    def test_transformers_computes_the_same(self):
        for name, settings in CASES.items():
            if not SOAK and name not in QUICK:
                continue
            with self.subTest(name):
                run = self.run_for(name, settings)
                out = self.converted(run, "--dtype", "fp32")
                model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
                model.eval()
                self.assertEqual(type(model).__name__, ARCHITECTURES[name.split()[0]])
                # transformers 5 gives every qwen2 folder Qwen's own pattern; the program says so.
                tokenizer = (PreTrainedTokenizerFast if name.startswith("qwen2") else AutoTokenizer).from_pretrained(out)
                torch.manual_seed(1)
                rows = torch.randint(0, 512, (3, SEQ))
                with torch.no_grad():
                    theirs = model(rows).logits
                self.assertLess((theirs - self.our_logits(run, rows)).abs().max().item(), 1e-4)
                told = json.loads(self.call("eval", run.folder, "--json").out)
                self.assertAlmostEqual(self.bits_per_byte(model, tokenizer) / told["eval_bits_per_byte"], 1, delta=1e-6)
                file = self.new_folder("text") / "text.txt"
                file.write_text(TEXT)
                ours = json.loads(self.dump("ids", run.folder, file))
                # Where text spells a special token out, transformers takes it for one unless told not to.
                self.assertEqual(tokenizer.encode(TEXT, add_special_tokens=False, split_special_tokens=True), ours)
                self.assertEqual(tokenizer.decode(ours), TEXT)

    def test_generates_from_the_folder(self):
        run = self.run_for("generate")
        out = self.converted(run, "--dtype", "fp32")
        model, tokenizer = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32), AutoTokenizer.from_pretrained(out)
        prompt = tokenizer.encode(tokenizer.bos_token + "The", return_tensors="pt")
        theirs = model.generate(prompt, max_new_tokens=20, do_sample=False)
        ours = self.call("generate", run.folder, "--prompt", "The", "--temperature", 0, "--max-tokens", 20)
        self.assertEqual(tokenizer.decode(theirs[0], skip_special_tokens=True), ours.out.rstrip("\n"))

    def test_shards_and_types(self):
        run = self.run_for("shards")
        whole = self.converted(run, "--dtype", "fp32")
        cut = self.converted(run, "--dtype", "fp32", "--shard-gb", 0.0001)
        index = json.loads((cut / "model.safetensors.index.json").read_text())
        files = sorted(file.name for file in cut.glob("*.safetensors"))
        self.assertGreater(len(files), 2)
        self.assertEqual(files, sorted(set(index["weight_map"].values())))
        self.assertEqual(files[0], f"model-00001-of-{len(files):05d}.safetensors")
        with safe_open(whole / "model.safetensors", "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        self.assertEqual(index["metadata"]["total_size"], sum(t.nbytes for t in tensors.values()))
        for name, shard in index["weight_map"].items():
            with safe_open(cut / shard, "pt") as file:
                self.assertTrue(torch.equal(file.get_tensor(name), tensors[name]), name)
        for dtype, torch_dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            out = self.converted(run, "--dtype", dtype)
            with safe_open(out / "model.safetensors", "pt") as file:
                for name in file.keys():
                    self.assertTrue(torch.equal(file.get_tensor(name), tensors[name].to(torch_dtype)), f"{dtype} {name}")
            self.assertEqual(AutoModelForCausalLM.from_pretrained(out).dtype, torch_dtype)

    def test_average_of_the_weights(self):
        # With the mask, documents begin anew: training and `eval` have to agree on that too.
        run = self.run_for("ema", {"train.ema_decay": 0.5, "eval.interval": 8, "train.document_mask": "true"})
        told = {key: line[key] for line in run.lines() for key in line if key.startswith("eval_bits_per_byte")}
        self.assertEqual(set(told), {"eval_bits_per_byte", "eval_bits_per_byte/@ema"})
        for key, arguments in (("eval_bits_per_byte", ()), ("eval_bits_per_byte/@ema", ("--ema",))):
            again = json.loads(self.call("eval", run.folder, "--json", *arguments).out)["eval_bits_per_byte"]
            self.assertAlmostEqual(again / told[key], 1, delta=1e-6)
        self.assertNotAlmostEqual(told["eval_bits_per_byte"], told["eval_bits_per_byte/@ema"], delta=1e-4)
        without = self.run_for("no mask", {"train.ema_decay": 0.5, "eval.interval": 8, "checkpoint.load": run.folder,
                                           "optimizer.lr": 1e-30})
        self.assertNotAlmostEqual(without.lines()[-2]["eval_bits_per_byte"] / told["eval_bits_per_byte"], 1, delta=1e-5,
                                  msg="the mask has to reach evaluation")
        weights, average = self.converted(run, "--dtype", "fp32"), self.converted(run, "--dtype", "fp32", "--ema")
        with safe_open(next(run.checkpoints()[-1].glob("*.safetensors")), "pt") as file:
            expected = {prefix: file.get_tensor(f"{prefix}norm.weight") for prefix in ("model.", "ema.")}
        for folder, prefix in ((weights, "model."), (average, "ema.")):
            with safe_open(folder / "model.safetensors", "pt") as file:
                self.assertTrue(torch.equal(file.get_tensor("model.norm.weight"), expected[prefix]))
        self.assertFalse(torch.equal(expected["model."], expected["ema."]))

    def test_refusals(self):
        run = self.run_for("refusals")
        full = self.new_folder("full")
        (full / "mine.txt").write_text("precious")
        self.assert_refused(self.call("convert", run.folder, full), full, "not empty")
        self.assertEqual((full / "mine.txt").read_text(), "precious")
        self.assert_refused(self.call("convert", run.folder, full / "mine.txt"), "is a file")
        self.assert_refused(self.call("convert", run.folder, self.new_folder("o") / "x", "--ema"), "train.ema_decay")
        self.assert_refused(self.call("convert", self.new_folder("empty"), self.new_folder("o") / "x"), "is not a checkpoint")
        both = self.run_for("both", {"model.qkv_bias": "true", "model.qk_norm": "true"})
        # A folder that is there is filled, behind a link too, with the rights that it has; what a kill left is named.
        mine = self.new_folder("mine")
        mine.chmod(0o700)
        link = self.new_folder("links") / "link"
        link.symlink_to(mine)
        result = self.call("convert", run.folder, link)
        self.assertEqual(result.code, DONE, str(result))
        self.assertEqual(mine.stat().st_mode & 0o777, 0o700)
        self.assertEqual({path.name for path in mine.iterdir()}, {"config.json", "generation_config.json", "model.safetensors",
                                                                  "tokenizer.json", "tokenizer_config.json"})
        killed = self.new_folder("killed")
        (killed / ".partial-abc").mkdir()
        self.assert_refused(self.call("convert", run.folder, killed), ".partial-abc", "did not come to its end")
        self.assert_refused(self.call("convert", run.folder, ""), "OUT is empty")
        self.assert_refused(self.call("convert", run.folder, self.new_folder("o") / "x", "--shard-gb", "nan"), "--shard-gb")
        out = self.new_folder("o") / "x"
        self.assert_refused(self.call("convert", both.folder, out), "model.qkv_bias", "model.qk_norm", "Qwen3ForCausalLM")
        self.assertFalse(out.exists())
        self.assertEqual(self.call("convert", run.folder, out, "--to", "gguf").code, BAD_INPUT)


if __name__ == "__main__":
    main()
