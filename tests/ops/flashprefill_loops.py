"""Block selection in loops written from the definitions, with caches and sizes to try it on."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from sp.ops import kv_append
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.quant import F32

BLOCK = 128
SIZES = st.sampled_from([(1, 1), (1, 128), (127, 127), (128, 128), (129, 129), (255, 255), (130, 700), (513, 600)])
GROUPS = st.sampled_from([1, 2, 3])


def sample(n: int, tokens: int, heads: int, kv_heads: int, d: int = 8, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng([seed, n, tokens])
    shapes = (n, heads, d), (tokens, kv_heads, d), (tokens, kv_heads, d)
    q, k, v = (2 * rng.standard_normal(shape) for shape in shapes)
    return q, k, v


def paged(k: np.ndarray, v: np.ndarray) -> PagedKV:
    """K and V in scattered float32 pages that hold NaN wherever no token is."""
    tokens, kv_heads, d = k.shape
    pages = -(-tokens // BLOCK)
    table = np.random.default_rng(tokens).permutation(pages + 2)[:pages]
    pools = [np.full((pages + 2, BLOCK, kv_heads, 4 * d), 0xFF, np.uint8) for _ in range(2)]
    for pool, values in zip(pools, (k, v), strict=True):
        kv_append(pool, table, 0, values.astype(np.float32), F32)
    return PagedKV(*pools, table, len(k), F32)


def slow_mean(k: np.ndarray, j: int, head: int) -> np.ndarray:
    rows = [k[t, head] for t in range(BLOCK * j, min(BLOCK * (j + 1), len(k)))]
    return (sum(rows) / len(rows)).astype(np.float16).astype(np.float64)


def slow_energies(
    q: np.ndarray, k: np.ndarray, heads: list[int], i: int, scale: float, visibility: str
) -> dict[int, float]:
    """Energies of one query block over the rows of some heads: block -> energy, for the blocks any row sees."""
    tokens, group = len(k), q.shape[1] // k.shape[1]
    seen: list[tuple[int, float]] = []
    means = {j: slow_mean(k, j, heads[0] // group) for j in range(-(-tokens // BLOCK))}
    for row in range(BLOCK * i, min(BLOCK * (i + 1), len(q))):
        position = tokens - len(q) + row
        for head in heads:
            for j, mean in means.items():
                if position >= j * BLOCK + (BLOCK - 1 if visibility == "last" else 0):
                    seen.append((j, scale * float(q[row, head] @ mean)))
    if not seen:
        return {}
    top = max(score for _, score in seen)
    energies: dict[int, float] = {}
    for j, score in seen:
        energies[j] = energies.get(j, 0.0) + math.exp(score - top)
    return energies


def slow_selection(
    options: FlashPrefill, q: np.ndarray, k: np.ndarray, head: int, i: int, scale: float
) -> tuple[set[int], set[int]]:
    """Blocks that query block i of a head keeps, and those at the threshold, by the rule of the papers."""
    tokens, n, group = len(k), len(q), q.shape[1] // k.shape[1]
    start = tokens - n + BLOCK * i
    last = min(start + BLOCK, tokens) - 1
    possible = range(last // BLOCK + 1)
    always = {j for j in possible if j < options.sink or j > start // BLOCK - options.window}
    if i >= -(-n // BLOCK) - options.last_n:
        always = set(possible)
    heads = [head] if options.share == "head" else list(range(head // group * group, head // group * group + group))
    energies = dict.fromkeys(possible, 0.0) | slow_energies(q, k, heads, i, scale, options.visibility)
    judged = [e for j, e in energies.items() if options.maximum == "all" or j not in always]
    bound = options.alpha * max(judged, default=0.0)
    kept = {j for j in possible if energies[j] >= max(bound, 2.0**-126 if options.alpha else 0.0)}
    unsure = {j for j in possible if abs(energies[j] - bound) <= 1e-9 * bound}
    ranked = sorted(possible, key=lambda j: -energies[j])
    return kept | always | set(ranked[: options.min_budget]), unsure - always
