"""The FSDP2 peer of data_parallel.py: model, data, optimizer and loop of torch_trainer.py, with fully_shard where that
has DistributedDataParallel.

usage: fsdp_trainer.py JOB reshard|keep    JOB as for torch_trainer.py; with RANK, WORLD_SIZE and the like set

Weights in fp32 are divided among the ranks, a block at a time, and gathered in bf16; gradients are summed in fp32. With
`reshard` a block's weights go after its forward pass and are gathered again for its backward pass. AdamW is fused, over
the parts (on CPUs three times as fast as foreach). As TorchTitan does, each block is compiled before fully_shard, whose
hooks no graph can hold; so are the last norm and the loss.
"""

import ctypes
import json
import pathlib
import sys
import types

import torch
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import torch_trainer


class Model(torch_trainer.Model):
    """Answers to what the loop asks of DistributedDataParallel."""

    @property
    def require_backward_grad_sync(self):
        raise NotImplementedError

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted):
        self.set_requires_gradient_sync(wanted)

    def zero_grad(self, set_to_none=True):
        # The sums come in memory of their own each time: zeros to add them to would be a pass more.
        super().zero_grad(set_to_none=True)


def chunked_loss(hidden, weight, labels, function=torch_trainer.ChunkedCrossEntropy):
    return function.apply(hidden, weight, labels)


def plain_loss(hidden, weight, labels):
    return F.cross_entropy(F.linear(hidden, weight).float(), labels)


def compile_parts(model, mode):
    # The whole of forward cannot be compiled: a graph that breaks in its loop over blocks is dropped.
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, fullgraph=True, mode=mode)
    model.norm = torch.compile(model.norm, fullgraph=True, mode=mode)
    # Forward ends with a call of this name where the loss is in chunks; whichever it is, it is compiled there.
    loss = torch.compile(chunked_loss if model.chunked else plain_loss, fullgraph=True, mode=mode)
    torch_trainer.ChunkedCrossEntropy = types.SimpleNamespace(apply=loss)
    model.chunked = True


def divided(model, mode, reshard):
    if mode:
        compile_parts(model, mode)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard)
    # Backward begins with the head: what the root holds stays gathered.
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    # Back to the system with the undivided weights, where tcmalloc is preloaded.
    getattr(ctypes.CDLL(None), "MallocExtension_ReleaseFreeMemory", lambda: None)()
    return model


def main():
    job = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    mode, reshard = job["compile"], sys.argv[2] == "reshard"
    torch_trainer.Model = Model
    torch_trainer.DistributedDataParallel = lambda model, **_: divided(model, mode, reshard)
    torch_trainer.train({**job, "compile": ""})


if __name__ == "__main__":
    main()
