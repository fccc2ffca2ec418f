"""Golden rows for tests/unit/test_kvq_trials.c: codecs that are only measured, written from their papers with NumPy.

    python tests/golden-tools/trial_goldens.py tests/data/kvq

Each file holds keys then values, bf16 as decoded. Input rows are those of kvq_goldens.py. Shares no code with kvq.
"""
import math
import os
import sys

import numpy as np

from kvq_goldens import Random, input_rows, to_float


def fp16(x):
    return np.clip(x, -65504, 65504).astype(np.float32).astype(np.float16).astype(np.float64)


def bf16(x):
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def asymmetric(x, axis, size, last):
    """Groups of `size` along the axis (the last may be short), levels from the smallest to the largest value."""
    out = np.empty_like(x)
    for first in range(0, x.shape[axis], size):
        part = np.take(x, range(first, min(first + size, x.shape[axis])), axis)
        low, high = part.min(axis, keepdims=True), part.max(axis, keepdims=True)
        step, start = fp16((high - low) / last), fp16(low)
        code = np.where(step > 0, np.floor((part - start) / np.where(step > 0, step, 1) + .5), 0).clip(0, last)
        index = [slice(None)] * x.ndim
        index[axis] = slice(first, first + part.shape[axis])
        out[tuple(index)] = start + step * code
    return out


def kivi(k, v):  # arXiv 2402.02750, section 3.2: keys by channel over tokens, values by token over channels
    return asymmetric(k, 0, 32, 3), asymmetric(v, 1, 32, 3)


def symmetric(x, largest):
    groups = x.reshape(-1, 32)
    scale = fp16(np.abs(groups).max(1, keepdims=True) / largest)
    code = np.where(scale > 0, np.floor(groups / np.where(scale > 0, scale, 1) + .5), 0).clip(-largest, largest)
    return (scale * code).reshape(x.shape)


def centroids(n):
    """Levels of the n-level Lloyd-Max quantiser of a unit normal, to six places: its two conditions, in turn until they hold."""
    levels = np.linspace(-2.5, 2.5, n)
    for _ in range(5000):
        edges = [-np.inf, *((levels[1:] + levels[:-1]) / 2), np.inf]
        mass = np.diff([math.erf(e / math.sqrt(2)) / 2 for e in edges])
        levels = -np.diff([math.exp(-e * e / 2) / math.sqrt(2 * math.pi) for e in edges]) / mass
    return np.round(levels, 6)


def turboquant(x, levels):  # arXiv 2504.19874, section 3.1; the scale is <x,c> / <c,c>
    rms = np.sqrt((x * x).mean(1, keepdims=True))
    unit = np.where(rms > 0, x / np.where(rms > 0, rms, 1), 0)
    half = levels[len(levels) // 2:]
    code = np.searchsorted((half[1:] + half[:-1]) / 2, np.abs(unit), side='right')
    c = half[code] * np.where(np.signbit(x), -1, 1) * (rms > 0)
    size = (c * c).sum(1, keepdims=True)
    return fp16((x * c).sum(1, keepdims=True) / np.where(size > 0, size, 1)) * c


def gear(x, axis):
    """arXiv 2403.05527, algorithms 1 and 2: outliers along the axis, two bits in groups of 64, rank 2 of what is left."""
    n = max(1, (x.shape[axis] + 50) // 100)
    kept = np.zeros(x.shape, bool)
    for y in (x, -x):  # the first of equal ones
        np.put_along_axis(kept, np.argsort(-y, axis, kind='stable').take(range(n), axis), True, axis)
    base = asymmetric(np.where(kept, x.mean(axis, keepdims=True), x).astype(np.float32).astype(np.float64), axis, 64, 3)
    base = base.astype(np.float32).astype(np.float64)
    error = np.where(kept, 0, x - base)
    b = np.array([[(i * 7 + r * 11) % 13 - 6. for r in range(2)] for i in range(x.shape[1])])
    for _ in range(3):
        a = np.linalg.qr(error @ b)[0]
        b = error.T @ a
    sign = np.sign(a[np.abs(a).argmax(0), range(2)])  # QR leaves the sign open; the product does not depend on it
    return np.where(kept, fp16(x), base + fp16(a * sign) @ fp16(b * sign).T)


if __name__ == '__main__':
    eight, sixteen = centroids(8), centroids(16)
    codecs = {'kivi': kivi, 'int4': lambda k, v: (symmetric(k, 7), symmetric(v, 7)),
              'int8': lambda k, v: (symmetric(k, 127), symmetric(v, 127)),
              'turboquant-3': lambda k, v: (turboquant(k, eight), turboquant(v, eight)),
              'turboquant-4': lambda k, v: (turboquant(k, sixteen), turboquant(v, sixteen))}
    for name, code in codecs.items():
        for d, rows in ((64, 77), (128, 32)):
            random = Random(1000 * d + rows)
            k, v = (to_float(input_rows(random, rows, d)).astype(np.float64) for _ in range(2))
            with open(os.path.join(sys.argv[1], f'{name}-{d}-{rows}.rows'), 'wb') as f:
                for x in code(k, v):
                    f.write(bf16(x).tobytes())
    random = Random(140)
    k, v = (to_float(input_rows(random, 140, 64))[12:].astype(np.float64) for _ in range(2))  # without the special rows
    with open(os.path.join(sys.argv[1], 'gear-64-128.rows'), 'wb') as f:
        f.write(bf16(gear(k, 0)).tobytes() + bf16(gear(v, 1)).tobytes())
