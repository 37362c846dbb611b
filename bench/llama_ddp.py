"""The peer of train_ddp.py: one rank of a data-parallel PyTorch trainer, written as well as plain PyTorch lets one.

usage: llama_ddp.py JOB        with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set; JOB is a JSON file (train_ddp.py writes it)

The model is Trireme's Llama: RMSNorm, rotary positions, grouped queries through scaled_dot_product_attention, SwiGLU, the query,
key and value matrices fused into one, gate and up into another. Two ways to train in bf16:
  master    weights and gradients in bf16; AdamW on fp32 masters, which are copied back. DDP sums bf16.
  autocast  weights in fp32 under torch.autocast; DDP sums fp32.
Rank 0 appends a JSON line a step, its seconds and loss, to the file that the job names.
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


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.eps = m["heads"], m["kv_heads"], m["head_dim"], m["norm_eps"]
        width = self.heads * self.head_dim
        self.attention_norm = nn.Parameter(torch.ones(m["hidden"]))
        self.qkv = nn.Linear(m["hidden"], width + 2 * self.kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(width, m["hidden"], bias=False)
        self.feed_forward_norm = nn.Parameter(torch.ones(m["hidden"]))
        self.gate_up = nn.Linear(m["hidden"], 2 * m["ffn"], bias=False)
        self.down = nn.Linear(m["ffn"], m["hidden"], bias=False)

    def rotated(self, x, cosine, sine):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)

    def forward(self, x, cosine, sine):
        batch, seq, _ = x.shape
        heads = self.qkv(F.rms_norm(x, x.shape[-1:], self.attention_norm.to(x.dtype), self.eps))
        q, k, v = heads.view(batch, seq, -1, self.head_dim).transpose(1, 2).split((self.heads, self.kv_heads, self.kv_heads), 1)
        q, k = self.rotated(q, cosine, sine), self.rotated(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.output(y.transpose(1, 2).reshape(batch, seq, -1))
        gate, up = self.gate_up(F.rms_norm(x, x.shape[-1:], self.feed_forward_norm.to(x.dtype), self.eps)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """tokens, labels [batch, seq] -> mean loss."""

    def __init__(self, m, dtype):
        super().__init__()
        self.eps, self.activations = m["norm_eps"], torch.bfloat16
        self.embed = nn.Embedding(m["vocab"], m["hidden"])
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm = nn.Parameter(torch.ones(m["hidden"]))
        self.head = nn.Linear(m["hidden"], m["vocab"], bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("output.weight", "down.weight"))
                nn.init.trunc_normal_(parameter, std=0.02 / ((2 * m["layers"]) ** 0.5 if residual else 1), a=-0.06, b=0.06)
        if m["tied"]:
            self.head.weight = self.embed.weight
        self.to(dtype)
        half = torch.arange(0, m["head_dim"], 2, dtype=torch.float64) / m["head_dim"]
        angles = torch.outer(torch.arange(m["max_seq_len"], dtype=torch.float64), m["rope_theta"] ** -half)
        self.register_buffer("cosine", angles.cos().to(self.activations), persistent=False)
        self.register_buffer("sine", angles.sin().to(self.activations), persistent=False)

    def forward(self, tokens, labels):
        x = self.embed(tokens).to(self.activations)
        cosine, sine = self.cosine[: tokens.shape[1]], self.sine[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cosine, sine)
        logits = self.head(F.rms_norm(x, x.shape[-1:], self.norm.to(x.dtype), self.eps))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


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


def train(job):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cpus = sorted(os.sched_getaffinity(0))
    threads = max(1, len(cpus) // world)
    # As Trireme's launcher pins its workers: unpinned ranks wander and wait for each other.
    os.sched_setaffinity(0, cpus[rank * threads : (rank + 1) * threads] or cpus)
    torch.set_num_threads(threads)
    dist.init_process_group("gloo")
    torch.manual_seed(job["seed"])
    model = Llama(job["model"], torch.bfloat16 if job["precision"] == "master" else torch.float32)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True, broadcast_buffers=False)
    optimizer = Optimizer(model, job)
    loss_of = torch.compile(ddp) if job["compile"] else ddp
    batches = Batches(job, rank)
    out = open(job["out"], "w", encoding="utf-8") if rank == 0 else None
    for _ in range(job["steps"]):
        start = time.perf_counter()
        total = 0.0
        for micro in range(job["accumulation"]):
            last = micro + 1 == job["accumulation"]
            ddp.require_backward_grad_sync = last
            tokens, labels = batches.next()
            with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "autocast"):
                loss = loss_of(tokens, labels) / job["accumulation"]
            loss.backward()
            total += loss.item()
        optimizer.step()
        ddp.zero_grad(set_to_none=False)
        if out:
            print(json.dumps({"seconds": time.perf_counter() - start, "loss": total}), file=out, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(json.loads(pathlib.Path(sys.argv[1]).read_text()))
