"""Inputs of sparse attention for tests, on the host and on the device, with float64 references beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
from compare import to_bf16

from sp.ops.attention.kv_pages import PagedKV, kv_append, kv_gather
from sp.ops.sparse.block_lists import causal, mask_of
from sp.ops.sparse.block_means import means_of
from sp.quant import F16, BlockFormat

BLOCK = 128
KINDS = ("clusters", "sink", "peaked", "planted", "real")
"""Keys in clusters; a first block that draws all queries; few blocks that draw a query block; blocks that all later
queries look for; peaked, with a few first tokens as a sink."""


class Case:
    """Float16 queries, and keys and values in scattered pages that are NaN wherever no token lies."""

    def __init__(
        self, n: int, tokens: int, heads: int, kv_heads: int, d: int, kind: str = "random", fmt: BlockFormat = F16
    ) -> None:
        rng = np.random.default_rng([n, tokens, heads, d, len(kind)])
        self.n, self.tokens, self.fmt, self.scale = n, tokens, fmt, d**-0.5
        q, k, v = (
            rng.standard_normal((rows, h, d)) for rows, h in ((n, heads), (tokens, kv_heads), (tokens, kv_heads))
        )
        direction = rng.standard_normal(d)
        direction /= np.linalg.norm(direction)
        if kind in ("clusters", "peaked", "real"):  # keys and queries of a block share one of 64 centres
            centres = (1.0 if kind == "clusters" else 1.7) * rng.standard_normal((64, d))
            for rows, first in ((q, tokens - n), (k, 0)):
                for h in range(rows.shape[1]):
                    picked = rng.integers(64, size=tokens // BLOCK + 2)
                    rows[:, h] += centres[picked[(first + np.arange(len(rows))) // BLOCK]]
        if kind == "sink":
            q += 20 * direction
            k[:BLOCK] += 4 * direction
        if kind == "real":  # peaked, and the first four tokens draw everyone
            q += 4 * direction
            k[:4] += 30 * direction
        if kind == "planted":  # every tenth block is what later queries look for
            q += 8 * direction
            k[np.arange(tokens) // BLOCK % 10 == 3] += 3 * direction
        self.q = q.astype(np.float16)
        pages = -(-tokens // BLOCK)
        self.table = rng.permutation(pages + 3)[:pages]
        self.pages = [np.full((pages + 3, BLOCK, kv_heads, fmt.row_bytes(d)), 0xFF, np.uint8) for _ in range(2)]
        for one, values in zip(self.pages, (k, v), strict=True):
            kv_append(one, self.table, 0, values.astype(np.float32), fmt)
        self.k, self.v = (kv_gather(one, self.table, tokens, fmt).astype(np.float64) for one in self.pages)

    def change(self, first: int) -> None:
        """Other keys and values from token `first` on."""
        for one in self.pages:
            rows = np.random.default_rng(first).standard_normal((self.tokens - first, *self.k.shape[1:]))
            kv_append(one, self.table, first, (5 * rows).astype(np.float32), self.fmt)
        self.k, self.v = (kv_gather(one, self.table, self.tokens, self.fmt).astype(np.float64) for one in self.pages)

    def device(self, guarded: Any) -> tuple[Any, PagedKV, float]:
        """Queries, keys and values, and the scale."""
        q, pages = guarded(self.q.shape, np.float16, self.q), [guarded(p.shape, np.uint8, p) for p in self.pages]
        table = guarded(self.table.shape, np.int32, self.table)
        return q, PagedKV(pages[0], pages[1], table, self.tokens, self.fmt), self.scale

    def energy(self, together: int = 1, visibility: str = "last") -> np.ndarray:
        """Straight from the definition, in float64, one query block at a time; means rounded to f16."""
        heads = self.q.shape[1]
        means = means_of(self.k)
        rows, blocks = -(-self.n // BLOCK), means.shape[1]
        out = np.zeros((heads // together, rows, blocks))
        group = heads // means.shape[0]
        first = np.arange(blocks) * BLOCK + (BLOCK - 1 if visibility == "last" else 0)
        for entry, i in np.ndindex(out.shape[:2]):
            scores = []
            for h in range(entry * together, (entry + 1) * together):
                q = self.q[BLOCK * i : BLOCK * (i + 1), h].astype(np.float64)
                position = self.tokens - self.n + BLOCK * i + np.arange(len(q))
                s = q @ means[h // group].T * self.scale
                scores.append(np.where(first <= position[:, None], s, -np.inf))
            s = np.concatenate(scores)
            if np.isfinite(s).any():
                out[entry, i] = np.exp(s - s[np.isfinite(s)].max()).sum(axis=0)
        return out

    def attend(self, mask: np.ndarray, blocks: Any = None, low: bool = False) -> np.ndarray:
        """Softmax in float64 over the blocks of a mask (heads, query_blocks, blocks), for all or some query blocks.

        With `low` every intermediate is rounded to bf16 instead, as a framework rounds it.
        """
        to = rounded if low else np.float64
        heads, group = self.q.shape[1], self.q.shape[1] // self.k.shape[1]
        q, k, v = (to(a) for a in (self.q, self.k, self.v))
        positions, keys = np.arange(self.tokens - self.n, self.tokens), np.arange(self.tokens)
        parts = []
        for i in range(mask.shape[1]) if blocks is None else blocks:
            rows = slice(BLOCK * i, min(BLOCK * (i + 1), self.n))
            out = np.empty((rows.stop - rows.start, heads, self.q.shape[2]))
            for h in range(heads):
                seen = mask[h, i][keys // BLOCK] & (keys <= positions[rows, None])
                score = np.where(seen, to(to(q[rows, h] @ k[:, h // group].T) * to(self.scale)), -np.inf)
                weight = np.exp(score - score.max(axis=1, keepdims=True))
                out[:, h] = to(to(weight / weight.sum(axis=1, keepdims=True)) @ v[:, h // group])
            parts.append(out)
        return np.concatenate(parts)


def rounded(x: Any) -> np.ndarray:
    """Nearest bf16, as float32."""
    return (to_bf16(np.asarray(x, np.float32)).astype(np.uint32) << 16).view(np.float32)


def selected(case: Case, guarded: Any, options: Any) -> np.ndarray:
    """The device's lists as a mask; they must be ascending and causal."""
    q, at, scale = case.device(guarded)
    tokens, lists = at.tokens, options.select(q, at, scale)
    counts, indices = lists.counts.get(), lists.indices.get()
    mask = mask_of(lists, -(-tokens // BLOCK))
    assert (mask.sum(axis=2) == counts).all()  # no block twice
    for place in np.ndindex(counts.shape):
        assert (np.diff(indices[place][: counts[place]]) > 0).all()
    assert not (mask & ~causal(case.n, tokens)).any()
    return mask
