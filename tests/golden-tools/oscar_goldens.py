"""Golden data of the codecs oscar, oscar-bisect and oscar-lm for tests/unit/test_oscar.c, from the description of the method (arXiv
2605.17757 and its released code) with NumPy, sharing no code with kvq.

    python tests/golden-tools/oscar_goldens.py tests/data/kvq

Pages: rows of kvq_goldens.py. Codes: rotations from made-up queries and the keys and values of recorded-k-v.bf16, rotated in
float64 and rounded to bf16, coded, packed as the release packs rows: byte j holds the codes of channels j, j + d/4, j + d/2 and
j + 3 d/4, lowest first. [sort, bisection, Lloyd-Max][K, V][head][token][d / 4].
"""
import os
import sys

import numpy as np

import kvq_goldens as common

F = np.float32


def clip_sort(x, ratio):
    return np.sort(np.abs(x))[min(int(ratio * len(x)), len(x) - 1)]


def clip_bisect(x, ratio):
    allowed = len(x) - min(int(ratio * len(x)), len(x) - 1)
    low, high = F(0), np.abs(x).max()
    for _ in range(len(x).bit_length() - 1):
        middle = (low + high) * F(.5)
        if (np.abs(x) > middle).sum() > allowed:
            low = middle
        else:
            high = middle
    return high


def min_max_codes(x):
    s = max(x.max() - x.min(), F(1e-8)) / F(3)
    z = -x.min() / s
    return np.trunc(x / s + z + F(.5)).astype(int), s, z


def lloyd_max_codes(x):
    mean = F(x.astype(np.float64).mean())
    deviation = np.sqrt(F(((x - mean).astype(np.float64) ** 2).mean()) + F(1e-8))
    at = (x - mean) / deviation
    codes = sum((at >= t).astype(int) for t in (F(-0.9810652732849121), F(0), F(0.9810652732849121)))
    s = F(2) * F(1.5095585584640503) / F(3) * F(1.16) * deviation
    return codes, s, F(1.5) - mean / s


RULES = {'oscar': (clip_sort, min_max_codes), 'oscar-bisect': (clip_bisect, min_max_codes), 'oscar-lm': (clip_sort, lloyd_max_codes)}


def code_row(codec, x, ratio):
    clip, rule = RULES[codec]
    t = clip(x, ratio)
    return rule(np.clip(x, -t, t))


def rule_for_pages(codec, ratio):
    def rule(x):
        with np.errstate(all='ignore'):
            codes, s, z = code_row(codec, x, ratio)
        if 2. ** -14 <= s < 65504 and abs(z) < 65504:
            return codes, np.float16(s), np.float16(z)
        return common.min_max(x)
    return rule


def page(codec, d, rows):
    random = common.Random(1000 * d + rows)
    k, v = common.input_rows(random, rows, d), common.input_rows(random, rows, d)
    kc, ks, kz = common.rows_to_arrays(k, rule_for_pages(codec, .96))
    vc, vs, vz = common.rows_to_arrays(v, rule_for_pages(codec, .92))
    return common.key_plane(kc) + common.value_plane(vc) + ks + kz + vs + vz


# ---- rotations ----

HEADS, TOKENS, D, QUERIES = 3, 64, 64, 256


def made_up_queries():
    """Normal-ish numbers whose spread differs from channel to channel and which share a direction."""
    random, q = common.Random(77), np.zeros((HEADS, QUERIES, D), np.float32)
    for h in range(HEADS):
        for t in range(QUERIES):
            row = [sum(random() % 4096 for _ in range(4)) - 8190 for _ in range(D)]
            for c in range(D):
                q[h, t, c] = (row[c] * (1 + (7 * c + h) % 13) + 3 * row[0]) / 4096.
    return q


def eigenbasis(c):
    values, u = np.linalg.eigh((c + c.T) / 2)
    largest = np.abs(u).argmax(0)
    return u * np.sign(u[largest, np.arange(D)])


def rotation(c):
    """U H P: H the Hadamard matrix in Sylvester order; column j of the product is column d - 1 - rev(j)."""
    bits = D.bit_length() - 1
    h = np.array([[(-1.) ** bin(i & j).count('1') for j in range(D)] for i in range(D)]) / np.sqrt(D)
    order = [D - 1 - int(format(j, f'0{bits}b')[::-1], 2) for j in range(D)]
    return (eigenbasis(c) @ h)[:, order]


def round_bf16(x):
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32)).view(np.float32)


def rotations(q, k, v):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    c_h = [q[h].T @ q[h] / QUERIES for h in range(HEADS)]
    c_v = []
    for h in range(HEADS):
        w = np.einsum('ti,ij,tj->t', k[h], c_h[h], k[h])
        w = w * TOKENS / max(w.sum(), 1e-12)
        c_v.append((v[h].T * w) @ v[h] / TOKENS)
    return rotation(sum(c_h) / HEADS), rotation(sum(c_v) / HEADS)


def all_codes(folder):
    raw = common.to_float(np.fromfile(os.path.join(folder, 'recorded-k-v.bf16'), '<u2')).reshape(2, HEADS, TOKENS, D)
    out = b''
    turned = [round_bf16(x.astype(np.float64) @ r) for x, r in zip(raw, rotations(made_up_queries(), *raw))]
    for codec in RULES:
        for x, ratio in zip(turned, (.96, .92)):
            for row in x.reshape(-1, D):
                q = code_row(codec, row, ratio)[0].reshape(4, D // 4).astype(np.uint8)
                out += (q[0] | q[1] << 2 | q[2] << 4 | q[3] << 6).tobytes()
    return out


folder = sys.argv[1]
for codec, d, rows in (('oscar', 64, 128), ('oscar', 128, 77), ('oscar-bisect', 64, 128), ('oscar-lm', 64, 128)):
    with open(os.path.join(folder, f'{codec}-{d}-{rows}.page'), 'wb') as f:
        f.write(page(codec, d, rows))
with open(os.path.join(folder, 'oscar-recorded.codes'), 'wb') as f:
    f.write(all_codes(folder))
