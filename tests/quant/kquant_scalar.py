"""The K-quant encoders, one value at a time, as their description reads: slow, literal and independent of `sp`.

Every operation is one rounded float32 operation, in the order a scalar loop would do it. Each function returns the
numbers of one block (scales and codes); the byte layout is checked by decoding, against the `gguf` package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

F = np.float32


@dataclass
class Affine:
    """d, dmin (as fp16), eight 6-bit scales and minima, 256 codes."""

    d: np.float16
    dmin: np.float16
    scales: list[int]
    minima: list[int]
    codes: list[int]


@dataclass
class Symmetric:
    """d (as fp16), sixteen signed 8-bit scales, 256 signed codes."""

    d: np.float16
    scales: list[int]
    codes: list[int]


def rounded(value: np.float32, low: int, high: int) -> int:
    """Nearest integer, halves to even, clipped."""
    return int(min(max(np.rint(value), low), high))


def fit_affine(x: list[np.float32], top: int, first: float, steps: int) -> tuple[F, F, list[int]]:
    """Scale, minimum (>= 0) and codes of 32 values."""
    square = F(0)
    for v in x:
        square += v * v
    mean = np.sqrt(square / F(32))
    w = [mean + abs(v) for v in x]
    low, high = min(min(x), F(0)), max(x)
    if low == high:
        return F(0), -low, [0] * 32
    sum_w = sum_x = F(0)
    for v, wv in zip(x, w, strict=True):
        sum_w += wv
        sum_x += wv * v

    def error(scale: F, offset: F, codes: list[int]) -> F:
        total = F(0)
        for v, wv, c in zip(x, w, codes, strict=True):
            difference = scale * F(c) + offset - v
            total += wv * (difference * difference)
        return total

    inverse = F(top) / (high - low)
    codes = [rounded(inverse * (v - low), 0, top) for v in x]
    scale = F(1) / inverse
    best = error(scale, low, codes)
    for step in range(steps + 1):
        inverse = (F(first) + F(0.1) * F(step) + F(top)) / (high - low)
        trial = [rounded(inverse * (v - low), 0, top) for v in x]
        sum_l = sum_ll = sum_xl = F(0)
        for v, wv, c in zip(x, w, trial, strict=True):
            sum_l += wv * F(c)
            sum_ll += wv * F(c) * F(c)
            sum_xl += wv * F(c) * v
        determinant = sum_w * sum_ll - sum_l * sum_l
        if not determinant > 0:
            continue
        fit = (sum_w * sum_xl - sum_x * sum_l) / determinant
        offset = (sum_ll * sum_x - sum_l * sum_xl) / determinant
        if offset > 0:
            offset, fit = F(0), sum_xl / sum_ll
        trial_error = error(fit, offset, trial)
        if trial_error < best:
            best, scale, low, codes = trial_error, fit, offset, trial
    return scale, -low, codes


def encode_affine(block: np.ndarray, top: int, first: float, steps: int) -> Affine:
    """One block of Q4_K (15, -1.0, 20) or Q5_K (31, -0.5, 15)."""
    parts = [list(part) for part in block.reshape(8, 32)]
    fits = [fit_affine(part, top, first, steps) for part in parts]
    largest_scale = max(max(fit[0] for fit in fits), F(0))
    largest_minimum = max(max(fit[1] for fit in fits), F(0))
    to_scale = F(63) / largest_scale if largest_scale > 0 else F(0)
    to_minimum = F(63) / largest_minimum if largest_minimum > 0 else F(0)
    scales = [rounded(to_scale * fit[0], 0, 63) for fit in fits]
    minima = [rounded(to_minimum * fit[1], 0, 63) for fit in fits]
    d, dmin = np.float16(largest_scale / F(63)), np.float16(largest_minimum / F(63))
    codes: list[int] = []
    for part, fit, scale, minimum in zip(parts, fits, scales, minima, strict=True):
        step, offset = F(d) * F(scale), F(dmin) * F(minimum)
        codes += [rounded((v + offset) / step, 0, top) for v in part] if step else fit[2]
    return Affine(d, dmin, scales, minima, codes)


def fit_symmetric(x: list[np.float32]) -> tuple[F, list[int]]:
    """Scale and codes -32..31 of 16 values."""
    peak = F(0)
    for v in x:
        if abs(v) > abs(peak):
            peak = v
    if abs(peak) < F(1e-15):
        return F(0), [-32] * 16

    def trial(step: int) -> tuple[F, F, list[int]]:
        inverse = -(F(32) + F(0.1) * F(step)) / peak
        codes = [rounded(inverse * v, -32, 31) for v in x]
        sum_lx = sum_ll = F(0)
        for v, c in zip(x, codes, strict=True):
            sum_lx += v * v * v * F(c)
            sum_ll += v * v * F(c) * F(c)
        return sum_lx, sum_ll, codes

    sum_lx, sum_ll, codes = trial(0)
    scale = sum_lx / sum_ll if sum_ll else F(0)
    best = scale * sum_lx
    for step in (*range(-9, 0), *range(1, 10)):
        sum_lx, sum_ll, trial_codes = trial(step)
        if sum_ll > 0 and sum_lx * sum_lx > best * sum_ll:
            scale, codes = sum_lx / sum_ll, trial_codes
            best = scale * sum_lx
    return scale, codes


def encode_symmetric(block: np.ndarray) -> Symmetric:
    """One block of Q6_K."""
    parts = [list(part) for part in block.reshape(16, 16)]
    fits = [fit_symmetric(part) for part in parts]
    largest = F(0)
    for fit in fits:
        if abs(fit[0]) > abs(largest):
            largest = fit[0]
    if abs(largest) < F(1e-15):
        return Symmetric(np.float16(0), [0] * 16, [-32] * 256)
    inverse = F(-128) / largest
    d = np.float16(F(1) / inverse)
    scales = [rounded(inverse * fit[0], -128, 127) for fit in fits]
    codes: list[int] = []
    for part, fit, scale in zip(parts, fits, scales, strict=True):
        step = F(d) * F(scale)
        codes += [rounded(v / step, -32, 31) for v in part] if step else fit[1]
    return Symmetric(d, scales, codes)


def unpack_affine(block: np.ndarray, five_bit: bool) -> Affine:
    """Read a packed Q4_K or Q5_K block back, bit by bit."""
    d, dmin = block[:4].view(np.float16)
    s = [int(v) for v in block[4:16]]
    scales = [s[j] & 63 if j < 4 else (s[j + 4] & 15) | (s[j - 4] >> 6 << 4) for j in range(8)]
    minima = [s[j + 4] & 63 if j < 4 else (s[j + 4] >> 4) | (s[j] >> 6 << 4) for j in range(8)]
    low, codes = block[48:] if five_bit else block[16:], []
    for j in range(8):
        for i in range(32):
            code = int(low[32 * (j // 2) + i]) >> 4 * (j % 2) & 15
            codes.append(code | (int(block[16 + i]) >> j & 1) << 4 if five_bit else code)
    return Affine(d, dmin, scales, minima, codes)


def unpack_symmetric(block: np.ndarray) -> Symmetric:
    """Read a packed Q6_K block back, bit by bit."""
    codes = []
    for e in range(256):
        half, quarter, i = e // 128, e % 128 // 32, e % 32
        low = int(block[64 * half + 32 * (quarter % 2) + i]) >> 4 * (quarter // 2) & 15
        codes.append((low | (int(block[128 + 32 * half + i]) >> 2 * quarter & 3) << 4) - 32)
    return Symmetric(block[208:].view(np.float16)[0], [int(v) for v in block[192:208].view(np.int8)], codes)
