"""What a user may get wrong, and what a disk may do to files: each ends with one message that names the thing, and harms nothing."""

import json
import math
import os
import shutil
import struct
import subprocess

import xxhash
from harness import CONFIG, DONE, EndToEnd, main

SHARD = "shard-00000.tokens"
FIXED = {"train.global_batch_size": 8, "checkpoint.interval": 10, "train.precision": "fp32"}


def flip_byte(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0x01
    path.write_bytes(content)


def document_of_byte(shard, position):
    """Index and name of the document whose tokens hold the byte. Layout: src/data/shard.h."""
    content = shard.read_bytes()
    id_bytes, = struct.unpack_from("<I", content, 12)
    documents, _, table, names = struct.unpack_from("<4Q", content, 32)
    token = (position - 128) // id_bytes
    firsts = [struct.unpack_from("<Q", content, table + 72 * i)[0] for i in range(documents)]
    index = max(i for i, first in enumerate(firsts) if first <= token)
    name = content[names + struct.unpack_from("<Q", content, table + 72 * index + 64)[0]:]
    return index, name[:name.index(b"\0")].decode()


def poison(checkpoint, tensor, value):
    """Writes `value` into a tensor and makes every checksum hold again, as a bug that saved it would have."""
    index = json.loads((checkpoint / "index.json").read_text())
    for file in index["files"]:
        path = checkpoint / file["name"]
        content = bytearray(path.read_bytes())
        begin = 8 + struct.unpack_from("<Q", content)[0]
        header = json.loads(content[8:begin])
        if tensor not in header:
            continue
        first, last = header[tensor]["data_offsets"]
        data = memoryview(content)[begin + first:begin + last]
        old = xxhash.xxh3_128_hexdigest(data)
        struct.pack_into("<f", data, 4 * 5, value)
        new = xxhash.xxh3_128_hexdigest(data)
        data.release()
        assert content[:begin].count(old.encode()) == 1, "the checksum that the page of the format describes"
        content[:begin] = content[:begin].replace(old.encode(), new.encode())
        file["header_xxh3_128"] = xxhash.xxh3_128_hexdigest(bytes(content[:begin]))
        path.write_bytes(content)
        index.pop("checksum")
        index["checksum"] = xxhash.xxh3_128_hexdigest(json.dumps(index, sort_keys=True, separators=(",", ":"),
                                                                 ensure_ascii=False).encode())
        (checkpoint / "index.json").write_text(json.dumps(index))
        return
    raise AssertionError(f"{tensor} is in no file whole")


class BadInputTest(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.good = cls.new_run("good")
        result = cls.train(cls.good, 1, {**FIXED, "train.stop_after": 20})
        assert result.code == DONE, str(result)
        # Other text, another tokenizer.
        cls.other = cls.scratch / "other" / "train"
        result = cls.train(cls.new_run("other"), 1, {"train.steps": 5, "data.path": cls.other, "model.vocab": 300})
        assert result.code == DONE, str(result)

    def copy_of(self, run):
        copy = self.new_run("copy")
        shutil.copytree(run.folder, copy.folder)
        return copy

    def copy_of_data(self):
        folder = self.new_folder("data") / "train"
        shutil.copytree(self.data, folder)
        return folder

    def tmpfs(self, size, name):
        """A small disk of its own; only root can have one."""
        folder = self.new_folder(name)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"a small disk needs the right to mount: {done.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", folder], check=True)
        return folder

    def remount(self, folder, options):
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)

    # -- config and command line -----------------------------------------------------------------------------------------

    def test_config(self):
        """Found before anything is started or written."""
        #       workers, settings, what the message names
        rows = {
            "sequence longer than the model's": (1, {"train.seq_len": 128}, ["train.seq_len = 128", "model.max_seq_len = 64"]),
            "heads that do not divide": (1, {"model.heads": 3, "model.kv_heads": 3}, ["model.heads", "64"]),
            "kv_heads that do not divide": (1, {"model.kv_heads": 3}, ["model.kv_heads", "3", "4"]),
            "batch that no micro-batch divides": (1, {"train.global_batch_size": 10},
                                                  ["train.global_batch_size = 10", "train.micro_batch_size = 4"]),
            "batch that the workers do not divide": (3, {"train.global_batch_size": 16}, ["train.global_batch_size = 16", "4 x 3"]),
            "parallel.data against --workers": (2, {"parallel.data": 3}, ["parallel.data", "3", "2", "--workers 3"]),
            "no workers": (0, {}, ["--workers 0"]),
            "too many workers": (100000, {}, ["--workers 100000"]),
            "unknown key": (1, {"train.step": 3}, ["train.step", "train.steps"]),
            "unknown section": (1, {"trian.steps": 3}, ["trian", "train"]),
            "wrong type": (1, {"train.steps": "many"}, ["train.steps"]),
            "unknown choice": (1, {"train.precision": "fp23"}, ["train.precision", "fp32"]),
            "not built yet": (1, {"parallel.tensor": 2}, ["parallel.tensor"]),
            "stop after the end": (1, {"train.stop_after": 41}, ["train.stop_after = 41", "train.steps = 40"]),
            "warm-up longer than the horizon": (1, {"lr_schedule.warmup_steps": 50}, ["lr_schedule.warmup_steps", "50", "40"]),
            "vocabulary too small for bytes": (1, {"model.vocab": 100}, ["model.vocab", "257"]),
            "all faults at once": (1, {"train.seq_len": 128, "model.kv_heads": 3, "train.global_batch_size": 10, "optimizer.lr": -1,
                                       "train.step": 3, "checkpoint.keep": "x"},
                                   ["train.seq_len = 128", "model.kv_heads", "train.global_batch_size = 10", "optimizer.lr",
                                    "train.step", "checkpoint.keep"]),
        }
        for name, (workers, settings, texts) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                self.assert_refused(self.train(run, workers, settings), *texts)
                self.assertFalse(run.folder.exists(), "nothing was made")

    def test_command_line(self):
        broken = self.new_folder("broken") / "broken.toml"
        broken.write_text("[train\nsteps = 3\n")
        rows = {
            "missing config": (["train", CONFIG.parent / "tinny.toml"], ["tinny.toml", "tiny.toml"]),
            "config is a folder": (["train", CONFIG.parent], [CONFIG.parent, "folder"]),
            "config is not TOML": (["train", broken], [f"{broken}:1"]),
            "no config": (["train"], ["config"]),
            "unknown command": (["trian", CONFIG], ["trian", "train"]),
            "unknown option": (["train", CONFIG, "--worker", "2"], ["--worker", "--workers"]),
            "rendezvous missing": (["launch", "--nodes", "2", "--node-rank", "0", CONFIG], ["--rendezvous"]),
            "rank of no node": (["launch", "--nodes", "2", "--node-rank", "2", "--rendezvous", "localhost:1", CONFIG], ["--node-rank 2"]),
            "inspect: no checkpoint": (["inspect", self.scratch], [self.scratch, "index.json"]),
            "inspect: missing": (["inspect", self.scratch / "nowhere"], [self.scratch / "nowhere"]),
            "generate: missing": (["generate", self.scratch / "nowhere", "--prompt", "a"], [self.scratch / "nowhere"]),
            "eval: missing": (["eval", self.scratch / "nowhere"], [self.scratch / "nowhere"]),
        }
        for name, (arguments, texts) in rows.items():
            with self.subTest(name):
                self.assert_refused(self.call(*arguments), *texts)

    # -- data ------------------------------------------------------------------------------------------------------------

    def test_data(self):
        empty = self.new_folder("empty")
        file = self.new_folder("file") / "train"
        file.write_text("text")
        short = self.prepared("short")

        def spoiled(spoil):
            folder = self.copy_of_data()
            spoil(folder)
            return folder

        def as_folder(path):
            path.unlink()
            path.mkdir()

        def wrong_header(folder):
            flip_byte(folder / SHARD, 40)

        rows = {
            "empty folder": (empty, [empty, "manifest.json"]),
            "missing folder": (empty / "nowhere", [empty / "nowhere"]),
            "the folder above": (self.data.parent, [self.data]),
            "a file": (file, [file]),
            "too little for a sequence": (short, [short, "5 tokens", "65", "at most 4"]),
            "manifest cannot be read": (folder := spoiled(lambda f: as_folder(f / "manifest.json")), [folder / "manifest.json"]),
            "manifest is not JSON": (folder := spoiled(lambda f: (f / "manifest.json").write_text("{")), [folder / "manifest.json"]),
            "shard cannot be read": (folder := spoiled(lambda f: as_folder(f / SHARD)), [folder / SHARD]),
            "shard is missing": (folder := spoiled(lambda f: (f / SHARD).unlink()), [folder / SHARD]),
            "shard cut short": (folder := spoiled(lambda f: os.truncate(f / SHARD, 500_000)),
                                [folder / SHARD, "cut short", "500000", (self.data / SHARD).stat().st_size]),
            "shard is empty": (folder := spoiled(lambda f: os.truncate(f / SHARD, 0)), [folder / SHARD, "cut short"]),
            "shard with a damaged header": (folder := spoiled(wrong_header), [folder / SHARD, "header"]),
            "tokenizer is missing": (folder := spoiled(lambda f: shutil.rmtree(f / "tokenizer")), [folder / "tokenizer"]),
        }
        for name, (path, texts) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                self.assert_refused(self.train(run, 2, {"data.path": path, "data.generator": ""}), *texts)
                self.assertEqual(run.checkpoints(), [])
                if name.startswith("shard"):
                    with self.subTest("data verify"):
                        self.assert_refused(self.call("data", "verify", path), path / SHARD)

    def test_flipped_byte_of_a_shard(self):
        folder = self.copy_of_data()
        position = 128 + 200_001
        index, document = document_of_byte(folder / SHARD, position)
        good = (folder / SHARD).read_bytes()
        settings = {**FIXED, "data.path": folder, "checkpoint.interval": 1}
        run = self.new_run("flipped byte")
        self.trained(run, 2, {**settings, "train.stop_after": 1})
        flip_byte(folder / SHARD, position)
        verify = self.call("data", "verify", folder)
        self.assert_refused(verify, folder / SHARD, f"document {index} of the shard", document)
        self.assertEqual(verify.err.count("document "), 1, "only the document that is damaged")
        result = self.train(run, 2, settings)
        self.assert_refused(result, folder / SHARD, f"document {index} of the shard", document)
        # What was learned before is there, and goes on when the data is whole again.
        (folder / SHARD).write_bytes(good)
        self.assertEqual(self.call("data", "verify", folder).code, DONE)
        self.trained(run, 2, settings)
        self.assert_same_run(run, self.trained(self.new_run("whole data"), 2, {**settings, "checkpoint.interval": 0}))

    def test_data_against_model_and_tokenizers(self):
        #       settings, what the message names
        rows = {
            "vocabulary larger than the model's": ({"model.vocab": 300}, [self.data, "512", "model.vocab = 300"]),
            "held-out text of another tokenizer": ({"data.eval_path": self.other}, ["data.eval_path", self.other, "data.path", self.data]),
        }
        for name, (settings, texts) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                self.assert_refused(self.train(run, 2, settings), *texts)
                self.assertEqual(run.checkpoints(), [])

    def test_prepare(self):
        folder = self.new_folder("texts")
        (folder / "none").mkdir()
        (folder / "empty.txt").write_text("")
        (folder / "latin1.txt").write_bytes(b"caf\xe9")
        out = folder / "out"
        tokenizer = self.data / "tokenizer"
        rows = {
            "missing text": ([folder / "nowhere.txt", "--tokenizer", tokenizer], [folder / "nowhere.txt"]),
            "empty folder": ([folder / "none", "--tokenizer", tokenizer], [folder / "none"]),
            "missing tokenizer": ([folder / "empty.txt", "--tokenizer", folder / "none"], [folder / "none"]),
            "not UTF-8": ([folder / "latin1.txt", "--tokenizer", tokenizer, "--invalid-utf8", "error"], ["latin1.txt", "UTF-8"]),
            "no text at all": ([folder / "empty.txt", "--tokenizer", tokenizer], ["empty"]),
        }
        for name, (arguments, texts) in rows.items():
            with self.subTest(name):
                self.assert_refused(self.call("data", "prepare", *arguments, "--out", out), *texts)
                self.assertFalse((out / "manifest.json").exists())

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def test_weights_that_are_not_finite(self):
        tensors = [tensor["name"] for tensor in json.loads((self.good.checkpoints()[-1] / "index.json").read_text())["tensors"]]
        name = next(tensor for tensor in tensors if tensor.startswith("model.blocks.1."))
        for value in (math.nan, -math.inf):
            run = self.copy_of(self.good)
            checkpoint = run.checkpoints()[-1]
            poison(checkpoint, name, value)
            before = run.content()
            # The damage is in the meaning, not in the bytes.
            self.assertEqual(self.call("inspect", checkpoint, "--verify").code, DONE)
            fresh = self.new_run("fresh")
            rows = {"resume": lambda: self.train(run, 2, {**FIXED}),
                    "checkpoint.load": lambda: self.train(fresh, 1, {"checkpoint.load": checkpoint}),
                    "generate": lambda: self.call("generate", checkpoint, "--prompt", "The"),
                    "eval": lambda: self.call("eval", checkpoint, "--data", self.data)}
            for how, use in rows.items():
                with self.subTest(f"{value}, {how}"):
                    self.assert_refused(use(), name.removeprefix("model."), checkpoint, "not finite")
                    self.assertEqual(run.content(), before)
            self.assertEqual(fresh.checkpoints(), [])

    def test_checkpoint_of_another_kind(self):
        source = self.good.checkpoints()[-1]
        rows = {
            "load: another tokenizer": ({"checkpoint.load": source, "data.path": self.other}, [source, self.other, "tokenizer"]),
            "load: another width": ({"checkpoint.load": source, "model.ffn": 192}, [source, "model.ffn = 128", "192"]),
            "load: more layers": ({"checkpoint.load": source, "model.layers": 3}, [source, "model.layers = 2", "3"]),
            "load: fewer layers": ({"checkpoint.load": source, "model.layers": 1}, [source, "model.layers = 2", "1"]),
            "load: all at once": ({"checkpoint.load": source, "model.tied": "false", "model.heads": 2, "data.path": self.other},
                                  [source, "model.tied = true", "model.heads = 4", "model.head_dim = 16", self.other, "tokenizer"]),
            "load: no checkpoint": ({"checkpoint.load": self.data}, [self.data]),
            "load: missing": ({"checkpoint.load": self.data / "nowhere"}, [self.data / "nowhere"]),
        }
        for name, (settings, texts) in rows.items():
            with self.subTest(name):
                run = self.new_run(name)
                self.assert_refused(self.train(run, 2, settings), *texts)
                self.assertEqual(run.checkpoints(), [])
        with self.subTest("resume: another tokenizer"):
            run = self.copy_of(self.good)
            before = run.content()
            self.assert_refused(self.train(run, 2, {**FIXED, "data.path": self.other}), self.other, "tokenizer")
            self.assertEqual(run.content(), before)
        with self.subTest("resume: other text, the same tokenizer"):
            run = self.copy_of(self.good)
            before = run.content()
            self.assert_refused(self.train(run, 2, {**FIXED, "data.path": self.prepared("Another text. " * 500)}), "other data")
            self.assertEqual(run.content(), before)
        with self.subTest("eval: another tokenizer"):
            self.assert_refused(self.call("eval", self.good.folder, "--data", self.other), self.other, "tokenizer")

    def test_damaged_checkpoint_is_named_by_inspect(self):
        run = self.copy_of(self.good)
        file = run.checkpoints()[-1] / "rank-00000.safetensors"
        flip_byte(file, file.stat().st_size - 1000)
        for option in ("--verify", "--digest"):
            with self.subTest(option):
                self.assert_refused(self.call("inspect", run.folder, option), file)
        with self.subTest("no checkpoint is left to resume"):
            # Not a new start: that would take back the metrics of the steps that it stands for.
            shutil.rmtree(run.checkpoints()[0])
            before = run.content()
            self.assert_refused(self.train(run, 1, {**FIXED, "train.stop_after": 3}), "step-00000020 cannot be loaded",
                                "no other checkpoint is left")
            self.assertEqual(run.content(), before)

    # -- disks -----------------------------------------------------------------------------------------------------------

    def test_disk_full_during_a_save(self):
        disk = self.tmpfs("2m", "small disk")
        run = self.new_run("whole")
        run.folder = disk / "run"
        result = self.train(run, 2, FIXED)
        self.assert_refused(result, "step 20", "No space left on device", run.folder / "checkpoints")
        self.assertEqual([folder.name for folder in run.folder.glob("checkpoints/*")], ["step-00000010"])
        self.assertEqual(self.call("inspect", run.folder, "--verify").code, DONE)
        self.remount(disk, "size=20m")
        self.trained(run, 2, FIXED)
        self.assert_no_step_twice(run, 40)
        self.assert_same_run(run, self.trained(self.new_run("large disk"), 2, FIXED))

    def test_read_only_run_folder(self):
        disk = self.tmpfs("20m", "read-only disk")
        run = self.new_run("whole")
        run.folder = disk / "run"
        shutil.copytree(self.good.folder, run.folder)
        before = run.content()
        self.remount(disk, "ro")
        with self.subTest("resume"):
            self.assert_refused(self.train(run, 2, FIXED), run.folder, "Read-only file system")
        with self.subTest("a new run"):
            run.folder = disk / "new"
            self.assert_refused(self.train(run, 2, FIXED), run.folder, "Read-only file system")
            self.assertFalse(run.folder.exists())
        with self.subTest("reading is no harm"):
            run.folder = disk / "run"
            self.digest(run)
            self.assertEqual(self.call("generate", run.folder, "--prompt", "The", "--max-tokens", 5).code, DONE)
        self.assertEqual(run.content(), before)

    def test_run_folder_that_cannot_be(self):
        file = self.new_folder("file") / "run"
        file.write_text("mine")
        for name, folder in {"a file": file, "below a file": file / "run", "below /proc": "/proc/run"}.items():
            with self.subTest(name):
                self.assert_refused(self.train(self.new_run(name), 2, {"run.dir": folder}), folder)
        self.assertEqual(file.read_text(), "mine")

    def test_learning_rate_that_breaks_the_weights(self):
        run = self.new_run("too fast")
        result = self.train(run, 2, {"optimizer.lr": 1e30, "lr_schedule.warmup_steps": 0, "checkpoint.interval": 0})
        apart = run.folder / "skipped" / "checkpoints" / f"step-{run.last_step():08d}"
        self.assert_refused(result, "not finite", "optimizer.lr", apart, "no checkpoint")
        self.assertEqual(run.checkpoints(), [])
        self.assertTrue(self.call("inspect", apart, "--verify").code == DONE)
        self.assertTrue(all(line["skipped"] for line in run.steps()[-10:]))


if __name__ == "__main__":
    main()
