"""Kernels between the projections of attention and its output, for few tokens: RoPE, cache append, attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sp.native.blocks import Unit, unit
from sp.native.code import F16, F32, I32, I64, LANES, FunctionBuilder, Value, Variable, lanes
from sp.native.compiled import CompiledModule
from sp.native.elementwise import power_of_two
from sp.native.products import fields, kernel, real
from sp.quant import BlockFormat

TILE = 64  # keys per tile of the online softmax
NEVER = -1e30  # the score of an empty slot, below that of any key


@cache
def turned(head_dim: int, half: int, interleaved: bool, normed: bool) -> CompiledModule:
    """Compile RMSNorm of heads, if `normed`, and RoPE: ``y[i] = x[i] c[i] + x[partner(i)] s[i]``.

    An item is a head of a token. Fields: addresses of x, its weight, c and s (tokens, head_dim) and out (tokens, heads,
    head_dim); heads per token, bytes from head to head of x; eps. `half`: distance between the two values of a pair, a
    multiple of LANES; pairs are neighbours if `interleaved`."""
    parts = range(0, head_dim, LANES)

    def partner(values: Sequence[Value], part: int) -> Value:
        if interleaved:
            swapped = [lane ^ 1 for lane in range(LANES)]
            return values[part // LANES].code.shuffled(values[part // LANES], swapped)
        other = part + half if part < half else part - half if part < 2 * half else part
        return values[other // LANES]

    def write(code: FunctionBuilder, task: Value, first: Value, last: Value) -> None:
        x, weight, cos, sin, out, heads, stride = fields(code, task, 7)
        with code.counting(first, last) as row:
            start, offset = x + row * stride, row // heads * (4 * head_dim)
            values = [code.load(F32, start + 4 * part, wide=True) for part in parts]
            if normed:
                squares = code.all_lanes(0.0)
                for vector in values:
                    squares = code.multiplied(vector, vector, squares)
                mean = code.total(squares) / float(head_dim)
                scale = code.number(1.0, F32) / code.root(mean + real(code, task, 7))
                weights = [code.load(F32, weight + 4 * part, wide=True) for part in parts]
                values = [vector * scale * factor for vector, factor in zip(values, weights, strict=True)]
            for part, vector in zip(parts, values, strict=True):
                c, s = (code.load(F32, table + offset + 4 * part, wide=True) for table in (cos, sin))
                # `s` has the sign of the rotation, and is 0 for values that are not rotated.
                code.store(vector * c + partner(values, part) * s, out + row * (4 * head_dim) + 4 * part)

    return kernel(write)


@cache
def stored(fmt: BlockFormat, head_dim: int) -> CompiledModule:
    """Compile a copy of rows of heads into pages of float16 or float32, as `kv_append` stores them.

    An item is a head of a token. Fields: addresses of x (tokens, kv_heads, head_dim), of pages, of the block table and
    of an int64 that is set to 1 if float16 cannot represent a value; the first slot, slots per page, kv_heads."""
    nbytes = fmt.row_bytes(head_dim)

    def write(code: FunctionBuilder, task: Value, first: Value, last: Value) -> None:
        x, pages, table, flag, start, page_tokens, kv_heads = fields(code, task, 7)
        with code.counting(first, last) as row:
            slot = start + row // kv_heads
            page = code.load(I64, table + slot // page_tokens * 8)
            target = pages + ((page * page_tokens + slot % page_tokens) * kv_heads + row % kv_heads) * nbytes
            for part in range(0, head_dim, LANES):
                values = code.load(F32, x + row * (4 * head_dim) + 4 * part, wide=True)
                if fmt.block_bytes == 4:
                    code.store(values, target + 4 * part)
                    continue
                halves = Value(code, code.builder.fptrunc(values.raw, lanes(F16)))
                code.store(halves, target + 2 * part)
                size = (values.bits(I32) & 0x7FFFFFFF).bits(F32)
                # NaN must count too, as with the encoder, so "not below" is tested; 65520 rounds to infinity.
                overflow = code.largest(code.chosen(size.below(65520.0), code.all_lanes(0.0), code.all_lanes(1.0)))
                with code.where(code.number(0.0, F32).below(overflow)):
                    code.store(code.number(1), flag)

    return kernel(write)


@cache
def attended(
    key_fmt: BlockFormat, value_fmt: BlockFormat, head_dim: int, group: int, page_tokens: int
) -> CompiledModule:
    """Compile causal attention of the last tokens over packed pages, by an online softmax over tiles of keys.

    An item is a kv head of a token, with the `group` query heads that share it. Fields: addresses of q and out (tokens,
    heads, head_dim), pages of keys, of values, the block table, the first key that each token sees (int32), or 0, and
    sink logits (heads,) in base 2, or 0; tokens stored, query tokens, kv_heads; the scale of scores in base 2."""
    keys, values = _unit(key_fmt, head_dim), _unit(value_fmt, head_dim)
    key_bytes, value_bytes = key_fmt.row_bytes(head_dim), value_fmt.row_bytes(head_dim)
    parts = head_dim // LANES

    def row(code: FunctionBuilder, unit: Unit, address: Value) -> list[Value]:
        vectors: list[Value] = []
        for block in range(head_dim // unit.values):
            vectors += unit.unpack(code, address + block * unit.nbytes)
        return vectors

    def write(code: FunctionBuilder, task: Value, first: Value, last: Value) -> None:
        q, out, k, v, table, reach, sinks, stored_tokens, n, kv_heads = fields(code, task, 10)
        scores = code.room(F32, group * TILE)
        with code.counting(first, last) as item:
            token, head = item // kv_heads, item % kv_heads
            start = item * (4 * group * head_dim)
            scale = code.splat(real(code, task, 10))
            # The scale is applied to queries once, so that dot products are scores in base 2.
            query = [code.load(F32, q + start + 4 * LANES * part, wide=True) * scale for part in range(group * parts)]
            # Causal: the last n tokens see all keys up to their own.
            seen, first_key = stored_tokens - n + token + 1, code.variable(code.number(0))
            with code.where(code.number(0).below(reach)):
                first_key.set(code.load(I32, reach + token * 4).widened(I64))
            sums = [code.variable(code.all_lanes(0.0)) for _ in range(group * parts)]
            totals = [code.variable(code.number(0.0, F32)) for _ in range(group)]
            tops = [code.variable(code.number(NEVER, F32)) for _ in range(group)]

            def place(slot: Value, pages: Value, nbytes: int) -> Value:
                page = code.load(I64, table + slot // page_tokens * 8)
                return pages + ((page * page_tokens + slot % page_tokens) * kv_heads + head) * nbytes

            with code.counting(first_key.value, seen, TILE) as tile:
                remaining = seen - tile
                count = code.chosen(remaining.below(TILE), remaining, code.number(TILE))
                # The last tile may have fewer keys: its empty slots get a weight of 0.
                for part in range(0, group * TILE, LANES):
                    code.store(code.all_lanes(NEVER), scores + 4 * part)
                with code.counting(0, count) as index:
                    vectors = row(code, keys, place(tile + index, k, key_bytes))
                    for h in range(group):
                        dot = code.all_lanes(0.0)
                        for part, key in enumerate(vectors):
                            dot = code.multiplied(query[h * parts + part], key, dot)
                        code.store(code.total(dot), scores + 4 * TILE * h + index * 4)
                for h in range(group):
                    _weigh(
                        code,
                        scores + 4 * TILE * h,
                        tops[h],
                        totals[h],
                        sums[h * parts : (h + 1) * parts],
                    )
                with code.counting(0, count) as index:
                    vectors = row(code, values, place(tile + index, v, value_bytes))
                    for h in range(group):
                        weight = code.splat(code.load(F32, scores + 4 * TILE * h + index * 4))
                        for part, value in enumerate(vectors):
                            total = sums[h * parts + part]
                            total.set(code.multiplied(weight, value, total.value))
            # A sink has no value vector: it adds to the denominator alone.
            with code.where(code.number(0).below(sinks)):
                for h in range(group):
                    sink = code.load(F32, sinks + (head * group + h) * 4)
                    power = code.first(power_of_two(code, code.splat(sink - tops[h].value)))
                    totals[h].set(totals[h].value + power)
            for h in range(group):
                share = code.splat(code.number(1.0, F32) / totals[h].value)
                for part in range(parts):
                    code.store(
                        sums[h * parts + part].value * share,
                        out + start + 4 * LANES * (h * parts + part),
                    )

    return kernel(write)


def _weigh(code: FunctionBuilder, scores: Value, top: Variable, total: Variable, sums: Sequence[Variable]) -> None:
    """Turn the scores of a tile into softmax weights relative to the running maximum, and rescale the earlier sums to
    it."""
    tile = [code.load(F32, scores + 4 * part, wide=True) for part in range(0, TILE, LANES)]
    peak = tile[0]
    for vector in tile[1:]:
        peak = peak.larger(vector)
    before, now = top.value, code.largest(peak).larger(top.value)
    rescale, weights = power_of_two(code, code.splat(before - now)), code.all_lanes(0.0)
    for part, vector in enumerate(tile):
        # A slot past the last key counts for nothing at all: its power would be small, but not zero.
        power = code.chosen(vector.below(NEVER / 2), code.all_lanes(0.0), power_of_two(code, vector - now))
        code.store(power, scores + 4 * LANES * part)
        weights = weights + power
    total.set(total.value * code.first(rescale) + code.total(weights))
    for partial in sums:
        partial.set(partial.value * rescale)
    top.set(now)


def _unit(fmt: BlockFormat, head_dim: int) -> Unit:
    supported = unit(fmt.decode, head_dim)
    assert supported is not None, f"heads of {head_dim} values in {fmt.name} are not unpacked here"
    return supported
