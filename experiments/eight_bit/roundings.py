"""Ways to round the two sides of a matrix product: what each multiplies, as float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sp.ops.byte_rows.loud import loud_channels
from sp.ops.byte_rows.rows import ByteKind, Rounded, round_rows
from sp.quant import Q4_K, Q6_K, Q8_0, BlockFormat, Weight
from sp.quant.formats.kquants.shared import unpack_scales

Values = np.ndarray
LOUD = 6
"""Times the largest value of the median channel, from where on `apart` keeps a channel out."""


@dataclass(frozen=True)
class Way:
    """How a kernel rounds.

    Attributes
    ----------
    inputs : callable
        float32 (tokens, in) to what is multiplied, float64.
    weight : callable
        Weight to float64 (out, in).
    sums : callable, optional
        float32 (tokens, in) to float64 (tokens, in / 32): sums of inputs that minima are multiplied by, where these are
        not the sums of `inputs`; `weight` is then without minima.
    """

    inputs: Callable[[Values], Values]
    weight: Callable[[Weight], Values]
    sums: Callable[[Values], Values] | None = None

    def product(self, x: Values, w: Weight, weight: Values) -> Values:
        """float64 (tokens, out); `weight` is what `self.weight` makes of w, kept by who asks again."""
        y = self.inputs(x) @ weight.T
        return y if self.sums is None else y + self.sums(x) @ half_minima(w).T


@dataclass(frozen=True)
class ByteWay(Way):
    """As the kernels of `--math` multiply: both sides in bytes of a kind, loud channels apart in BF16."""

    kind: ByteKind = ByteKind.INT8

    def product(self, x: Values, w: Weight, weight: Values) -> Values:
        """As of `Way`; which channels are loud hangs on all of x."""
        loud = loud_channels(x)
        given = round_rows(x, self.kind, loud, True)
        return values_of(given) @ weight.T + given.loud.astype(np.float64) @ bf16(w.dense()[:, loud]).T


def byte_way(kind: ByteKind) -> ByteWay:
    none = np.empty(0, np.int64)
    return ByteWay(exact_inputs, lambda w: values_of(round_rows(w.dense(), kind, none, False)), kind=kind)


def values_of(rounded: Rounded) -> Values:
    """Codes times scales, float64."""
    scales = np.repeat(rounded.scales, rounded.codes.shape[1] // rounded.scales.shape[1], axis=1)
    return rounded.codes.astype(np.float64) * scales


def bf16(x: Values) -> Values:
    """To the nearest BF16, halves to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def e4m3(x: Values) -> Values:
    """To the nearest e4m3: four significant bits, steps of 2^-9 at the least; values lie within +-448 already."""
    step = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 2.0**-20))), -6) - 3)
    return np.rint(x / step) * step


def in_groups(x: Values, size: int | None, top: float, rounding: Callable[[Values], Values]) -> Values:
    """Each group of `size` values of a row (all of them: None) scaled so that its largest is `top`, and rounded."""
    groups = x.astype(np.float64).reshape(len(x), -1, size or x.shape[1])
    scale = np.abs(groups).max(-1, keepdims=True) / top
    return (rounding(groups / np.where(scale > 0, scale, 1)) * scale).reshape(x.shape)


def int8(size: int | None) -> Callable[[Values], Values]:
    return lambda x: in_groups(x, size, 127, np.rint)


def fp8(size: int | None) -> Callable[[Values], Values]:
    return lambda x: in_groups(x, size, 448, e4m3)


def exact(w: Weight) -> Values:
    return w.dense().astype(np.float64)


class IntegerForm(NamedTuple):
    """``w = scales * codes + shifts``.

    Attributes
    ----------
    codes : int8 (out, in)
        Counted from the middle of their range.
    scales : float32 (out, in / group)
        `group` is 32, of Q6_K 16.
    shifts : float32 (out, in / 32), optional
        What the middle stands for, less the minimum; None where that is 0.
    """

    codes: Values
    scales: Values
    shifts: Values | None


def integer_form(w: Weight) -> IntegerForm:
    """Of Q4_K, Q6_K or Q8_0. Scales are exact, shifts are rounded once."""
    assert w.format in (Q4_K, Q6_K, Q8_0), w.format.name
    blocks, rows = w.data.reshape(-1, w.format.block_bytes), w.shape[0]
    shifts = None
    if w.format is Q4_K:
        steps, minima = unpack_scales(blocks[:, 4:16])
        scales = halves(blocks[:, :2]) * steps
        shifts = (np.float32(Q4_K.packing.middle) * scales - halves(blocks[:, 2:4]) * minima).reshape(rows, -1)
    elif w.format is Q6_K:
        scales = halves(blocks[:, 208:]) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    else:
        scales = halves(blocks[:, :2])
    scales = scales.reshape(rows, -1)
    values, each = exact(w), w.shape[1] // scales.shape[1]
    if shifts is not None:
        values -= np.repeat(shifts, each, axis=1)
    codes = np.rint(values / np.repeat(np.where(scales == 0, np.float32(1), scales), each, axis=1))
    return IntegerForm(codes.astype(np.int8), scales, shifts)


def halves(stored: Values) -> Values:
    """float16 in bytes, as float32."""
    return np.ascontiguousarray(stored).view("<f2").astype(np.float32)


def of_form(form: IntegerForm, codes: Callable[[Values], Values], scale: Callable[[Values], Values]) -> Values:
    """Values of an integer form whose codes and scales are rounded."""
    repeated = np.repeat(scale(form.scales), form.codes.shape[1] // form.scales.shape[1], axis=1)
    values: Values = codes(form.codes.astype(np.float64)) * repeated
    if form.shifts is not None:
        values += np.repeat(scale(form.shifts), 32, axis=1)
    return values


def as_prefill(w: Weight) -> Values:
    """As the kernels of prefill multiply it: scales and what is added rounded to BF16, then the values."""
    return bf16(of_form(integer_form(w), lambda codes: codes, bf16))


def fp8_codes(w: Weight) -> Values:
    """Codes as e4m3, which has the whole numbers up to 16; scales exact."""
    return of_form(integer_form(w), e4m3, lambda scale: scale.astype(np.float64))


def rounded(weight: Callable[[Values], Values]) -> Callable[[Weight], Values]:
    return lambda w: weight(w.dense())


def q8_1(x: Values, halves: bool) -> Values:
    """int8 per 32 as llama.cpp; `halves`: with the scale in half precision, as for Q4_K."""
    groups = x.astype(np.float32).reshape(len(x), -1, 32)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    codes = np.rint(groups / np.where(scale > 0, scale, 1)).astype(np.float64)
    return (codes * (scale.astype(np.float16) if halves else scale)).reshape(x.shape)


def half_sums(x: Values) -> Values:
    """Sums of 32 inputs that were not rounded, in half precision."""
    return x.reshape(len(x), -1, 32).sum(-1).astype(np.float16).astype(np.float64)


def half_steps(w: Weight) -> Values:
    """Weights without their minima, scales in half precision."""
    form = integer_form(w)
    codes = form.codes.astype(np.float64) + w.format.packing.middle
    return codes * np.repeat(form.scales.astype(np.float16).astype(np.float64), 32, axis=1)


def half_minima(w: Weight) -> Values:
    """What is added to every value of a group of 32, in half precision."""
    form = integer_form(w)
    assert form.shifts is not None
    return (form.shifts - w.format.packing.middle * form.scales).astype(np.float16).astype(np.float64)


def ours(x: Values) -> Values:
    """int8 per 32, the two lowest bits of a scale's fraction cleared: `sp` once had a kernel that rounded so.

    Groups are zeros where the largest is below 2^-100. See ``results/nvidia-h200/notes-int8.md``.
    """
    groups = x.astype(np.float32).reshape(len(x), -1, 32)
    largest = np.abs(groups).max(-1, keepdims=True)
    told = largest >= np.float32(2.0**-100)
    scale = (np.where(told, largest / np.float32(127), np.float32(1)).view(np.uint32) & ~np.uint32(3)).view(np.float32)
    codes = np.rint(np.where(told, groups, 0) * (np.float32(1) / scale)).astype(np.float64)
    return (codes * scale).reshape(x.shape)


def apart(rounding: Callable[[Values], Values]) -> Callable[[Values], Values]:
    """Channels whose largest value is LOUD times that of the median channel in BF16, the others rounded."""

    def split(x: Values) -> Values:
        largest = np.abs(x).max(axis=0)
        loud = largest > LOUD * np.median(largest)
        return bf16(np.where(loud, x, 0)) + rounding(np.where(loud, 0, x).astype(np.float32))

    return split


def exact_inputs(x: Values) -> Values:
    return x.astype(np.float64)


def ways(fmt: BlockFormat) -> dict[str, Way]:
    """By name, for a format."""
    minima = fmt.packing.minima
    found = {
        "bf16, as today's prefill": Way(bf16, as_prefill),
        "bf16 inputs": Way(bf16, exact),
        "int8 per 32, ours": Way(ours, exact),
        "int8 per 32, q8_1": Way(
            lambda x: q8_1(x, minima), half_steps if minima else exact, half_sums if minima else None
        ),
    }
    found |= {f"int8 per {size}": Way(int8(size), exact) for size in (64, 128, 256)}
    found |= {
        "int8 per row": Way(int8(None), exact),
        "int8 per 32, loud channels apart": Way(apart(ours), exact),
        "int8 per 128, loud channels apart": Way(apart(int8(128)), exact),
        "int8 per row, loud channels apart": Way(apart(int8(None)), exact),
        "int8 weights per 128": Way(exact_inputs, rounded(int8(128))),
        "int8 weights per 256": Way(exact_inputs, rounded(int8(256))),
        "int8 per 128, weights too": Way(int8(128), rounded(int8(128))),
        "int8 per 256, weights too": Way(int8(256), rounded(int8(256))),
        "int8 per row, weights per row": Way(int8(None), rounded(int8(None))),
        "e4m3 per 32": Way(fp8(32), exact),
        "e4m3 per 128": Way(fp8(128), exact),
        "e4m3 per 32, codes e4m3": Way(fp8(32), fp8_codes),
        "e4m3 per 128, codes e4m3": Way(fp8(128), fp8_codes),
        "e4m3 per 128, weights too": Way(fp8(128), rounded(fp8(128))),
        "math int8: per 256, weights too, loud channels apart": byte_way(ByteKind.INT8),
        "math fp8: e4m3 per 256, weights too, loud channels apart": byte_way(ByteKind.E4M3),
    }
    return found
