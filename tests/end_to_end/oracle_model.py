"""A checkpoint as transformers' Llama and tiktoken's tokenizer hold it: the judges of what `trireme eval` says."""

import base64
import json

import tiktoken
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

PARTS = (("attention_norm", "input_layernorm"), ("feed_forward_norm", "post_attention_layernorm"),
         ("attention.q", "self_attn.q_proj"), ("attention.k", "self_attn.k_proj"), ("attention.v", "self_attn.v_proj"),
         ("attention.output", "self_attn.o_proj"), ("feed_forward.gate", "mlp.gate_proj"), ("feed_forward.up", "mlp.up_proj"),
         ("feed_forward.down", "mlp.down_proj"))


def their_name(name):
    name = name.removeprefix("model.")
    if not name.startswith("blocks."):
        return next(theirs + name.removeprefix(ours) for ours, theirs in
                    (("embed.", "model.embed_tokens."), ("head.", "lm_head."), ("norm.", "model.norm.")) if name.startswith(ours))
    _, block, rest = name.split(".", 2)
    ours, theirs = next(pair for pair in PARTS if rest.startswith(pair[0] + "."))
    return f"model.layers.{block}.{theirs}{rest.removeprefix(ours)}"


def weights(checkpoint):
    """{logical name: tensor} of the model, of a checkpoint that one worker saved: each tensor is whole."""
    tensors = {}
    for path in sorted(checkpoint.glob("rank-*.safetensors")):
        tensors.update({name: tensor for name, tensor in load_file(path).items() if name.startswith("model.")})
    assert not any("@" in name for name in tensors)
    return tensors


def load_model(checkpoint):
    shape = json.loads((checkpoint / "index.json").read_text())["state"]["model"]
    config = LlamaConfig(vocab_size=shape["vocab"], hidden_size=shape["hidden"], intermediate_size=shape["ffn"],
                         num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
                         num_key_value_heads=shape["kv_heads"], head_dim=shape["head_dim"],
                         max_position_embeddings=shape["max_seq_len"], rms_norm_eps=shape["norm_eps"],
                         tie_word_embeddings=shape["tied"], rope_parameters=dict(rope_type="default", rope_theta=shape["rope_theta"]))
    model = LlamaForCausalLM(config).float().eval()
    tensors = {their_name(name): tensor for name, tensor in weights(checkpoint).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if shape["tied"] else set()), (missing, unexpected)
    return model


def load_tokenizer(folder):
    """tiktoken's encoding, and the id of the end of a text."""
    manifest = json.loads((folder / "manifest.json").read_text())
    ranks = {base64.b64decode(token): int(rank) for token, rank in
             (line.split() for line in (folder / "tokenizer.tiktoken").read_bytes().splitlines())}
    specials = {special["text"]: special["id"] for special in manifest["specials"]}
    encoding = tiktoken.Encoding("run", pat_str=manifest["pattern"], mergeable_ranks=ranks, special_tokens=specials)
    return encoding, specials[manifest["end_of_text"]]


def score(model, encoding, end_of_text, question, choice):
    """The log-probability of a choice, and its tokens; as docs/evaluation.md and lm-evaluation-harness have it, one text at a time."""
    context, continuation = question.rstrip(), question[len(question.rstrip()):] + " " + choice
    if context:
        before = encoding.encode_ordinary(context)
        after = encoding.encode_ordinary(context + continuation)[len(before):]
    else:
        before, after = [end_of_text], encoding.encode_ordinary(continuation)
    given = (before + after)[-(model.config.max_position_embeddings + 1):]
    with torch.no_grad():
        logits = model(torch.tensor([given[:-1]])).logits[0].double().log_softmax(-1)
    picked = logits[torch.arange(len(given) - 1), torch.tensor(given[1:])]
    return picked[-len(after):].sum().item(), len(after)
