"""ContextParallelCache: keys and values of a prompt that several GPUs read in chunks, two layers at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from sp.arrays import Ints
from sp.kernels import import_cupy
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV
from sp.quant import Math


class ContextChunk(NamedTuple):
    """Tokens `start` to `stop` of a prompt; only the last chunk may end in a partly filled page."""

    start: int
    stop: int


class ContextChunks:
    """A prompt split into twice as many chunks of whole pages as there are GPUs.

    GPU r reads the chunks r and ``2 GPUs - 1 - r``. The first has few tokens before it where the second has many, so
    that all GPUs compute the same number of query-key pairs, within one page per chunk; the end of the prompt belongs
    to GPU 0. If the last chunk gets at least one page besides its tail, all others are equally long, and launches
    recorded for one can be replayed for another. `tail`: fewest tokens of the last chunk. `less`: number of pages by
    which the last chunk should be shorter than the others, approximately, if its tail still fits.

    >>> context_chunks = ContextChunks(tokens=1000, gpus=2, tail=8)
    >>> [[tuple(part) for part in context_chunks.of(GPU)] for GPU in (0, 1)]
    [[(0, 256), (768, 1000)], [(256, 512), (512, 768)]]
    >>> context_chunks.pages, context_chunks.table().tolist()  # where each block of the prompt is stored
    ((2, 2), [0, 1, 2, 3, 6, 7, 4, 5])
    >>> [stop - start for start, stop in ContextChunks(8192, 2, 8, less=5).all]
    [2176, 2176, 2176, 1664]
    """

    def __init__(self, tokens: int, gpus: int, tail: int, less: int = 0) -> None:
        assert self.fits(tokens, gpus, tail), f"{tokens} tokens on {gpus} GPUs"
        self.tokens, self.gpus = tokens, gpus
        parts, blocks = 2 * gpus, -(-tokens // PAGE_TOKENS)
        most = (tokens - tail) // PAGE_TOKENS  # pages before the last chunk
        # Equal chunks leave the last one whatever is left, and their launches can be shared.
        even = -(-blocks // parts)
        more = (blocks + less) // parts
        # longer chunks, for a shorter last one, unless its tail would not fit
        if more > even and more * (parts - 1) <= most:
            even = more
        last = even * (parts - 1)
        if last > most:
            # Too little is left for the tail: all chunks are shortened, and lengths then differ by a page.
            last = min(blocks * (parts - 1) // parts, most)
        edges = [last * i // (parts - 1) for i in range(parts)]
        starts = [edge * PAGE_TOKENS for edge in edges]
        self.all = [ContextChunk(*ends) for ends in zip(starts, [*starts[1:], tokens], strict=True)]
        self._blocks = [range(*ends) for ends in zip(edges, [*edges[1:], blocks], strict=True)]

    @staticmethod
    def fits(tokens: int, gpus: int, tail: int) -> bool:
        """Return True if every chunk gets at least one page.

        >>> ContextChunks.fits(900, 4, 8), ContextChunks.fits(1024, 4, 8)
        (False, True)
        """
        return (tokens - tail) // PAGE_TOKENS >= 2 * gpus - 1

    def of(self, gpu: int) -> tuple[ContextChunk, ContextChunk]:
        """Return the two chunks of a GPU, in token order."""
        return self.all[gpu], self.all[-1 - gpu]

    def places(self, gpu: int) -> Ints:
        """Return the token indices of a GPU: (n,)."""
        return np.concatenate([np.arange(*context_chunk) for context_chunk in self.of(gpu)])

    @property
    def pages(self) -> tuple[int, int]:
        """Most pages of any GPU's first chunk and of any second chunk. Every GPU has room for so many, because an
        all-gather needs equal sizes."""
        return max(map(len, self._blocks[: self.gpus])), max(map(len, self._blocks[self.gpus :]))

    def table(self) -> Ints:
        """Return the page of each block of the prompt: the first chunks of all GPUs are stored first, then the second
        ones. (blocks,)"""
        first, second = self.pages
        pages = np.empty(self._blocks[-1].stop, np.int64)
        for part, blocks in enumerate(self._blocks):
            # GPUs count up over the first chunks and down over the second ones.
            gpu = min(part, 2 * self.gpus - 1 - part)
            start = gpu * first if part == gpu else self.gpus * first + gpu * second
            pages[blocks.start : blocks.stop] = start + np.arange(len(blocks))
        return pages


class ContextParallelCache(Cache):
    """One GPU's copy of two consecutive layers: room for all pages of the prompt, some of which this GPU writes itself.

    `add` takes the tokens of the GPU's chunks, one after the other; only the host counts them. Once both chunks are
    gathered (`begin_gather_chunks`), readers of a layer see the tokens up to the end of the chunk passed to `look`, so
    that queries of that chunk are the last of what they see; once the first chunks are gathered, the GPU's first chunk
    may be passed. `config`, `kv`, `rotate`, `device`, `precision`, `bases`: see `Cache`.
    """

    def __init__(
        self,
        config: ModelConfig,
        context_chunks: ContextChunks,
        gpu: int,
        kv: str = "f16",
        *,
        rotate: bool | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        precision: Math = Math.BF16,
        bases: Mapping[int, KeyBasis] | None = None,
    ) -> None:
        pages = context_chunks.gpus * sum(context_chunks.pages)
        options: dict[str, Any] = {"rotate": rotate, "device": device, "precision": precision, "bases": bases}
        super().__init__(config, pages * PAGE_TOKENS, kv, layers=2, **options)
        (self._pool,) = self._pools  # all layers have one head size
        table, self._context_chunks, self._seen = context_chunks.table(), context_chunks, context_chunks.tokens
        # Block tables of all tokens and of this GPU's chunks, for each of the two stored layers.
        own = [table[first // PAGE_TOKENS : -(-stop // PAGE_TOKENS)] for first, stop in context_chunks.of(gpu)]
        if context_chunks.gpus == 1:  # both chunks are consecutive, and their tokens are written together
            own = [table]
        self._starts = range(0, pages * min(2, config.layers), pages)  # first page of each of the two stored layers
        self._first = PAGE_TOKENS * len(own[0])  # tokens of the first chunk, in whole pages
        self._most = PAGE_TOKENS * sum(map(len, own))
        tables = [part + start for start in self._starts for part in (table, *own)]
        placed, ends = self._placed(np.concatenate(tables)), np.cumsum([len(pages) for pages in tables]).tolist()
        parts = [placed[end - len(pages) : end] for pages, end in zip(tables, ends, strict=True)]
        per_layer = 1 + len(own)
        self._all = parts[::per_layer]
        self._own = [parts[i + 1 : i + per_layer] for i in range(0, len(parts), per_layer)]
        self._filled = [0 for _ in self._starts]
        self._wholes: dict[tuple[int, int], tuple[Any, Any]] = {}

    def reset(self) -> None:
        super().reset()
        self._filled = [0 for _ in self._starts]

    def release(self, layer: int) -> None:
        """Give the layer's pages to the next layer but one; nothing is rewritten, also on the device."""
        self._filled[self._place(layer)] = 0

    def appended(self, layer: int, tokens: int) -> None:
        """Count tokens whose keys and values are stored, by `append` or by replayed launches of another layer."""
        place = self._place(layer)
        self._filled[place] += tokens
        assert self._filled[place] <= self._most, f"{self._filled[place]} tokens"

    def look(self, context_chunk: ContextChunk) -> None:
        """Make tokens up to the end of a chunk visible."""
        self._seen = context_chunk.stop

    def stored(self, layer: int) -> PagedKV:
        """Return where keys and values up to the end of the visible chunk are stored, once they are gathered."""
        return self._paged(layer, self._all[self._place(layer)], self._seen)

    def block_table(self, layer: int) -> tuple[int, ...]:
        """Return the pages of a layer, in token order."""
        return tuple((self._context_chunks.table() + self._starts[self._place(layer)]).tolist())

    def all_pages(self, layer: int) -> Ints:
        """Return the pages of a layer, on the device of the cache; every second layer uses the same ones."""
        return self._all[self._place(layer)]  # type: ignore[no-any-return]

    def own_pages(self, layer: int, which: int) -> Ints:
        """Return the pages of this GPU's first (0) or second (1) chunk. A single GPU has all its pages in the first."""
        return self._own[self._place(layer)][which]  # type: ignore[no-any-return]

    def begin_gather_chunks(
        self, layer: int, which: int, begin: Callable[..., Callable[[], None]]
    ) -> Callable[[], None]:
        """Start to gather the first (0) or second (1) chunks of all GPUs, in place: keys (GPUs, pages, ...), and values
        alike. `begin` is `Rank.begin_gather`, whose result is returned."""
        return begin(*self._whole(self._place(layer), which))

    def _whole(self, place: int, which: int) -> tuple[Any, Any]:
        """Return the arrays that are gathered for one of the two stored layers, cached because slicing costs host
        time."""
        gathered = self._wholes.get((place, which))
        if gathered is None:
            gpus, pages, stored = self._context_chunks.gpus, self._context_chunks.pages, self.stored(place)
            start = self._starts[place] + which * gpus * pages[0]
            part = slice(start, start + gpus * pages[which])
            k, v = (pool[part].reshape(gpus, pages[which], *pool.shape[1:]) for pool in (stored.k, stored.v))
            gathered = self._wholes[place, which] = k, v
        return gathered

    def add(self, layer: int, tokens: int) -> PagedKV:
        filled, second = self._filled[self._place(layer)], 0
        # The first chunk is stored in full before tokens of the second one arrive.
        if filled >= self._first:
            filled, second = filled - self._first, 1
        pages = self._paged(layer, self.own_pages(layer, second), filled)
        self.appended(layer, tokens)
        return pages

    def _paged(self, layer: int, table: Any, tokens: int) -> PagedKV:
        options: dict[str, Any] = {**self._page_format, "basis": self._bases.get(layer)}
        return PagedKV(self._pool.k, self._pool.v, table, tokens, **options)

    def _place(self, layer: int) -> int:
        return layer % len(self._starts)

    def _placed(self, table: Ints) -> Any:
        return table if self.device == "cpu" else import_cupy().asarray(table, np.int32)
