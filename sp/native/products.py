"""Products and unpacking: kernels over rows of packed weights.

A kernel gets the address of a task, eight bytes per field, and the range of its items to do; see `Task`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from sp.native.blocks import Unit, unit
from sp.native.code import F32, LANES, FunctionBuilder, Value
from sp.native.compiled import CompiledModule, compile_module
from sp.quant import BlockFormat

# Fields of a task: kernel, items, number of concurrent tasks, 1 if one thread does it; from HEAD on the kernel's own.
FIELDS = 16
HEAD = 4


def fields(code: FunctionBuilder, task: Value, count: int) -> list[Value]:
    """Load the first `count` kernel-specific fields of a task."""
    return [code.load(ir.IntType(64), task + 8 * (HEAD + index)) for index in range(count)]


def real(code: FunctionBuilder, task: Value, index: int) -> Value:
    """Load a field that holds the bits of a float32."""
    return code.load(F32, task + 8 * (HEAD + index))


def kernel(write: Callable[[FunctionBuilder, Value, Value, Value], None], *, fused: bool = True) -> CompiledModule:
    """Compile one kernel, named ``kernel``. `write` gets the builder, the task, the first item and the end of the
    range."""

    def write_module(module: ir.Module) -> None:
        code = FunctionBuilder(module, "kernel", 3, fused=fused)
        write(code, *code.arguments)
        code.end()

    return compile_module(write_module)


@cache
def product(fmt: BlockFormat, tokens: int, add: bool) -> CompiledModule:
    """Compile ``y[t, r] = sum_i x[t, i] w[r, i]`` for rows r of packed weights and `tokens` tokens, plus ``z[t, r]`` if
    `add`.

    Fields: addresses of w, x (float32), y (float32), z (float32); bytes per row, units per row; row strides of x, y and
    z in bytes."""

    def write(code: FunctionBuilder, task: Value, first: Value, last: Value) -> None:
        w, x, y, z, row_bytes, units, x_row, y_row, z_row = fields(code, task, 9)
        # One token is bound by unpacking, so its sum has two independent chains; several are bound by loading inputs,
        # which two rows share.
        source, chains, rows = _unit(fmt), 2 if tokens == 1 else 1, 1 if tokens == 1 else 2
        inputs = [x + x_row * token for token in range(tokens)]

        def multiply_rows(row: Value, count: int) -> None:
            zero = code.all_lanes(0.0)
            starts = [w + (row + index) * row_bytes for index in range(count)]
            sums = [[[code.variable(zero) for _ in range(chains)] for _ in range(tokens)] for _ in range(count)]
            with code.counting(0, units) as block:
                unpacked = [source.unpack(code, start + block * source.nbytes) for start in starts]
                for index, weights in enumerate(zip(*unpacked, strict=True)):
                    offset = block * (4 * source.values) + 4 * LANES * index
                    for token in range(tokens):
                        values = code.load(F32, inputs[token] + offset, wide=True)
                        for row_sums, weight in zip(sums, weights, strict=True):
                            chain = row_sums[token][index % chains]
                            chain.set(code.multiplied(weight, values, chain.value))
            for index in range(count):
                for token in range(tokens):
                    vector = sums[index][token][0].value
                    for chain in sums[index][token][1:]:
                        vector = vector + chain.value
                    result, offset = code.total(vector), (row + index) * 4
                    if add:
                        result = result + code.load(F32, z + z_row * token + offset)
                    code.store(result, y + y_row * token + offset)

        whole = last - (last - first) % rows
        with code.counting(first, whole, rows) as row:
            multiply_rows(row, rows)
        if rows > 1:
            with code.counting(whole, last) as row:
                multiply_rows(row, 1)

    return kernel(write)


@cache
def unpacking(fmt: BlockFormat) -> CompiledModule:
    """Compile the unpacking of rows of packed weights to float32, with the bits of `BlockFormat.decode`. Fields:
    addresses of w and out; bytes per row; units per row."""

    def write(code: FunctionBuilder, task: Value, first: Value, last: Value) -> None:
        w, out, row_bytes, units = fields(code, task, 4)
        source = _unit(fmt)
        with code.counting(first, last) as row:
            start, target = w + row * row_bytes, out + row * units * (4 * source.values)
            with code.counting(0, units) as block:
                for index, values in enumerate(source.unpack(code, start + block * source.nbytes)):
                    code.store(values, target + block * (4 * source.values) + 4 * LANES * index)

    return kernel(write, fused=False)


def _unit(fmt: BlockFormat) -> Unit:
    supported = unit(fmt.decode, 16 * max(fmt.block_size, LANES))
    assert supported is not None, f"{fmt.name} is not unpacked here"
    return supported
