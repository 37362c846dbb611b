"""Writes what transformers' models compute: logits, loss, every gradient, ten AdamW losses, and the same again at step 10.

Usage: oracle_models.py FOLDER: FOLDER/CASE.pt for each case. Everything is in the case's type: where transformers computes in fp32 whatever the type
of the model (RMSNorm, softmax of eager attention, rotary angles), which would hide everything below 1e-7, PyTorch's own
function of the same meaning takes its place.
"""
import math
import sys

import torch
import transformers

ROPES = {
    "default": dict(rope_type="default"),
    "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16),
    "linear": dict(rope_type="linear", factor=3.0),
    "yarn": dict(rope_type="yarn", factor=4.0, beta_fast=8.0, beta_slow=1.0, original_max_position_embeddings=16),
}
# name: family, dtype, tied, heads, kv_heads, head_dim, rotary scaling, sliding window. The rows of test_parity.cpp.
CASES = {
    "fp64": ("llama", torch.float64, False, 4, 2, 8, "default", 0),
    "fp32": ("llama", torch.float32, False, 4, 2, 8, "default", 0),
    "fp64_tied": ("llama", torch.float64, True, 3, 3, 16, "default", 0),
    "fp32_tied": ("llama", torch.float32, True, 3, 3, 16, "default", 0),
    "fp64_scaled": ("llama", torch.float64, False, 6, 1, 10, "llama3", 0),
    "fp64_linear": ("llama", torch.float64, False, 4, 2, 8, "linear", 0),
    "fp64_ntk": ("llama", torch.float64, False, 4, 2, 8, "ntk", 0),
    "fp64_yarn": ("llama", torch.float64, False, 2, 2, 18, "yarn", 0),
    "fp64_qwen2": ("qwen2", torch.float64, True, 4, 2, 8, "default", 0),
    "fp32_qwen2": ("qwen2", torch.float32, False, 4, 2, 8, "default", 0),
    "fp64_qwen3": ("qwen3", torch.float64, False, 4, 2, 10, "default", 0),
    "fp32_qwen3": ("qwen3", torch.float32, True, 4, 1, 10, "default", 0),
    "fp64_mistral": ("mistral", torch.float64, False, 4, 2, 8, "default", 7),
    "fp32_mistral": ("mistral", torch.float32, False, 4, 2, 8, "default", 5),
    "fp64_gpt": ("gpt", torch.float64, True, 4, 4, 9, None, 0),
    "fp32_gpt": ("gpt", torch.float32, True, 4, 4, 9, None, 0),
    "fp64_gpt_free_head": ("gpt", torch.float64, False, 3, 3, 12, None, 0),
}
VOCAB, HIDDEN, FFN, LAYERS, SEQ, BATCH, STEPS, LONGEST = 101, 36, 52, 3, 33, 4, 10, 64
LR, BETAS, EPS, DECAY, CLIP, IGNORED = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, -100

LLAMA_NAMES = (("embed_tokens", "embed"), ("lm_head", "head"), ("layers.", "blocks."), ("input_layernorm", "attention_norm"),
               ("post_attention_layernorm", "feed_forward_norm"), ("self_attn.q_proj", "attention.q"),
               ("self_attn.k_proj", "attention.k"), ("self_attn.v_proj", "attention.v"),
               ("self_attn.o_proj", "attention.output"), ("self_attn.q_norm", "attention.q_norm"),
               ("self_attn.k_norm", "attention.k_norm"), ("mlp.gate_proj", "feed_forward.gate"),
               ("mlp.up_proj", "feed_forward.up"), ("mlp.down_proj", "feed_forward.down"))
GPT_NAMES = (("wte", "embed"), ("wpe", "positions"), ("lm_head", "head"), ("h.", "blocks."), ("ln_1", "attention_norm"),
             ("ln_2", "feed_forward_norm"), ("ln_f", "norm"), ("attn.c_proj", "attention.output"),
             ("mlp.c_fc", "feed_forward.up"), ("mlp.c_proj", "feed_forward.down"))


def ours(family, name, tensor):
    """Our logical tensors of one of theirs: GPT-2 stores matrices as [in, out], and q, k, v side by side."""
    name = name.removeprefix("model.").removeprefix("transformer.")
    for theirs, mine in GPT_NAMES if family == "gpt" else LLAMA_NAMES:
        name = name.replace(theirs, mine)
    if family != "gpt" or tensor.dim() == 1 and "c_attn" not in name:
        return [(name, tensor)]
    if tensor.dim() == 2 and name.startswith("blocks."):
        tensor = tensor.t()
    if "attn.c_attn" in name:
        return [(name.replace("attn.c_attn", f"attention.{part}"), piece)
                for part, piece in zip("qkv", tensor.chunk(3))]
    return [(name, tensor)]


def frequencies(kind, head_dim, config):
    """Rotary frequencies in fp64; those of transformers, which are fp32, must agree."""
    scaling = ROPES.get(kind, {})
    theta = 10000.0 * (3.0 ** (head_dim / (head_dim - 2)) if kind == "ntk" else 1.0)
    base = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    factor, attention = scaling.get("factor", 1.0), 1.0
    original = scaling.get("original_max_position_embeddings", 0)
    if kind == "linear":
        base = base / factor
    if kind == "llama3":
        wavelength = 2 * torch.pi / base
        low, high = original / scaling["low_freq_factor"], original / scaling["high_freq_factor"]
        smooth = (original / wavelength - scaling["low_freq_factor"]) / (
            scaling["high_freq_factor"] - scaling["low_freq_factor"])
        mixed = (1 - smooth) * base / factor + smooth * base
        base = torch.where(wavelength > low, base / factor, torch.where(wavelength < high, base, mixed))
    if kind == "yarn":
        def turns(n):
            return head_dim * math.log(original / (n * 2 * math.pi)) / (2 * math.log(theta))
        low, high = max(math.floor(turns(scaling["beta_fast"])), 0), min(math.ceil(turns(scaling["beta_slow"])), head_dim - 1)
        ramp = ((torch.arange(head_dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        assert 0 < ramp.sum() < len(ramp), "the case stretches all features alike"
        base, attention = base / factor * ramp + base * (1 - ramp), 0.1 * math.log(factor) + 1
    if kind in ("llama3", "linear", "yarn"):
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        check, check_attention = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        assert torch.allclose(base.float(), check.float(), rtol=1e-6), f"{kind} differs from transformers'"
        assert abs(attention - check_attention) < 1e-12, f"{kind}'s attention factor differs from transformers'"
    return base, attention


def make_llama(family, tied, heads, kv_heads, head_dim, kind, window):
    common = dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
                  num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                  max_position_embeddings=LONGEST, rms_norm_eps=1e-5, tie_word_embeddings=tied, attn_implementation="sdpa",
                  rope_parameters=dict(rope_theta=10000.0, **ROPES.get(kind, ROPES["default"])))
    if family == "mistral":
        common["sliding_window"] = window
    prefix = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[family]
    config = getattr(transformers, prefix + "Config")(**common)
    model = getattr(transformers, prefix + "ForCausalLM")(config).to(torch.get_default_dtype())
    base, attention = frequencies(kind, head_dim, config)

    def rotary_forward(x, position_ids):
        angles = position_ids[..., None].double() * base
        angles = torch.cat([angles, angles], -1)
        return (angles.cos() * attention).to(x.dtype), (angles.sin() * attention).to(x.dtype)

    model.model.rotary_emb.forward = rotary_forward
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, m=module: torch.nn.functional.rms_norm(x, m.weight.shape, m.weight, m.variance_epsilon)
    return model


def make_gpt(tied, heads):
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=HIDDEN, n_inner=FFN, n_layer=LAYERS, n_head=heads,
                                     n_positions=LONGEST, layer_norm_epsilon=1e-5, tie_word_embeddings=tied,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa")
    return transformers.GPT2LMHeadModel(config).to(torch.get_default_dtype())


def run(case, out):
    family, dtype, tied, heads, kv_heads, head_dim, kind, window = CASES[case]
    torch.manual_seed(7)
    torch.set_default_dtype(dtype)
    model = make_gpt(tied, heads) if family == "gpt" else make_llama(family, tied, heads, kv_heads, head_dim, kind, window)

    def is_norm(name):
        return "norm" in name or ".ln_" in name

    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.08 + (1.0 if is_norm(name) and name.endswith("weight") else 0.0))
            if "c_attn.weight" in name:
                # With small queries and keys attention is flat, and their gradients are differences of almost equal
                # numbers: in fp32 PyTorch's own are then 1e-5 away from those in fp64.
                p[:, :2 * HIDDEN] *= 4

    named = dict(model.named_parameters())
    plain = [p for n, p in named.items() if is_norm(n) or n.endswith("bias")]
    decay = [p for n, p in named.items() if not (is_norm(n) or n.endswith("bias"))]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=DECAY), dict(params=plain, weight_decay=0.0)], lr=LR,
                                  betas=BETAS, eps=EPS)
    tokens = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ))
    labels = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ))
    labels[:, 1, 5:9] = IGNORED
    result = {"tokens": tokens, "labels": labels}

    def record(prefix, name, tensor):
        for mine, part in ours(family, name, tensor):
            result[f"{prefix}.{mine}"] = part.detach().clone()

    losses, norms = [], []
    for step in range(STEPS):
        last = step == STEPS - 1
        if step == 0 or last:
            for name, p in named.items():
                record(f"step{step}.weight", name, p)
        if last:
            for name, p in named.items():
                record(f"step{step}.exp_avg", name, optimizer.state[p]["exp_avg"])
                record(f"step{step}.exp_avg_sq", name, optimizer.state[p]["exp_avg_sq"])
        optimizer.zero_grad()
        logits = model(tokens[step]).logits
        valid = (labels[step] != IGNORED).sum()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels[step].reshape(-1), ignore_index=IGNORED,
                                                 reduction="sum") / valid
        loss.backward()
        if step == 0 or last:
            result[f"step{step}.logits"] = logits.detach().clone()
            for name, p in named.items():
                record(f"step{step}.grad", name, p.grad)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        losses.append(loss.detach())
        optimizer.step()
    result["losses"] = torch.stack(losses)
    result["norms"] = torch.stack([n.detach() for n in norms])
    for name, p in named.items():
        record("end.weight", name, p)
    torch.save(result, out)


for name in CASES:
    run(name, f"{sys.argv[1]}/{name}.pt")
