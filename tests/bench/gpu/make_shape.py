#!/usr/bin/env python3
"""Writes a GGUF of a model's shape with random weights: make_shape.py OUT [8b|1b] [q8_0|bf16|q4_0|q4_k|q6_k]

For speed and memory alone: the text is noise. Standard library and numpy. Weights repeat a random piece, since nothing
measured depends on them."""
import struct
import sys

import numpy

SHAPES = {  # layers, width, query heads, KV heads, d, ffn, vocabulary, context
    "8b": (36, 4096, 32, 8, 128, 12288, 151936, 1 << 20),  # Qwen3-8B; the context is stretched for long histories
    "1b": (16, 2048, 32, 8, 64, 8192, 128256, 1 << 17),
}
# type id, elements and bytes of a block, byte offsets of its fp16 numbers
TYPES = {"q8_0": (8, 32, 34, (0,)), "q4_0": (2, 32, 18, (0,)), "bf16": (30, 1, 2, ()), "q4_k": (12, 256, 144, (0, 2)),
         "q6_k": (14, 256, 210, (208,))}
PIECE = 1 << 26
ALIGNMENT = 32


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def number(key, kind, value):
    return text(key) + (struct.pack("<II", 4, value) if kind == "u32" else struct.pack("<If", 6, value))


def settings(shape):
    layers, width, heads, kv_heads, d, ffn, _, context = shape
    about = [text("general.architecture") + struct.pack("<I", 8) + text("qwen3"),
             text("general.name") + struct.pack("<I", 8) + text("random weights")]
    for key, value in (("block_count", layers), ("embedding_length", width), ("attention.head_count", heads),
                       ("attention.head_count_kv", kv_heads), ("attention.key_length", d), ("attention.value_length", d),
                       ("feed_forward_length", ffn), ("context_length", context)):
        about.append(number("qwen3." + key, "u32", value))
    about.append(number("qwen3.attention.layer_norm_rms_epsilon", "f32", 1e-6))
    about.append(number("qwen3.rope.freq_base", "f32", 1e6))
    return about


def tensors(shape):
    """(name, sizes); vectors are float32, matrices of the wanted type."""
    layers, width, heads, kv_heads, d, ffn, vocabulary, _ = shape
    yield "token_embd.weight", (width, vocabulary)
    yield "output_norm.weight", (width,)
    yield "output.weight", (width, vocabulary)
    for i in range(layers):
        for name, sizes in (("attn_norm", (width,)), ("ffn_norm", (width,)), ("attn_q_norm", (d,)), ("attn_k_norm", (d,)),
                            ("attn_q", (width, heads * d)), ("attn_k", (width, kv_heads * d)),
                            ("attn_v", (width, kv_heads * d)), ("attn_output", (heads * d, width)),
                            ("ffn_gate", (width, ffn)), ("ffn_up", (width, ffn)), ("ffn_down", (ffn, width))):
            yield f"blk.{i}.{name}.weight", sizes


def random_piece(kind):
    """About PIECE bytes of blocks with codes at random and scales that keep activations in range."""
    rng = numpy.random.default_rng(1)
    _, elements, block, halves = TYPES[kind]
    if kind == "bf16":
        return (rng.standard_normal(PIECE // 2, dtype=numpy.float32) * 0.02).view(numpy.uint32).__rshift__(16).astype(
            numpy.uint16).tobytes()
    blocks = rng.integers(0, 256, (PIECE // block, block), dtype=numpy.uint8)
    step = {"q8_0": 2e-4, "q4_0": 3e-3, "q4_k": 8e-5, "q6_k": 1e-5}[kind]
    for at in halves:
        blocks[:, at:at + 2] = numpy.full(len(blocks), step, numpy.float16).view(numpy.uint8).reshape(-1, 2)
    return blocks.tobytes()


def main():
    out, shape, kind = sys.argv[1], SHAPES[sys.argv[2] if len(sys.argv) > 2 else "8b"], "q8_0"
    kind = sys.argv[3] if len(sys.argv) > 3 else kind
    type_id, elements, block, _ = TYPES[kind]
    piece = random_piece(kind)
    about, listed, at, data = settings(shape), b"", 0, []
    for name, sizes in tensors(shape):
        count = int(numpy.prod(sizes))
        size = count * 4 if len(sizes) == 1 else count // elements * block
        listed += text(name) + struct.pack("<I", len(sizes)) + b"".join(struct.pack("<Q", s) for s in sizes)
        listed += struct.pack("<IQ", 0 if len(sizes) == 1 else type_id, at)
        data.append((len(sizes) == 1, size))
        at += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(data), len(about)) + b"".join(about) + listed
    with open(out, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for is_vector, size in data:
            left = size
            while left > 0:
                n = min(left, len(piece) // block * block)
                f.write(numpy.ones(size // 4, numpy.float32).tobytes() if is_vector else memoryview(piece)[:n])
                left -= size if is_vector else n
            f.write(b"\0" * (-size % ALIGNMENT))
    print(f"{out}: {at / 2**30:.2f} GiB")


main()
