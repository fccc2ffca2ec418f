"""Golden pages of the codec oscar+ for tests/unit/test_oscar_plus.c, from the rules in kvq/codecs/oscar_plus/rows.h and the
layout in kernels/fragment.h, with NumPy, sharing no code with kvq.

    python tests/golden-tools/oscar_plus_goldens.py tests/data/kvq

Input rows come from a generator that the test repeats; some rows are special: zeros, one huge value, subnormals, equal ones.
"""
import os
import sys

import numpy as np


def random_rows(state, rows, d):
    x = np.zeros((2 * rows, d), np.uint16)
    for r in range(2 * rows):
        for c in range(d):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
            u = state >> 33
            sign, mantissa = (u & 1) << 15, (u >> 1) & 127
            x[r, c] = {3: 0, 5: 0x7180 if c == 17 else 0, 7: sign | mantissa, 9: 0x3f80}.get(
                r % rows, sign | (118 + (u >> 8) % 9) << 7 | mantissa)
    return x[:rows], x[rows:]


def to_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def energy(x):
    """Sum of squares: eight partial sums over channels equal mod 8, then halves together."""
    s = np.zeros(8)
    for part in (x * x).reshape(-1, 8):
        s = s + part
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


def lanes(x):
    s = np.zeros(8)
    for part in x.reshape(-1, 8):
        s = s + part
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


def half(x):
    return np.float16(min(np.float32(x), np.float32(65504)))


def four_levels(bits, unbiased):
    x = to_float(bits).astype(np.float64)
    size, d, magnitude = energy(x), len(x), np.abs(x)
    per_unit = 25 / np.sqrt(size / d) if size else 0.
    reached, everything = magnitude * per_unit - 17, lanes(magnitude)
    best = None
    for n in range(16, 0, -1):
        x_c, c_c = everything + 2 * lanes(np.where(reached >= n, magnitude, 0.)), d + 8 * int((reached >= n).sum())
        if best is None or x_c * x_c / c_c > best[0]:
            best = x_c * x_c / c_c, x_c, c_c, n
    _, x_c, c_c, n = best
    codes = np.array([(1 - (r >= n)) if s >> 15 else 2 + (r >= n) for r, s in zip(reached, bits)])
    scale = half((2 * size / x_c if x_c > 0 else 0) if unbiased else 2 * np.sqrt(size / c_c))
    return (codes if scale else codes * 0), scale


def sixteen_levels(bits):
    x = to_float(bits)
    size, d, magnitude = energy(x.astype(np.float64)), len(x), np.abs(x)
    rms, best = np.sqrt(size / d), None
    for i in range(9):
        if not rms:
            break
        per_step = np.float32(min(1 / (rms * .3352 * (.75 + .07 * i)), 1e37))
        at = magnitude * per_step
        odd = 2 * np.where(at >= 7, 7, np.floor(at)).astype(int) + 1
        x_c, c_c = lanes(odd.astype(np.float64) * magnitude.astype(np.float64)), int((odd * odd).sum())
        if best is None or x_c * x_c / c_c > best[0]:
            best = x_c * x_c / c_c, odd, c_c
    if best is None:
        return np.zeros(d, int), np.float16(0)
    steps = (best[1] - 1) // 2
    codes, scale = np.where(bits >> 15, 7 - steps, 8 + steps), half(2 * np.sqrt(size / best[2]))
    return (codes if scale else codes * 0), scale


def plane(codes, keys):
    tokens, d = codes.shape
    out = np.zeros(32 * d, np.uint8)
    for token in range(tokens):
        for channel in range(d):
            if keys:
                row, column = token, channel
                upper = token >> 4 & 1 if d == 64 else channel >> 6 & 1
                block = token // 32 if d == 64 else token // 16
            else:
                row, column, upper, block = channel, token, token >> 6 & 1, channel // 16
            byte = 512 * block + 64 * (row % 8) + 16 * (column >> 1 & 3) + 8 * (column >> 3 & 1) + 4 * (row >> 3 & 1) + 2 * (column & 1) + upper
            out[byte] |= int(codes[token, channel]) << 2 * (column >> 4 & 3)
    return out.tobytes()


def page(d, rows, k_bits):
    k, v = random_rows(7 * d + rows, rows, d)
    kc, vc, ks, vs = np.zeros((128, d), int), np.zeros((128, d), int), np.zeros(128, '<f2'), np.zeros(128, '<f2')
    for r in range(rows):
        kc[r], ks[r] = sixteen_levels(k[r]) if k_bits == 4 else four_levels(k[r], False)
        vc[r], vs[r] = four_levels(v[r], True)
    planes = plane(kc >> 2, True) + plane(kc & 3, True) if k_bits == 4 else plane(kc, True)
    return planes + plane(vc, False) + ks.tobytes() + vs.tobytes()


with np.errstate(over='ignore'):
    for d, rows, k_bits in ((64, 128, 2), (64, 128, 4), (128, 77, 2), (128, 77, 4)):
        with open(os.path.join(sys.argv[1], f'oscar+{"k4" if k_bits == 4 else ""}-{d}-{rows}.page'), 'wb') as f:
            f.write(page(d, rows, k_bits))
