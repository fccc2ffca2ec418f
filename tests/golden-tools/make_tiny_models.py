"""Makes the tiny random models of tests/data/tiny and the logits that transformers computes with them.

    python tests/golden-tools/make_tiny_models.py tests/data/tiny

Needs torch, transformers, gguf, numpy. For each model: NAME.gguf, NAME.logits.f32 ([tokens][vocab], float32 pass) and
NAME.bf16kv.f32 (the same pass with keys, after their rotary position, and values rounded to bfloat16: what an engine
with a BF16 cache should get); models.json lists tokens and settings. Weights are drawn wide enough that logits differ
by whole units, rounded to the stored type before transformers sees them. Made with torch 2.15, transformers 5.24.
"""
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
TOKENS = 40
# name, architecture, query heads, KV heads, d, width, ffn, vocab, tied, stored type, rope, extra configuration
MODELS = [
    ("llama_gqa1_linear", "llama", 2, 2, 64, 20, 27, 83, False, "F32",
     {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}, {}),
    ("llama_gqa3_llama3", "llama", 3, 1, 64, 24, 50, 67, True, "F32",
     {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 64, "rope_theta": 5000.0}, {}),
    ("llama_gqa4_d128_bias", "llama", 4, 1, 128, 16, 33, 71, True, "BF16",
     {"rope_type": "default", "rope_theta": 100000.0}, {"attention_bias": True, "mlp_bias": True}),
    ("qwen2_gqa4_yarn", "qwen2", 4, 1, 64, 22, 37, 91, False, "F32",
     {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1000.0}, {}),
    ("qwen3_gqa8_d128", "qwen3", 8, 1, 128, 12, 21, 59, True, "F16",
     {"rope_type": "default", "rope_theta": 1000000.0}, {}),
    ("qwen3_gqa3_d64", "qwen3", 6, 2, 64, 18, 29, 61, False, "F32",
     {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}, {}),
]


def bf16_cache_attention(module, query, key, value, *args, **kwargs):
    return eager_attention_forward(module, query, key.bfloat16().float(), value.bfloat16().float(), *args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register("bf16_cache", bf16_cache_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register("bf16_cache", ALL_MASK_ATTENTION_FUNCTIONS["eager"])  # else no causal mask


def stored(x, kind):
    """The values as the file keeps them, and the GGUF bytes."""
    x = x.astype(np.float32)
    if kind == "F16":
        half = x.astype(np.float16)
        return half.astype(np.float32), half, gguf.GGMLQuantizationType.F16
    if kind == "BF16":
        bits = torch.from_numpy(x).bfloat16()
        return bits.float().numpy(), bits.view(torch.uint16).numpy().view(np.uint8), gguf.GGMLQuantizationType.BF16
    return x, x, gguf.GGMLQuantizationType.F32


def permuted(x, heads):
    """Rows of q and k as llama files keep them: the halves of a head interleaved."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name):
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight"}[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[stem]}.{kind}"


def llama3_divisors(rope, d):
    theta = 1.0 / rope["rope_theta"] ** (np.arange(0, d, 2, dtype=np.float64) / d)
    turns = rope["original_max_position_embeddings"] * theta / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / (kept + (1.0 - kept) / rope["factor"])).astype(np.float32)


def write_settings(w, arch, q_heads, kv_heads, d, width, ffn, vocab, rope, config):
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(width)
    w.add_feed_forward_length(ffn)
    w.add_head_count(q_heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(d)
    w.add_value_length(d)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_vocab_size(vocab)
    if rope["rope_type"] in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(rope, d))


def make(out, index, name, arch, q_heads, kv_heads, d, width, ffn, vocab, tied, kind, rope, extra):
    config_class, model_class = CLASSES[arch]
    config = config_class(hidden_size=width, intermediate_size=ffn, num_hidden_layers=2, num_attention_heads=q_heads,
                          num_key_value_heads=kv_heads, head_dim=d, vocab_size=vocab, tie_word_embeddings=tied,
                          max_position_embeddings=128, rms_norm_eps=1e-5, rope_parameters=dict(rope),
                          pad_token_id=None, bos_token_id=None, eos_token_id=None, **extra)
    config.head_dim = d
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    rng = np.random.default_rng(1000 + index)
    w = gguf.GGUFWriter(out / f"{name}.gguf", arch)
    write_settings(w, arch, q_heads, kv_heads, d, width, ffn, vocab, rope, config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith("norm.weight"):
                x, data, dtype = stored(1.0 + 0.2 * rng.standard_normal(p.shape), "F32")
            elif p.dim() == 1:
                x, data, dtype = stored(0.3 * rng.standard_normal(p.shape), "F32")
            else:
                x, data, dtype = stored(rng.standard_normal(p.shape) / np.sqrt(p.shape[1]), kind)
            p.copy_(torch.from_numpy(x))
            if arch == "llama" and (".q_proj" in key or ".k_proj" in key):
                heads = q_heads if ".q_proj" in key else kv_heads
                data = stored(permuted(x, heads), kind if p.dim() == 2 else "F32")[1]
            w.add_tensor(gguf_name(key), np.ascontiguousarray(data), raw_dtype=dtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    ids = rng.integers(0, vocab, TOKENS)
    for suffix, attention in (("logits", "eager"), ("bf16kv", "bf16_cache")):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0].float().numpy()
        logits.astype("<f4").tofile(out / f"{name}.{suffix}.f32")
    print(name, f"logits {logits.std():.2f} wide,", (out / f"{name}.gguf").stat().st_size, "bytes")
    return {"name": name, "vocab": vocab, "ids": ids.tolist(), "q_heads": q_heads, "kv_heads": kv_heads, "d": d,
            "rope_type": rope["rope_type"]}


def main():
    out = Path(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    made = [make(out, i, *m) for i, m in enumerate(MODELS)]
    (out / "models.json").write_text("[\n" + ",\n".join(json.dumps(m) for m in made) + "\n]\n")


main()
