"""product and unpacking: kernels over rows of packed weights. A kernel takes a task, eight bytes a field, and which of
its items it is to do; see `Task`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from sp.native.blocks import Unit, unit
from sp.native.code import F32, LANES, Code, Value
from sp.native.compiled import Compiled, compiled
from sp.quant import BlockFormat

FIELDS = 16  # of a task: kernel, items, tasks beside it, whether one thread does it, and from HEAD on the kernel's own
HEAD = 4


def fields(code: Code, task: Value, count: int) -> list[Value]:
    """The first fields of a task that are its own."""
    return [code.load(ir.IntType(64), task + 8 * (HEAD + index)) for index in range(count)]


def real(code: Code, task: Value, index: int) -> Value:
    """A field that holds the bits of a float32."""
    return code.load(F32, task + 8 * (HEAD + index))


def kernel(write: Callable[[Code, Value, Value, Value], None], *, fused: bool = True) -> Compiled:
    """One kernel, called ``kernel``: `write` gets the code, the task, the first item and the one behind the last."""

    def module(made: ir.Module) -> None:
        code = Code(made, "kernel", 3, fused=fused)
        write(code, *code.arguments)
        code.end()

    return compiled(module)


@cache
def product(fmt: BlockFormat, tokens: int, add: bool) -> Compiled:
    """``y[t, r] = sum_i x[t, i] w[r, i]`` for rows r of packed weights and so many tokens, plus ``z[t, r]`` with `add`.

    Fields: addresses of w, x (float32), y (float32), z (float32); bytes of a row, units of a row; rows of x, y and z in
    bytes.
    """

    def write(code: Code, task: Value, first: Value, last: Value) -> None:
        w, x, y, z, row_bytes, units, x_row, y_row, z_row = fields(code, task, 9)
        # A token alone is bound by unpacking; more are by reading inputs, which two rows share.
        of, chains, rows = _unit(fmt), 2 if tokens == 1 else 1, 1 if tokens == 1 else 2
        inputs = [x + x_row * token for token in range(tokens)]

        def together(row: Value, count: int) -> None:
            zero = code.all_lanes(0.0)
            starts = [w + (row + one) * row_bytes for one in range(count)]
            sums = [[[code.variable(zero) for _ in range(chains)] for _ in range(tokens)] for _ in range(count)]
            with code.counting(0, units) as block:
                found = [of.unpack(code, start + block * of.nbytes) for start in starts]
                for index, weights in enumerate(zip(*found, strict=True)):
                    at = block * (4 * of.values) + 4 * LANES * index
                    for token in range(tokens):
                        values = code.load(F32, inputs[token] + at, wide=True)
                        for held, weight in zip(sums, weights, strict=True):
                            chain = held[token][index % chains]
                            chain.set(code.multiplied(weight, values, chain.value))
            for one in range(count):
                for token in range(tokens):
                    made = sums[one][token][0].value
                    for more in sums[one][token][1:]:
                        made = made + more.value
                    result, at = code.total(made), (row + one) * 4
                    if add:
                        result = result + code.load(F32, z + z_row * token + at)
                    code.store(result, y + y_row * token + at)

        whole = last - (last - first) % rows
        with code.counting(first, whole, rows) as row:
            together(row, rows)
        if rows > 1:
            with code.counting(whole, last) as row:
                together(row, 1)

    return kernel(write)


@cache
def unpacking(fmt: BlockFormat) -> Compiled:
    """Rows of packed weights as float32, as `BlockFormat.decode` gives them. Fields: addresses of w and out; bytes of a
    row; units of a row."""

    def write(code: Code, task: Value, first: Value, last: Value) -> None:
        w, out, row_bytes, units = fields(code, task, 4)
        of = _unit(fmt)
        with code.counting(first, last) as row:
            start, to = w + row * row_bytes, out + row * units * (4 * of.values)
            with code.counting(0, units) as block:
                for index, values in enumerate(of.unpack(code, start + block * of.nbytes)):
                    code.store(values, to + block * (4 * of.values) + 4 * LANES * index)

    return kernel(write, fused=False)


def _unit(fmt: BlockFormat) -> Unit:
    found = unit(fmt.decode, 16 * max(fmt.block_size, LANES))
    assert found is not None, f"{fmt.name} is not unpacked here"
    return found
