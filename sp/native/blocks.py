"""Unpack a block of packed values to vectors of float32: instruction sequences for every format that has some here.

Sums and products are those of the NumPy decoders, in their order: without fusing (`FunctionBuilder.fused`) every bit is
equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from sp.arrays import Bytes, Floats
from sp.native.code import F16, F32, I8, I16, I32, LANES, FunctionBuilder, Value
from sp.native.compiled import has_halves
from sp.quant import BF16, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, BlockFormat
from sp.quant import F16 as HALVES
from sp.quant import F32 as PLAIN

Unpack = Callable[[FunctionBuilder, Value], list[Value]]  # the block at an address -> its values, LANES a vector


@dataclass(frozen=True)
class Unit:
    """The values unpacked at once: a block or, of a plain format, LANES numbers. `nbytes`: their size in the file."""

    values: int
    nbytes: int
    unpack: Unpack


Decode = Callable[[Bytes], Floats]


@cache
def unit(decode: Decode, width: int) -> Unit | None:
    """Return how to unpack rows of `width` values that `decode`, a `BlockFormat.decode`, decodes; None where NumPy has
    to do it. A format may be equal to another that is decoded differently: see `BlockFormat.times`.

    >>> unit(Q4_1.decode, 576).nbytes, unit(PLAIN.decode, 576).values, unit(PLAIN.decode, 577)
    (20, 16, None)
    >>> unit(Q4_1.times(0.5).decode, 576) is None
    True
    """
    fmt = _BY_DECODE.get(decode)
    if fmt is None or not has_halves():
        return None
    values = max(fmt.block_size, LANES)
    return None if width % values else Unit(values, values // fmt.block_size * fmt.block_bytes, UNPACK[fmt])


def _half(code: FunctionBuilder, address: Value) -> Value:
    """Load a float16 and broadcast it to every lane, as float32."""
    return code.splat(code.load(F16, address).floats())


def _nibbles(code: FunctionBuilder, address: Value) -> tuple[Value, Value]:
    """Load 16 bytes and split them into low and high nibbles."""
    packed = code.load(I8, address, wide=True).widened()
    return packed & 15, packed >> 4


def _legacy(codes_at: int, high_at: int | None, middle: int | None) -> Unpack:
    """Unpack 32 codes of four or five bits, around a middle code or above a minimum."""

    def unpack(code: FunctionBuilder, block: Value) -> list[Value]:
        d, vectors = _half(code, block), []
        minimum = _half(code, block + 2) if middle is None else None
        fifth = None if high_at is None else code.splat(code.load(I32, block + high_at))
        for part, codes in enumerate(_nibbles(code, block + codes_at)):
            if fifth is not None:
                codes = codes | (fifth >> code.counted(LANES * part) & 1) << 4
            vectors.append(
                codes.floats() * d + minimum if minimum is not None else (codes.floats() - (middle or 0)) * d
            )
        return vectors

    return unpack


def _q8_0(code: FunctionBuilder, block: Value) -> list[Value]:
    d = _half(code, block)
    codes = [code.load(I8, block + offset, wide=True).widened(signed=True) for offset in (2, 18)]
    return [half.floats() * d for half in codes]


def _six_bits(code: FunctionBuilder, address: Value) -> tuple[list[Value], list[Value]]:
    """Unpack the eight scales and eight minima of Q4_K and Q5_K, six bits each."""
    low = [code.load(I8, address + index).widened() for index in range(12)]
    # K-quants pack eight 6-bit pairs in 12 bytes: the first four whole, the others as nibbles and two high bits.
    scales = [byte & 63 for byte in low[:4]] + [low[8 + i] & 15 | low[i] >> 6 << 4 for i in range(4)]
    minima = [byte & 63 for byte in low[4:8]] + [low[8 + i] >> 4 | low[4 + i] >> 6 << 4 for i in range(4)]
    return scales, minima


def _affine_k(codes_at: int, high_at: int | None) -> Unpack:
    """Unpack 256 codes of four or five bits in eight sub-blocks with a scale and a minimum each."""

    def unpack(code: FunctionBuilder, block: Value) -> list[Value]:
        d, dmin = (code.load(F16, block + offset).floats() for offset in (0, 2))
        scales, minima = _six_bits(code, block + 4)
        vectors: list[Value] = []
        for pair in range(4):
            halves = [_nibbles(code, block + (codes_at + 32 * pair + start)) for start in (0, 16)]
            for part in range(2):
                group = 2 * pair + part
                step, offset = code.splat(d * scales[group].floats()), code.splat(dmin * minima[group].floats())
                for half in range(2):
                    codes = halves[half][part]
                    if high_at is not None:
                        high = code.load(I8, block + (high_at + 16 * half), wide=True).widened()
                        codes = codes | (high >> group & 1) << 4
                    vectors.append(codes.floats() * step - offset)
        return vectors

    return unpack


def _q6_k(code: FunctionBuilder, block: Value) -> list[Value]:
    d, vectors = code.load(F16, block + 208).floats(), []
    for run in range(16):
        half, quarter, part = run // 8, run % 8 // 2, run % 2
        # Each half of 128 values has 64 bytes of low nibbles and 32 bytes of high bits, two bits for each of four
        # quarters.
        low = code.load(I8, block + (64 * half + 32 * (quarter % 2) + 16 * part), wide=True).widened()
        low = low & 15 if quarter < 2 else low >> 4
        high = code.load(I8, block + (128 + 32 * half + 16 * part), wide=True).widened()
        codes = (low | (high >> 2 * quarter & 3) << 4) - 32
        scale = code.load(I8, block + (192 + run)).widened(signed=True)
        vectors.append(codes.floats() * code.splat(d * scale.floats()))
    return vectors


def _q3_k(code: FunctionBuilder, block: Value) -> list[Value]:
    d, vectors = code.load(F16, block + 108).floats(), []
    for run in range(16):
        part, sub = run % 2, run // 2
        # Two low bits from 64 bytes, the high bit from 32 bytes with one bit per 32-value sub-block.
        low = code.load(I8, block + (32 + 32 * (sub // 4) + 16 * part), wide=True).widened()
        high = code.load(I8, block + 16 * part, wide=True).widened()
        codes = (low >> 2 * (sub % 4) & 3 | (high >> sub & 1) << 2) - 4
        # The 16 scales have six bits: a nibble in the first 8 bytes, their two high bits in the last 4.
        nibble = code.load(I8, block + (96 + run % 8)).widened()
        nibble = nibble & 15 if run < 8 else nibble >> 4
        top = code.load(I8, block + (104 + run % 4)).widened() >> 2 * (run // 4) & 3
        scale = (nibble | top << 4) - 32
        vectors.append(codes.floats() * code.splat(d * scale.floats()))
    return vectors


def _halves(code: FunctionBuilder, block: Value) -> list[Value]:
    return [code.load(F16, block, wide=True).floats()]


def _upper(code: FunctionBuilder, block: Value) -> list[Value]:
    # BF16 is the upper half of a float32.
    return [(code.load(I16, block, wide=True).widened() << 16).bits(F32)]


def _plain(code: FunctionBuilder, block: Value) -> list[Value]:
    return [code.load(F32, block, wide=True)]


UNPACK: dict[BlockFormat, Unpack] = {
    PLAIN: _plain,
    HALVES: _halves,
    BF16: _upper,
    Q4_0: _legacy(2, None, 8),
    Q4_1: _legacy(4, None, None),
    Q5_0: _legacy(6, 2, 16),
    Q5_1: _legacy(8, 4, None),
    Q8_0: _q8_0,
    Q3_K: _q3_k,
    Q4_K: _affine_k(16, None),
    Q5_K: _affine_k(48, 16),
    Q6_K: _q6_k,
}
_BY_DECODE = {fmt.decode: fmt for fmt in UNPACK}
