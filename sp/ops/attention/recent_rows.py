"""RecentRows: the newest keys and values of a layer in float16, beside packed pages that hold all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sp.kernels import import_cupy, is_device
from sp.ops.array_module import array_module

Pages = Any
"""A `PagedKV`, whose module imports this one."""

NEAR = 64
"""Tokens before a run that its queries read exactly, and most tokens of a run whose rows are read from the ring."""
RING = 2 * NEAR  # rows of a ring: one page


@dataclass(eq=False)
class RunRows:
    """Exact rows of the last long run of tokens, which one layer of a cache at a time has.

    A prompt's tokens may come in several appends before any of them attends.

    Attributes
    ----------
    owner : RecentRows or None
        Rows of that layer.
    first, stop : int
        The tokens, which follow each other.
    k, v : list of float16 (tokens, kv_heads, d)
        Their rows, in the basis of the packed ones.
    whole : Pages, optional
        All tokens of the sequence as pages, if they are a single append.
    """

    owner: RecentRows | None = None
    first: int = 0
    stop: int = 0
    k: list[Any] = field(default_factory=list)
    v: list[Any] = field(default_factory=list)
    whole: Pages | None = None

    def add(self, owner: RecentRows, start: int, pages: Pages, tokens: int) -> None:
        """Take the next tokens of a layer, which follow its first `start`."""
        if self.owner is not owner or self.stop != start:
            self.clear()
            self.owner, self.first = owner, max(0, owner.start - NEAR)
            if start:  # before the ring is overwritten
                k, v = owner.rows(self.first, start)
                self.k, self.v = [k], [v]
        self.whole = None if start else pages
        for pieces, rows in ((self.k, pages.k), (self.v, pages.v)):
            pieces.append(rows.view(np.float16).reshape(-1, pages.kv_heads, pages.head_dim)[:tokens])
        self.stop = start + tokens

    def clear(self) -> None:
        """Forget all rows."""
        self.owner, self.first, self.stop, self.k, self.v, self.whole = None, 0, 0, [], [], None


@dataclass(eq=False)
class RecentRows:
    """Float16 rows of the last tokens of a layer, which attention reads in place of packed ones.

    Errors of the nearest keys and values matter most, because most of a query's weight is on them. A run of queries
    reads its own tokens and the `NEAR` before it exactly, and all earlier ones packed.

    Attributes
    ----------
    k, v : uint8 (layers, 128, kv_heads, 2 d)
        Rings, a page for each layer: token t is in slot ``t % 128``. In the basis of the packed rows.
    tables : int64 (layers, blocks), on the device int32
        Block tables: all entries of a layer are its page.
    page : int
        The layer's page.
    run : RunRows
        Shared by all layers of a cache.
    start, stop : int
        The last run of tokens, counted on the host.
    low : int
        First token whose rows are in the ring for certain: those of later tokens overwrite them.
    unread : bool
        True if no one has read the last rows since they were stored, as far as the host knows: the next tokens then
        belong to the same run.

    Examples
    --------
    >>> rings = new_rings([([7], 2, 64)], blocks=3, device="cpu")
    >>> rings[7].k.shape, rings[7].exact(0)[0], rings_nbytes(rings)
    ((1, 128, 2, 128), 0, 65536)
    """

    k: Any
    v: Any
    tables: Any
    page: int
    run: RunRows
    start: int = 0
    stop: int = 0
    low: int = 0
    unread: bool = False

    def append(self, at: Pages, k: Any, v: Any) -> None:
        """Store the rows that follow the tokens of `at`, as `PagedKV.append` does."""
        n = len(k)
        run = self.begin(at, n)
        if run is not None:
            run.append(k, v)
        last = max(0, n - RING)
        self.ring(at).append(k[last:], v[last:], last)

    def begin(self, at: Pages, tokens: int) -> Pages | None:
        """Count the tokens that follow those of `at`, as a run or as more of one that no one has read. Returns pages
        for their rows if a ring is too short for the run."""
        run = self.run
        # Of a short run the ring has all rows; but on the device it is read without telling the host.
        whole = run.owner is self or (self.stop - self.start <= NEAR and not is_device(self.k))
        if not (self.unread and whole and self.stop == at.tokens):
            self.start = at.tokens
            if run.owner is self or (run.owner is not None and not run.owner.unread):
                run.clear()  # read already, so its memory can be used again
        self.stop, self.unread = at.tokens + tokens, True
        self.low = max(self.low, self.stop - RING)
        if self.stop - self.start <= NEAR:
            return None
        xp, blocks = array_module(self.k), -(-tokens // RING)
        k, v = (xp.empty((blocks, *self.k.shape[1:]), np.uint8) for _ in "kv")
        pages = at.in_floats(k, v, xp.arange(blocks, dtype=self.tables.dtype), tokens=0, start=None, total=None)
        run.add(self, at.tokens, pages, tokens)
        return pages

    def ring(self, at: Pages) -> Pages:
        """Return the ring as pages of the same sequence, of whose tokens only the last 128 are there."""
        return at.in_floats(self.k, self.v, self.tables[self.page])

    def run_of(self, tokens: int) -> RunRows | None:
        """Return the rows of a long run that ends behind so many tokens, if they are this layer's, to be read."""
        self.unread = False
        return self.run if self.run.owner is self and self.run.stop == tokens else None

    def exact(self, tokens: int) -> tuple[int, list[Any], list[Any]]:
        """Return the exact rows of the last of `tokens` stored tokens, in pieces, and the first of them. Of the ring
        on the CPU alone: on the device its kernels read it, whose counts the host may not know."""
        run = self.run_of(tokens)
        if run is not None:
            return run.first, run.k, run.v
        first = max(0, min(self.start, tokens) - NEAR, self.low)
        if is_device(self.k) or tokens > self.stop or first >= tokens:
            return tokens, [], []
        k, v = self.rows(first, tokens)
        return first, [k], [v]

    def over(self, rows: Any, side: int, before: int, tokens: int) -> Any:
        """Replace unpacked rows of keys (0) or values (1) by exact ones, where those are known, in place; returns them.
        The first row is that of token `before`, and `tokens` follow."""
        at, *sides = self.exact(before + tokens)
        at -= before
        for piece in sides[side]:
            part = piece[min(max(0, -at), len(piece)) :]  # without what comes before the first row
            at += len(piece)
            rows[at - len(part) : at] = part
        return rows

    def rows(self, first: int, stop: int) -> tuple[Any, Any]:
        """Return keys and values of at most 128 tokens of the ring: float16 (tokens, kv_heads, d), new arrays."""
        slots = array_module(self.k).arange(first, stop) % RING
        k, v = (ring[self.page].view(np.float16)[slots] for ring in (self.k, self.v))
        return k, v

    def end(self) -> None:
        """Let the next tokens be a run by themselves, though no one has read the last ones."""
        self.unread = False
        if self.run.owner is self:
            self.run.clear()

    def forget(self) -> None:
        """Forget all tokens; the rows stay until they are overwritten."""
        self.end()
        self.start = self.stop = self.low = 0

    def count(self, tokens: int) -> bool:
        """Learn how many tokens there are, after a replay has stored some or some were dropped. Returns True if rows
        that the next run reads have been overwritten."""
        if tokens > self.stop:
            self.stop, self.low = tokens, max(self.low, tokens - RING)
        return max(0, tokens - NEAR) < self.low

    def take(self, start: int, stop: int, low: int) -> None:
        """Continue the sequence of another ring, from which the rows were copied, after its last run."""
        self.end()
        self.start, self.stop, self.low = start, stop, low

    def refill(self, at: Pages) -> None:
        """Take the newest rows from the packed pages, after tokens were dropped or copied."""
        self.end()
        self.start = self.stop = at.tokens
        self.low = first = max(0, at.tokens - NEAR)
        if first == at.tokens:
            return
        slots = array_module(self.k).arange(first, at.tokens) % RING
        packed = replace(at.from_block(first // at.k.shape[1]), recent=None)
        for ring, rows in zip((self.k, self.v), packed.gather(), strict=True):
            ring[self.page].view(np.float16)[slots] = rows[first - packed.before :]


def new_rings(
    layers: Iterable[tuple[Sequence[int], int, int]], blocks: int, device: Literal["cpu", "cuda"]
) -> dict[int, RecentRows]:
    """Allocate empty rings, one array for all layers of a size. `layers`: those of each size, with their `kv_heads` and
    `head_dim`; `blocks`: blocks of a layer's sequence at its longest."""
    xp, run, rings = np if device == "cpu" else import_cupy(), RunRows(), dict[int, RecentRows]()
    for of_size, kv_heads, head_dim in layers:
        k, v = (xp.zeros((len(of_size), RING, kv_heads, 2 * head_dim), np.uint8) for _ in "kv")
        pages = np.repeat(np.arange(len(of_size))[:, None], blocks, axis=1)
        tables = pages if device == "cpu" else xp.asarray(pages, np.int32)
        rings |= {layer: RecentRows(k, v, tables, page, run) for page, layer in enumerate(of_size)}
    return rings


def rings_nbytes(rings: Mapping[int, RecentRows]) -> int:
    """Return the bytes of rings: both arrays of each."""
    return sum(ring.k[0].nbytes + ring.v[0].nbytes for ring in rings.values())
