"""The peer of step.py and train_ddp.py: a PyTorch trainer, written as well as plain PyTorch lets one.

usage: torch_trainer.py JOB    JOB is a JSON file, which the benchmarks write (contenders.py); with RANK, WORLD_SIZE, MASTER_ADDR and
                               MASTER_PORT set, one rank of a data-parallel trainer over gloo

The models are Trireme's: the Llama with RMSNorm, rotary positions, grouped queries, SwiGLU, and GPT-2; both with the query, key and
value matrices fused into one, gate and up into another, and attention by scaled_dot_product_attention. Two ways to train in bf16:
  master    weights and gradients in bf16; AdamW on fp32 masters, which are copied back. DDP sums bf16.
  autocast  weights in fp32 under torch.autocast; DDP sums fp32.
Compiled or not (`compile`: "", or a mode of torch.compile); the cross-entropy plain or in chunks of rows that make their gradient at once.
Rank 0 appends a JSON line a step, its seconds and loss, to the file that the job names. A job of precision "matmul" multiplies
two bf16 matrices of 2048 x 2048 instead, again and again: the rate that a step is measured by.
"""

import json
import os
import pathlib
import sys
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHUNK_BYTES = 32 << 20


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size)), eps

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.is_gpt = m["heads"], m["kv_heads"], m["head_dim"], m["architecture"] == "gpt"
        width, norm = self.heads * self.head_dim, LayerNorm if self.is_gpt else RmsNorm
        self.attention_norm = norm(m["hidden"], m["norm_eps"])
        self.qkv = nn.Linear(m["hidden"], width + 2 * self.kv_heads * self.head_dim, bias=self.is_gpt)
        self.output = nn.Linear(width, m["hidden"], bias=self.is_gpt)
        self.feed_forward_norm = norm(m["hidden"], m["norm_eps"])
        self.up = nn.Linear(m["hidden"], m["ffn"] if self.is_gpt else 2 * m["ffn"], bias=self.is_gpt)
        self.down = nn.Linear(m["ffn"], m["hidden"], bias=self.is_gpt)

    def rotated(self, x, cosine, sine):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)

    def forward(self, x, cosine, sine):
        batch, seq, _ = x.shape
        heads = self.qkv(self.attention_norm(x))
        q, k, v = heads.view(batch, seq, -1, self.head_dim).transpose(1, 2).split((self.heads, self.kv_heads, self.kv_heads), 1)
        if not self.is_gpt:
            q, k = self.rotated(q, cosine, sine), self.rotated(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.output(y.transpose(1, 2).reshape(batch, seq, -1))
        y = self.up(self.feed_forward_norm(x))
        if self.is_gpt:
            return x + self.down(F.gelu(y, approximate="tanh"))
        gate, up = y.chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean loss of logits = hidden @ weight^T, which never exist as a whole."""

    @staticmethod
    def forward(ctx, hidden, weight, labels):
        tokens, narrow = hidden.shape[0], weight.to(hidden.dtype)
        rows = max(256, CHUNK_BYTES // (2 * weight.shape[0]))
        dhidden, dweight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        loss = torch.zeros((), dtype=torch.float32)
        for first in range(0, tokens, rows):
            h, label = hidden[first : first + rows], labels[first : first + rows, None]
            logits = h @ narrow.t()
            log_sum = torch.logsumexp(logits.float(), -1, keepdim=True)
            loss += (log_sum - logits.gather(1, label).float()).sum()
            gradient = torch.exp(logits.float() - log_sum).scatter_add(1, label, torch.full_like(log_sum, -1.0))
            gradient = (gradient / tokens).to(hidden.dtype)
            dhidden[first : first + rows] = gradient @ narrow
            dweight += gradient.t() @ h
        ctx.save_for_backward(dhidden, dweight.to(weight.dtype))
        return loss / tokens

    @staticmethod
    def backward(ctx, upstream):
        dhidden, dweight = ctx.saved_tensors
        return dhidden * upstream, dweight * upstream, None


class Model(nn.Module):
    """tokens, labels [batch, seq] -> mean loss."""

    def __init__(self, m, dtype, chunked):
        super().__init__()
        self.activations, self.chunked, self.is_gpt = torch.bfloat16, chunked, m["architecture"] == "gpt"
        self.embed = nn.Embedding(m["vocab"], m["hidden"])
        if self.is_gpt:
            self.positions = nn.Embedding(m["max_seq_len"], m["hidden"])
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm = (LayerNorm if self.is_gpt else RmsNorm)(m["hidden"], m["norm_eps"])
        self.head = nn.Linear(m["hidden"], m["vocab"], bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("output.weight", "down.weight"))
                nn.init.trunc_normal_(parameter, std=0.02 / ((2 * m["layers"]) ** 0.5 if residual else 1), a=-0.06, b=0.06)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if m["tied"]:
            self.head.weight = self.embed.weight
        self.to(dtype)
        half = torch.arange(0, m["head_dim"], 2, dtype=torch.float64) / m["head_dim"]
        angles = torch.outer(torch.arange(m["max_seq_len"], dtype=torch.float64), m["rope_theta"] ** -half)
        self.register_buffer("cosine", angles.cos().to(self.activations), persistent=False)
        self.register_buffer("sine", angles.sin().to(self.activations), persistent=False)

    def forward(self, tokens, labels):
        seq = tokens.shape[1]
        x = self.embed(tokens)
        if self.is_gpt:
            x = x + self.positions.weight[:seq]
        x = x.to(self.activations)
        cosine, sine = self.cosine[:seq], self.sine[:seq]
        for block in self.blocks:
            x = block(x, cosine, sine)
        x, labels = self.norm(x).flatten(0, 1), labels.flatten()
        if self.chunked:
            return ChunkedCrossEntropy.apply(x, self.head.weight, labels)
        return F.cross_entropy(self.head(x).float(), labels)


class Batches:
    """Random windows of the same shard that Trireme trains on."""

    def __init__(self, job, rank):
        folder = pathlib.Path(job["data"])
        manifest = json.loads((folder / "manifest.json").read_text())
        shard = manifest["shards"][0]
        self.ids = numpy.memmap(folder / shard["file"], manifest["id_type"], "r", offset=128, shape=(shard["tokens"],))
        self.random = numpy.random.default_rng([job["seed"], rank])
        self.micro, self.seq = job["micro_batch_size"], job["seq_len"]

    def next(self):
        begins = self.random.integers(0, len(self.ids) - self.seq - 1, self.micro)
        window = torch.from_numpy(numpy.stack([self.ids[i : i + self.seq + 1].astype(numpy.int64) for i in begins]))
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()


class Optimizer:
    """Fused AdamW with clipping; over masters where the weights are bf16."""

    def __init__(self, model, job):
        self.weights = list(model.parameters())
        self.clip = job["clip_grad_norm"]
        has_masters = self.weights[0].dtype != torch.float32
        self.masters = [w.detach().float().requires_grad_() for w in self.weights] if has_masters else self.weights
        if has_masters:
            for master in self.masters:
                master.grad = torch.zeros_like(master)
        groups = [{"params": [p for p in self.masters if p.dim() == 2], "weight_decay": job["weight_decay"]},
                  {"params": [p for p in self.masters if p.dim() != 2], "weight_decay": 0.0}]
        self.lr, self.warmup, self.updates = job["lr"], max(1, job["warmup_steps"]), 0
        self.adamw = torch.optim.AdamW(groups, lr=self.lr, betas=(job["beta1"], job["beta2"]), eps=job["eps"], fused=True)

    def step(self):
        has_masters = self.masters is not self.weights
        if has_masters:
            torch._foreach_copy_([m.grad for m in self.masters], [w.grad for w in self.weights])
        if self.clip > 0:
            nn.utils.clip_grad_norm_(self.masters, self.clip, foreach=True)
        self.updates += 1
        for group in self.adamw.param_groups:
            group["lr"] = self.lr * min(1.0, self.updates / self.warmup)
        self.adamw.step()
        if has_masters:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.masters)


def multiply(out):
    a, b, c = (torch.randn(2048, 2048).to(torch.bfloat16) for _ in range(3))
    while True:
        start = time.perf_counter()
        for _ in range(8):
            torch.mm(a, b, out=c)
        print(json.dumps({"seconds": (time.perf_counter() - start) / 8, "loss": 0.0}), file=out, flush=True)


def train(job):
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cpus = sorted(os.sched_getaffinity(0))
    threads = max(1, len(cpus) // world)
    # As Trireme's launcher pins its workers: unpinned ranks wander and wait for each other.
    os.sched_setaffinity(0, cpus[rank * threads : (rank + 1) * threads] or cpus)
    torch.set_num_threads(threads)
    out = open(job["out"], "w", encoding="utf-8") if rank == 0 else None
    if job["precision"] == "matmul":
        multiply(out)
    torch.manual_seed(job["seed"])
    model = Model(job["model"], torch.bfloat16 if job["precision"] == "master" else torch.float32, job["chunked"])
    trained = model
    if world > 1:
        dist.init_process_group("gloo")
        trained = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True, broadcast_buffers=False)
    optimizer = Optimizer(model, job)
    loss_of = torch.compile(trained, mode=job["compile"]) if job["compile"] else trained
    batches = Batches(job, rank)
    while True:
        start = time.perf_counter()
        total = 0.0
        for micro in range(job["accumulation"]):
            if world > 1:
                trained.require_backward_grad_sync = micro + 1 == job["accumulation"]
            tokens, labels = batches.next()
            with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "autocast"):
                loss = loss_of(tokens, labels) / job["accumulation"]
            loss.backward()
            total += loss.item()
        optimizer.step()
        model.zero_grad(set_to_none=False)
        if out:
            print(json.dumps({"seconds": time.perf_counter() - start, "loss": total}), file=out, flush=True)


if __name__ == "__main__":
    train(json.loads(pathlib.Path(sys.argv[1]).read_text()))
