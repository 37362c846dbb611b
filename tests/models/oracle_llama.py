"""Writes what transformers' Llama computes: logits, loss, every gradient, ten AdamW losses, and the same again at step 10.

Usage: oracle_llama.py CASE OUT.pt. Everything is in the case's type: where transformers computes in fp32 whatever the type
of the model (norms, softmax of eager attention, rotary angles), which would hide everything below 1e-7, PyTorch's own
function of the same meaning takes its place.
"""
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

CASES = {
    # name: (dtype, tied, heads, kv_heads, head_dim, rope scaling)
    "fp64": (torch.float64, False, 4, 2, 8, None),
    "fp32": (torch.float32, False, 4, 2, 8, None),
    "fp64_tied": (torch.float64, True, 3, 3, 16, None),
    "fp32_tied": (torch.float32, True, 3, 3, 16, None),
    "fp64_scaled": (torch.float64, False, 6, 1, 10, dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                        original_max_position_embeddings=16)),
}
VOCAB, HIDDEN, FFN, LAYERS, SEQ, BATCH, STEPS = 101, 36, 52, 3, 33, 4, 10
LR, BETAS, EPS, DECAY, CLIP, IGNORED = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, -100


def our_name(name):
    name = name.removeprefix("model.")
    for theirs, ours in (("embed_tokens", "embed"), ("lm_head", "head"), ("layers.", "blocks."),
                         ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "feed_forward_norm"),
                         ("self_attn.q_proj", "attention.q"), ("self_attn.k_proj", "attention.k"),
                         ("self_attn.v_proj", "attention.v"), ("self_attn.o_proj", "attention.output"),
                         ("mlp.gate_proj", "feed_forward.gate"), ("mlp.up_proj", "feed_forward.up"),
                         ("mlp.down_proj", "feed_forward.down")):
        name = name.replace(theirs, ours)
    return name


def main():
    case, out = sys.argv[1:]
    dtype, tied, heads, kv_heads, head_dim, scaling = CASES[case]
    torch.manual_seed(7)
    torch.set_default_dtype(dtype)
    rope = dict(rope_type="default", rope_theta=10000.0)
    if scaling:
        rope = dict(rope_type="llama3", rope_theta=10000.0, **scaling)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
                         num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                         max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=tied,
                         attn_implementation="sdpa", rope_parameters=rope)
    model = LlamaForCausalLM(config).to(dtype)
    rotary = model.model.rotary_emb
    base = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if scaling:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        check, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        wavelength = 2 * torch.pi / base
        low, high = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"], \
            scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
        smooth = (scaling["original_max_position_embeddings"] / wavelength - scaling["low_freq_factor"]) / (
            scaling["high_freq_factor"] - scaling["low_freq_factor"])
        mixed = (1 - smooth) * base / scaling["factor"] + smooth * base
        base = torch.where(wavelength > low, base / scaling["factor"], torch.where(wavelength < high, base, mixed))
        assert torch.allclose(base.float(), check.float(), rtol=1e-6), "scaling differs from transformers'"

    def rotary_forward(x, position_ids):
        angles = position_ids[..., None].double() * base
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    rotary.forward = rotary_forward
    LlamaRMSNorm.forward = lambda self, x: torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.08 + (1.0 if "norm" in name else 0.0))

    named = dict(model.named_parameters())
    decay = [p for n, p in named.items() if "norm" not in n]
    plain = [p for n, p in named.items() if "norm" in n]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=DECAY), dict(params=plain, weight_decay=0.0)], lr=LR,
                                  betas=BETAS, eps=EPS)
    tokens = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ))
    labels = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ))
    labels[:, 1, 5:9] = IGNORED
    result = {"tokens": tokens, "labels": labels}

    def record(prefix):
        for name, p in named.items():
            result[f"{prefix}.grad.{our_name(name)}"] = p.grad.clone()

    losses, norms = [], []
    for step in range(STEPS):
        last = step == STEPS - 1
        if step == 0 or last:
            for name, p in named.items():
                result[f"step{step}.weight.{our_name(name)}"] = p.detach().clone()
        if last:
            for name, p in named.items():
                state = optimizer.state[p]
                result[f"step{step}.exp_avg.{our_name(name)}"] = state["exp_avg"].clone()
                result[f"step{step}.exp_avg_sq.{our_name(name)}"] = state["exp_avg_sq"].clone()
        optimizer.zero_grad()
        logits = model(tokens[step]).logits
        valid = (labels[step] != IGNORED).sum()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels[step].reshape(-1), ignore_index=IGNORED,
                                                 reduction="sum") / valid
        loss.backward()
        if step == 0 or last:
            result[f"step{step}.logits"] = logits.detach().clone()
            record(f"step{step}")
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        losses.append(loss.detach())
        optimizer.step()
    result["losses"] = torch.stack(losses)
    result["norms"] = torch.stack([n.detach() for n in norms])
    for name, p in named.items():
        result[f"end.weight.{our_name(name)}"] = p.detach().clone()
    torch.save(result, out)


main()
