"""unpacked: a block of packed values as vectors of float32; the instructions for every format that has some here.

Sums and products are those of the NumPy decoders, in their order: without fusing (`Code.fused`) every bit is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from sp.arrays import Bytes, Floats
from sp.native.code import F16, F32, I8, I16, I32, LANES, Code, Value
from sp.native.compiled import has_halves
from sp.quant import BF16, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, BlockFormat
from sp.quant import F16 as HALVES
from sp.quant import F32 as PLAIN

Unpack = Callable[[Code, Value], list[Value]]  # the block at an address -> its values, LANES a vector


@dataclass(frozen=True)
class Unit:
    """What is unpacked at once: a block, or of plain numbers LANES of them."""

    values: int
    nbytes: int
    unpack: Unpack


Decode = Callable[[Bytes], Floats]


@cache
def unit(decode: Decode, width: int) -> Unit | None:
    """How rows of `width` values are unpacked that `decode`, a `BlockFormat.decode`, is for; None where that is
    NumPy's. A format may be equal to another that is decoded otherwise: see `BlockFormat.times`.

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


def _half(code: Code, address: Value) -> Value:
    """A float16 in every lane."""
    return code.splat(code.load(F16, address).floats())


def _nibbles(code: Code, address: Value) -> tuple[Value, Value]:
    """Low and high nibbles of 16 bytes."""
    packed = code.load(I8, address, wide=True).widened()
    return packed & 15, packed >> 4


def _legacy(codes_at: int, high_at: int | None, middle: int | None) -> Unpack:
    """32 codes of four or five bits around a middle, or from a minimum."""

    def unpack(code: Code, block: Value) -> list[Value]:
        d, found = _half(code, block), []
        least = _half(code, block + 2) if middle is None else None
        fifth = None if high_at is None else code.splat(code.load(I32, block + high_at))
        for part, codes in enumerate(_nibbles(code, block + codes_at)):
            if fifth is not None:
                codes = codes | (fifth >> code.counted(LANES * part) & 1) << 4
            found.append(codes.floats() * d + least if least is not None else (codes.floats() - (middle or 0)) * d)
        return found

    return unpack


def _q8_0(code: Code, block: Value) -> list[Value]:
    d = _half(code, block)
    codes = [code.load(I8, block + at, wide=True).widened(signed=True) for at in (2, 18)]
    return [one.floats() * d for one in codes]


def _six_bits(code: Code, at: Value) -> tuple[list[Value], list[Value]]:
    """Eight scales and eight minima of Q4_K and Q5_K."""
    low = [code.load(I8, at + byte).widened() for byte in range(12)]
    scales = [one & 63 for one in low[:4]] + [low[8 + i] & 15 | low[i] >> 6 << 4 for i in range(4)]
    minima = [one & 63 for one in low[4:8]] + [low[8 + i] >> 4 | low[4 + i] >> 6 << 4 for i in range(4)]
    return scales, minima


def _affine_k(codes_at: int, high_at: int | None) -> Unpack:
    """256 codes of four or five bits in eight sub-blocks with a minimum each."""

    def unpack(code: Code, block: Value) -> list[Value]:
        d, dmin = (code.load(F16, block + at).floats() for at in (0, 2))
        scales, minima = _six_bits(code, block + 4)
        found: list[Value] = []
        for pair in range(4):
            halves = [_nibbles(code, block + (codes_at + 32 * pair + at)) for at in (0, 16)]
            for part in range(2):
                group = 2 * pair + part
                step, offset = code.splat(d * scales[group].floats()), code.splat(dmin * minima[group].floats())
                for at in range(2):
                    codes = halves[at][part]
                    if high_at is not None:
                        high = code.load(I8, block + (high_at + 16 * at), wide=True).widened()
                        codes = codes | (high >> group & 1) << 4
                    found.append(codes.floats() * step - offset)
        return found

    return unpack


def _q6_k(code: Code, block: Value) -> list[Value]:
    d, found = code.load(F16, block + 208).floats(), []
    for run in range(16):
        half, quarter, part = run // 8, run % 8 // 2, run % 2
        low = code.load(I8, block + (64 * half + 32 * (quarter % 2) + 16 * part), wide=True).widened()
        low = low & 15 if quarter < 2 else low >> 4
        high = code.load(I8, block + (128 + 32 * half + 16 * part), wide=True).widened()
        codes = (low | (high >> 2 * quarter & 3) << 4) - 32
        scale = code.load(I8, block + (192 + run)).widened(signed=True)
        found.append(codes.floats() * code.splat(d * scale.floats()))
    return found


def _q3_k(code: Code, block: Value) -> list[Value]:
    d, found = code.load(F16, block + 108).floats(), []
    for run in range(16):
        part, sub = run % 2, run // 2
        low = code.load(I8, block + (32 + 32 * (sub // 4) + 16 * part), wide=True).widened()
        high = code.load(I8, block + 16 * part, wide=True).widened()
        codes = (low >> 2 * (sub % 4) & 3 | (high >> sub & 1) << 2) - 4
        nibble = code.load(I8, block + (96 + run % 8)).widened()
        nibble = nibble & 15 if run < 8 else nibble >> 4
        top = code.load(I8, block + (104 + run % 4)).widened() >> 2 * (run // 4) & 3
        scale = (nibble | top << 4) - 32
        found.append(codes.floats() * code.splat(d * scale.floats()))
    return found


def _halves(code: Code, block: Value) -> list[Value]:
    return [code.load(F16, block, wide=True).floats()]


def _upper(code: Code, block: Value) -> list[Value]:
    return [(code.load(I16, block, wide=True).widened() << 16).bits(F32)]


def _plain(code: Code, block: Value) -> list[Value]:
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
