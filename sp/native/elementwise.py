"""RMSNorm and gated activations of a few tokens, and the exponential they need."""

from __future__ import annotations

import math
from functools import cache

from sp.native.code import F32, I32, LANES, FunctionBuilder, Value, lanes
from sp.native.compiled import CompiledModule
from sp.native.products import fields, kernel, real

LOWEST = -126.0  # the smallest exponent of a normal float32; smaller powers are negligible in any sum
POWERS = (1.0, 0.6931472, 0.2402265, 0.05550411, 0.009618129, 0.0013333558, 0.00015403530)
"""Coefficients ln(2)**k / k! of the polynomial for 2**f, |f| <= 0.5; its error is less than half a float32 step."""


def power_of_two(code: FunctionBuilder, x: Value) -> Value:
    """Return ``2 ** x`` of vectors, within two float32 steps; 2**-126 for x below -126, infinity above 127.5."""
    overflow = code.all_lanes(128.0)  # its biased exponent, 255, is that of infinity
    x = x.larger(code.all_lanes(LOWEST))
    x = code.chosen(overflow.below(x), overflow, x)
    whole = code.intrinsic(f"llvm.rint.v{LANES}f32", lanes(F32), (x,))
    rest, polynomial = x - whole, code.all_lanes(POWERS[-1])
    for power in POWERS[-2::-1]:
        polynomial = code.multiplied(polynomial, rest, code.all_lanes(power))
    # 127 is the bias of a float32's exponent, which begins at bit 23.
    exponent = Value(code, code.builder.fptosi(whole.raw, lanes(I32))) + 127 << 23
    return polynomial * exponent.bits(F32)


@cache
def normed() -> CompiledModule:
    """Compile RMSNorm of rows, ``x / sqrt(mean(x²) + eps) * w``. Fields: addresses of x, w and out; numbers per row, a
    multiple of LANES; eps, as bits of a float32."""

    def write(code: FunctionBuilder, task: Value, first: Value, last: Value) -> None:
        x, w, out, width = fields(code, task, 4)
        eps = real(code, task, 4)
        size = width * 4
        with code.counting(first, last) as row:
            start, target, squares = x + row * size, out + row * size, code.variable(code.all_lanes(0.0))
            with code.counting(0, size, 4 * LANES) as offset:
                values = code.load(F32, start + offset, wide=True)
                squares.set(code.multiplied(values, values, squares.value))
            count = Value(code, code.builder.sitofp(width.raw, F32))
            scale = code.number(1.0, F32) / code.root(code.total(squares.value) / count + eps)
            with code.counting(0, size, 4 * LANES) as offset:
                values = code.load(F32, start + offset, wide=True) * scale
                code.store(values * code.load(F32, w + offset, wide=True), target + offset)

    return kernel(write)


@cache
def gated(gelu: bool) -> CompiledModule:
    """Compile ``silu(gate) * up``, or with `gelu` the product that `geglu` computes. An item is LANES numbers. Fields:
    addresses of gate, up and out, two of which may be the same."""

    def write(code: FunctionBuilder, task: Value, first: Value, last: Value) -> None:
        gate, up, out = fields(code, task, 3)
        with code.counting(first, last) as item:
            offset = item * (4 * LANES)
            x = code.load(F32, gate + offset, wide=True)
            # The tanh form of GELU is x * sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
            argument = (x + x * x * x * 0.044715) * (2 * math.sqrt(2 / math.pi)) if gelu else x
            sigmoid = code.all_lanes(1.0) / (power_of_two(code, argument * -math.log2(math.e)) + 1.0)
            code.store(x * sigmoid * code.load(F32, up + offset, wide=True), out + offset)

    return kernel(write)
