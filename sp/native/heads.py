"""turned, stored and attended: kernels between the projections of attention and its output, for few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sp.native.blocks import Unit, unit
from sp.native.code import F16, F32, I32, I64, LANES, Code, Value, Variable, lanes
from sp.native.compiled import Compiled
from sp.native.elementwise import power_of_two
from sp.native.products import fields, kernel, real
from sp.quant import BlockFormat

TILE = 64  # keys whose scores are made before any of them counts
NEVER = -1e30  # a score that no key has


@cache
def turned(head_dim: int, half: int, interleaved: bool, normed: bool) -> Compiled:
    """Heads that are normed, or not, and turned: ``y[i] = x[i] c[i] + x[partner(i)] s[i]``.

    An item is a head of a token. Fields: addresses of x, its weight, c and s (tokens, head_dim) and out (tokens, heads,
    head_dim); heads of a token, bytes from head to head of x; eps. `half`: partners are so many values apart, a
    multiple of LANES, or neighbours if `interleaved`.
    """
    parts = range(0, head_dim, LANES)

    def partner(values: Sequence[Value], part: int) -> Value:
        if interleaved:
            swapped = [lane ^ 1 for lane in range(LANES)]
            return values[part // LANES].code.shuffled(values[part // LANES], swapped)
        other = part + half if part < half else part - half if part < 2 * half else part
        return values[other // LANES]

    def write(code: Code, task: Value, first: Value, last: Value) -> None:
        x, weight, cos, sin, out, heads, stride = fields(code, task, 7)
        with code.counting(first, last) as row:
            start, at = x + row * stride, row // heads * (4 * head_dim)
            values = [code.load(F32, start + 4 * part, wide=True) for part in parts]
            if normed:
                squares = code.all_lanes(0.0)
                for one in values:
                    squares = code.multiplied(one, one, squares)
                mean = code.total(squares) / float(head_dim)
                scale = code.number(1.0, F32) / code.root(mean + real(code, task, 7))
                weights = [code.load(F32, weight + 4 * part, wide=True) for part in parts]
                values = [one * scale * by for one, by in zip(values, weights, strict=True)]
            for part, one in zip(parts, values, strict=True):
                c, s = (code.load(F32, table + at + 4 * part, wide=True) for table in (cos, sin))
                code.store(one * c + partner(values, part) * s, out + row * (4 * head_dim) + 4 * part)

    return kernel(write)


@cache
def stored(fmt: BlockFormat, head_dim: int) -> Compiled:
    """Rows of heads into pages of float16 or float32, as `kv_append` puts them there.

    An item is a head of a token. Fields: addresses of x (tokens, kv_heads, head_dim), of pages, of the table and of an
    int64 that is set to 1 where a float16 cannot hold a value; the first slot, slots of a page, kv_heads.
    """
    nbytes = fmt.row_bytes(head_dim)

    def write(code: Code, task: Value, first: Value, last: Value) -> None:
        x, pages, table, flag, start, page_tokens, kv_heads = fields(code, task, 7)
        with code.counting(first, last) as row:
            slot = start + row // kv_heads
            page = code.load(I64, table + slot // page_tokens * 8)
            to = pages + ((page * page_tokens + slot % page_tokens) * kv_heads + row % kv_heads) * nbytes
            for part in range(0, head_dim, LANES):
                values = code.load(F32, x + row * (4 * head_dim) + 4 * part, wide=True)
                if fmt.block_bytes == 4:
                    code.store(values, to + 4 * part)
                    continue
                halves = Value(code, code.builder.fptrunc(values.raw, lanes(F16)))
                code.store(halves, to + 2 * part)
                size = (values.bits(I32) & 0x7FFFFFFF).bits(F32)
                # Not "below", so that NaN counts too, as with the encoder; 65520 is rounded to infinity.
                held = code.largest(code.chosen(size.below(65520.0), code.all_lanes(0.0), code.all_lanes(1.0)))
                with code.where(code.number(0.0, F32).below(held)):
                    code.store(code.number(1), flag)

    return kernel(write)


@cache
def attended(key_fmt: BlockFormat, value_fmt: BlockFormat, head_dim: int, group: int, page_tokens: int) -> Compiled:
    """Causal attention of the last tokens over packed pages, by tiles of keys with a maximum that rises.

    An item is a kv head of a token, with the `group` heads that read it. Fields: addresses of q and out (tokens, heads,
    head_dim), pages of keys, of values, the table, the first key that each token sees (int32), or 0, and logits of
    sinks (heads,) in base 2, or 0; tokens stored, tokens that ask, kv_heads; the scale of scores in base 2.
    """
    keys, values = _unit(key_fmt, head_dim), _unit(value_fmt, head_dim)
    key_bytes, value_bytes = key_fmt.row_bytes(head_dim), value_fmt.row_bytes(head_dim)
    parts = head_dim // LANES

    def row(code: Code, of: Unit, at: Value) -> list[Value]:
        found: list[Value] = []
        for block in range(head_dim // of.values):
            found += of.unpack(code, at + block * of.nbytes)
        return found

    def write(code: Code, task: Value, first: Value, last: Value) -> None:
        q, out, k, v, table, reach, sinks, stored_tokens, n, kv_heads = fields(code, task, 10)
        scores = code.room(F32, group * TILE)
        with code.counting(first, last) as item:
            token, head = item // kv_heads, item % kv_heads
            at = item * (4 * group * head_dim)
            scale = code.splat(real(code, task, 10))
            asked = [code.load(F32, q + at + 4 * LANES * part, wide=True) * scale for part in range(group * parts)]
            seen, start = stored_tokens - n + token + 1, code.variable(code.number(0))
            with code.where(code.number(0).below(reach)):
                start.set(code.load(I32, reach + token * 4).widened(I64))
            sums = [code.variable(code.all_lanes(0.0)) for _ in range(group * parts)]
            totals = [code.variable(code.number(0.0, F32)) for _ in range(group)]
            tops = [code.variable(code.number(NEVER, F32)) for _ in range(group)]

            def place(slot: Value, pages: Value, nbytes: int) -> Value:
                page = code.load(I64, table + slot // page_tokens * 8)
                return pages + ((page * page_tokens + slot % page_tokens) * kv_heads + head) * nbytes

            with code.counting(start.value, seen, TILE) as tile:
                left = seen - tile
                count = code.chosen(left.below(TILE), left, code.number(TILE))
                for part in range(0, group * TILE, LANES):
                    code.store(code.all_lanes(NEVER), scores + 4 * part)
                with code.counting(0, count) as index:
                    found = row(code, keys, place(tile + index, k, key_bytes))
                    for one in range(group):
                        dot = code.all_lanes(0.0)
                        for part, key in enumerate(found):
                            dot = code.multiplied(asked[one * parts + part], key, dot)
                        code.store(code.total(dot), scores + 4 * TILE * one + index * 4)
                for one in range(group):
                    _weigh(code, scores + 4 * TILE * one, tops[one], totals[one], sums[one * parts : (one + 1) * parts])
                with code.counting(0, count) as index:
                    found = row(code, values, place(tile + index, v, value_bytes))
                    for one in range(group):
                        weight = code.splat(code.load(F32, scores + 4 * TILE * one + index * 4))
                        for part, value in enumerate(found):
                            held = sums[one * parts + part]
                            held.set(code.multiplied(weight, value, held.value))
            with code.where(code.number(0).below(sinks)):
                for one in range(group):
                    sink = code.load(F32, sinks + (head * group + one) * 4)
                    power = code.first(power_of_two(code, code.splat(sink - tops[one].value)))
                    totals[one].set(totals[one].value + power)
            for one in range(group):
                share = code.splat(code.number(1.0, F32) / totals[one].value)
                for part in range(parts):
                    code.store(sums[one * parts + part].value * share, out + at + 4 * LANES * (one * parts + part))

    return kernel(write)


def _weigh(code: Code, scores: Value, top: Variable, total: Variable, sums: Sequence[Variable]) -> None:
    """Scores of a tile to weights beside the largest score so far; what was added up before is made smaller."""
    found = [code.load(F32, scores + 4 * part, wide=True) for part in range(0, TILE, LANES)]
    most = found[0]
    for one in found[1:]:
        most = most.larger(one)
    before, now = top.value, code.largest(most).larger(top.value)
    shrunk, added = power_of_two(code, code.splat(before - now)), code.all_lanes(0.0)
    for part, one in enumerate(found):
        # A slot past the last key counts for nothing at all: its power would be small, but not zero.
        power = code.chosen(one.below(NEVER / 2), code.all_lanes(0.0), power_of_two(code, one - now))
        code.store(power, scores + 4 * LANES * part)
        added = added + power
    total.set(total.value * code.first(shrunk) + code.total(added))
    for held in sums:
        held.set(held.value * shrunk)
    top.set(now)


def _unit(fmt: BlockFormat, head_dim: int) -> Unit:
    found = unit(fmt.decode, head_dim)
    assert found is not None, f"heads of {head_dim} values in {fmt.name} are not unpacked here"
    return found
