"""Golden pages for tests/unit/test_kvq_page.c: the packed page written from its description, with NumPy, sharing no code with kvq.

    python tests/golden-tools/kvq_goldens.py tests/data/kvq

Positions follow the lane and register numbers of the matrix product (m16n8k16, operand A): a 512-byte block is 32 lanes of four
32-bit words; word j of lane 4 g + t holds row g + 8 (j & 1), columns 2 t + 8 (j >> 1) and the next, of eight products m at bits
8 (m >> 2) + 2 (m & 3), the second column 16 bits higher. Keys: rows are tokens, columns channels; values the other way round.
Rules for scales and codes are those of kvq/rows.h. Input rows come from a generator that the test repeats.
"""
import os
import sys

import numpy as np


class Random:
    def __init__(self, seed):
        self.state = seed

    def __call__(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        return self.state >> 33


def input_rows(random, rows, d):
    """bf16 bit patterns: ordinary rows, and zeros, one huge value, subnormals, a constant, large beside small."""
    x = np.zeros((rows, d), np.uint16)
    for r in range(rows):
        spread = random() % 8
        for c in range(d):
            u = random()
            sign, mantissa = (u & 1) << 15, (u >> 1) & 127
            bits = sign | (118 + spread + (u >> 8) % 6) << 7 | mantissa
            special = {3: 0, 5: 0x7180 if c == 17 else 0, 7: sign | mantissa, 9: 0x3f80, 11: 0x4700 if c % 2 else 0xb000}
            x[r, c] = special.get(r, bits)
    return x


def to_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def total(x):
    """Eight partial sums in float64, channel mod 8, then halves together."""
    s = np.zeros(8)
    for part in x.reshape(-1, 8):
        s = s + part
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


def half(x):
    return np.float16(min(np.float32(x), np.float32(65504)))


OUTER, INNER = np.float64(np.float32(1.51)), np.float64(np.float32(.453))


def lloyd_max(x, unbiased):
    x = x.astype(np.float64)
    size = total(x * x)
    threshold = np.float32(.5 * (OUTER + INNER) * np.sqrt(size / len(x)))
    outer = np.abs(x) >= threshold
    codes = np.where(np.signbit(x), np.where(outer, 0, 1), np.where(outer, 3, 2))
    c_c = int(np.where(outer, 100, 9).sum())
    step = OUTER / 10
    x_c = total(np.where(outer, 10., 3.) * np.abs(x))
    if unbiased:
        scale = half(size / (x_c * step) if x_c else 0.)
    else:
        scale = half(x_c / (c_c * step))
    return (codes if scale else codes * 0), scale, np.float16(0)


def uniform16(x):
    x = x.astype(np.float64)
    size = total(x * x)
    step = .3352 * np.sqrt(size / len(x))
    codes = np.clip(np.trunc(np.maximum(x / step + 8, 0)), 0, 15).astype(int) if step else np.zeros(len(x), int)
    scale = half(2 * np.sqrt(size / int(((2 * codes - 15) ** 2).sum())))
    return (codes if scale else codes * 0), scale, np.float16(0)


def min_max(x):
    x = x.astype(np.float64)
    low, high = x.min(), x.max()
    scale = half(max((high - low) / 3, abs(low) / 60000))
    if not scale and (low < 0 or high > 0):
        scale = np.float16(2 ** -24)
    if not scale:
        return np.zeros(len(x), int), scale, np.float16(0)
    zero = np.float16(np.float32(np.clip(-low / np.float64(scale), -65504, 65504)))
    return np.clip(np.floor(x / np.float64(scale) + np.float64(zero) + .5), 0, 3).astype(int), scale, zero


def put(block_words, g, t, j, m, second, code):
    block_words[4 * g + t, j] |= np.uint32(code << (8 * (m >> 2) + 2 * (m & 3) + (16 if second else 0)))


def key_plane(codes):
    tokens, d = codes.shape
    blocks = np.zeros((d * 32 // 512, 32, 4), np.uint32)
    for token in range(tokens):
        for channel in range(d):
            tile, r, m = token // 16, token % 16, channel // 16
            if d == 64:  # two tiles of four products share a block
                block, m = tile // 2, m + 4 * (tile % 2)
            else:  # d 256: sixteen products in two blocks
                block, m = tile * (d // 128) + m // 8, m % 8
            column = channel % 16
            put(blocks[block], r % 8, column % 8 // 2, r // 8 + 2 * (column // 8), m, column % 2, int(codes[token, channel]))
    return blocks.astype('<u4').tobytes()


def value_plane(codes):
    tokens, d = codes.shape
    blocks = np.zeros((d * 32 // 512, 32, 4), np.uint32)
    for token in range(tokens):
        for channel in range(d):
            r, column = channel % 16, token % 16
            put(blocks[channel // 16], r % 8, column % 8 // 2, r // 8 + 2 * (column // 8), token // 16, column % 2,
                int(codes[token, channel]))
    return blocks.astype('<u4').tobytes()


def rows_to_arrays(x, rule):
    d = x.shape[1]
    codes, scales, zeros = np.zeros((128, d), int), np.zeros(128, np.float16), np.zeros(128, np.float16)
    for r in range(len(x)):
        codes[r], scales[r], zeros[r] = rule(to_float(x[r]))
    return codes, scales.astype('<f2').tobytes(), zeros.astype('<f2').tobytes()


def page(codec, d, rows):
    random = Random(1000 * d + rows)
    k, v = input_rows(random, rows, d), input_rows(random, rows, d)
    rules = {'turboquant': (lambda x: lloyd_max(x, False), lambda x: lloyd_max(x, False)),
             'turboquant-k4': (uniform16, lambda x: lloyd_max(x, True)), 'naive': (min_max, min_max)}[codec]
    (kc, ks, kz), (vc, vs, vz) = rows_to_arrays(k, rules[0]), rows_to_arrays(v, rules[1])
    planes = key_plane(kc >> 2) + key_plane(kc & 3) if codec == 'turboquant-k4' else key_plane(kc)
    zeros = codec == 'naive'
    return planes + value_plane(vc) + ks + (kz if zeros else b'') + vs + (vz if zeros else b'')


if __name__ == '__main__':
    for codec, d, rows in (('turboquant', 64, 128), ('turboquant', 128, 77), ('turboquant', 256, 128), ('turboquant-k4', 64, 50),
                           ('turboquant-k4', 128, 128), ('turboquant-k4', 256, 20), ('naive', 64, 128), ('naive', 128, 30)):
        with open(os.path.join(sys.argv[1], f'{codec}-{d}-{rows}.page'), 'wb') as f:
            f.write(page(codec, d, rows))
