"""normed and gated: kernels over the numbers of a few tokens, and the exponential that they need."""

from __future__ import annotations

import math
from functools import cache

from sp.native.code import F32, I32, LANES, Code, Value, lanes
from sp.native.compiled import Compiled
from sp.native.products import fields, kernel, real

LOWEST = -126.0  # exponents below are those of numbers that count for nothing beside others
POWERS = (1.0, 0.6931472, 0.2402265, 0.05550411, 0.009618129, 0.0013333558, 0.00015403530)
"""ln(2)**k / k!: of the polynomial for 2**f, f within half of 0, which misses it by less than half a float32 step."""


def power_of_two(code: Code, x: Value) -> Value:
    """``2 ** x`` of vectors, within two float32 steps; of x below -126 2**-126, above 127.5 infinity."""
    most = code.all_lanes(128.0)  # whose exponent is that of infinity
    x = x.larger(code.all_lanes(LOWEST))
    x = code.chosen(most.below(x), most, x)
    whole = code.intrinsic(f"llvm.rint.v{LANES}f32", lanes(F32), (x,))
    rest, found = x - whole, code.all_lanes(POWERS[-1])
    for power in POWERS[-2::-1]:
        found = code.multiplied(found, rest, code.all_lanes(power))
    exponent = Value(code, code.builder.fptosi(whole.raw, lanes(I32))) + 127 << 23
    return found * exponent.bits(F32)


@cache
def normed() -> Compiled:
    """Rows of ``x / sqrt(mean(x²) + eps) * w``. Fields: addresses of x, w and out; numbers of a row, a multiple of
    LANES; eps, as bits of a float32."""

    def write(code: Code, task: Value, first: Value, last: Value) -> None:
        x, w, out, width = fields(code, task, 4)
        eps = real(code, task, 4)
        size = width * 4
        with code.counting(first, last) as row:
            start, to, squares = x + row * size, out + row * size, code.variable(code.all_lanes(0.0))
            with code.counting(0, size, 4 * LANES) as at:
                values = code.load(F32, start + at, wide=True)
                squares.set(code.multiplied(values, values, squares.value))
            count = Value(code, code.builder.sitofp(width.raw, F32))
            scale = code.number(1.0, F32) / code.root(code.total(squares.value) / count + eps)
            with code.counting(0, size, 4 * LANES) as at:
                values = code.load(F32, start + at, wide=True) * scale
                code.store(values * code.load(F32, w + at, wide=True), to + at)

    return kernel(write)


@cache
def gated(gelu: bool) -> Compiled:
    """``silu(gate) * up``, or with `gelu` as `geglu` has it. An item is LANES numbers. Fields: addresses of
    gate, up and out, which may be one of them."""

    def write(code: Code, task: Value, first: Value, last: Value) -> None:
        gate, up, out = fields(code, task, 3)
        with code.counting(first, last) as item:
            at = item * (4 * LANES)
            x = code.load(F32, gate + at, wide=True)
            turned = (x + x * x * x * 0.044715) * (2 * math.sqrt(2 / math.pi)) if gelu else x
            share = code.all_lanes(1.0) / (power_of_two(code, turned * -math.log2(math.e)) + 1.0)
            code.store(x * share * code.load(F32, up + at, wide=True), out + at)

    return kernel(write)
