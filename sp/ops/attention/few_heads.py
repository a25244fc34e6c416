"""Head norms, RoPE, cache append and attention for few tokens on the CPU, by compiled loops (`sp.native`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.native.blocks import unit
from sp.native.code import LANES
from sp.native.heads import attended, turned
from sp.native.team import Task, address, bits, task
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.attention.stored_rows import NOT_HELD, storing
from sp.ops.rope import Rope
from sp.ops.threads import team

FEW = 8  # most queries for the compiled attention: for more, NumPy is faster, which unpacks keys once for all
TURNED = 1024  # most tokens whose cosines are in memory at once
BASE_2 = math.log2(math.e)

Asked = tuple[Floats, Floats | None]
"""Heads, float32 (tokens, heads, stride), and the weight of their norm, if they have one."""


@lru_cache(maxsize=8)
def _turns(positions: bytes, rotary: Rope, head_dim: int) -> tuple[Floats, Floats]:
    """Return the factors of values and of their partners, float32 (tokens, head_dim) each; cached, as layers share
    them."""
    count = len(positions) // 8
    cos, sin = np.ones((count, head_dim), np.float32), np.zeros((count, head_dim), np.float32)
    if rotary.dim:
        angle = np.frombuffer(positions, np.int64)[:, None] * rotary.inverse_frequencies
        for table, values, sign in ((cos, np.cos(angle), 1), (sin, np.sin(angle), -1)):
            first, second = rotary.pairs(table)
            first[...], second[...] = sign * values * rotary.magnitude, values * rotary.magnitude
    return cos, sin


@cache
def in_vectors(head_dim: int, rotary: Rope) -> bool:
    """Return True if `turned_heads` supports such heads: those whose pairs fill whole vectors.

    >>> in_vectors(64, Rope(1e4, 64)), in_vectors(64, Rope(1e4, 34)), in_vectors(24, Rope(1e4, 24, "interleaved"))
    (True, False, False)
    """
    return head_dim % LANES == 0 and (rotary.pairing == "interleaved" or rotary.dim // 2 % LANES == 0)


def turned_heads(
    each: Sequence[Asked], head_dim: int, eps: float, positions: Ints, rotary: Rope, at: PagedKV | None = None,
    v: Floats | None = None,
) -> list[Floats]:  # fmt: skip
    """`head_norm_rope` of several groups of heads of the same tokens: float32 (tokens, heads, head_dim) each. With `at`
    the last group are keys, which are stored there with `v`, float32 (tokens, kv_heads, head_dim)."""
    n, positions = len(positions), np.ascontiguousarray(positions, np.int64)
    given = [(np.ascontiguousarray(x), w if w is None else np.ascontiguousarray(w, np.float32)) for x, w in each]
    outs = [np.empty((*x.shape[:2], head_dim), np.float32) for x, _ in given]
    tasks, held = list[Task](), []
    for first in range(0, n, TURNED):
        some = min(TURNED, n - first)
        tables = _turns(positions[first : first + some].tobytes(), rotary, head_dim)
        held.append(tables)
        for (x, weight), out in zip(given, outs, strict=True):
            heads, stride = x.shape[1:]
            made = turned(head_dim, rotary.dim // 2, rotary.pairing == "interleaved", weight is not None)
            norm, row = 0 if weight is None else address(weight), 4 * first * heads
            where = address(x) + row * stride, norm, *map(address, tables), address(out) + row * head_dim
            tasks.append(task(made.address, some * heads, *where, heads, 4 * stride, bits(eps), alone=n == 1))
    if at is None or v is None:
        team().do(tasks)
        return outs
    keys, v, missed = outs[-1], np.ascontiguousarray(v), np.zeros(1, np.int64)
    table, plain = np.ascontiguousarray(at.table, np.int64), not at.rotated
    assert at.tokens + n <= len(table) * at.k.shape[1], f"{at.tokens}+{n} past {len(table)} pages"
    two = ((at.k, keys, at.fmt), (at.v, v, at.value_fmt or at.fmt))
    last = [storing(pages, table, at.tokens, rows, fmt, missed) for pages, rows, fmt in two if plain]
    if not plain or None in last:
        team().do(tasks)
        at.append(keys, v)
        return outs
    team().do([*tasks, *last])  # type: ignore[list-item]
    if missed[0]:
        raise ConfigError(NOT_HELD)
    return outs


def few_attended(q: Floats, at: PagedKV, rule: ScoreRule) -> Floats | None:
    """`attention` of few queries (n, heads, d), in the basis of the stored keys, over packed pages; None if NumPy has
    to do it."""
    (n, heads, d), kv_heads, values = q.shape, at.k.shape[2], at.value_fmt or at.fmt
    if not 0 < n <= FEW or q.dtype != np.float32 or rule.softcap is not None or at.recent is not None:
        return None
    if unit(at.fmt.decode, d) is None or unit(values.decode, d) is None:
        return None
    q, out = np.ascontiguousarray(q), np.empty((n, heads, d), np.float32)
    made = attended(at.fmt, values, d, heads // kv_heads, at.k.shape[1])
    reach = None if rule.window is None else np.ascontiguousarray(rule.first_seen(n, at.tokens, q), np.int32)
    sinks = None if rule.sinks is None else np.asarray(rule.sinks, np.float32) * np.float32(BASE_2)
    table = np.ascontiguousarray(at.table, np.int64)
    optional = [0 if one is None else address(one) for one in (reach, sinks)]
    where = address(q), address(out), address(at.k), address(at.v), address(table), *optional
    scale = bits((rule.scale or d**-0.5) * BASE_2)
    team().do([task(made.address, n * kv_heads, *where, at.tokens, n, kv_heads, scale)])
    return out
