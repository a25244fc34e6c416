"""PrefillGraphs: a run of prompt tokens as one CUDA graph, shared by all runs of up to so many tokens.

A pass through a large model is hundreds of launches, which take many hosts longer than the device takes for the work. A
graph is one launch. Tokens, positions and their number are in device memory that the host fills before each replay, and
so are the counts of the cache: a graph works after any number of cached tokens. Runs are padded to one of a few sizes
with copies of the last token. Attention does not see the padding, recurrent layers ignore it (`sp.ops.delta.padding`),
and the next tokens overwrite its keys and values. The last layer, of which few rows are needed, runs after the graph.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels.workspace import Workspace
from sp.models.cache.cache import Cache
from sp.models.cache.delta_state import padded
from sp.models.layer.attention import Attention
from sp.models.layer.delta import GatedDelta
from sp.models.network.model import Model
from sp.models.run.captured_graph import CapturedGraph, CaptureStream, PinnedStaging, error_line
from sp.models.run.hooks import run_layers
from sp.ops.attention.attention import FEW_QUERIES
from sp.ops.attention.recent_rows import NEAR
from sp.quant import Math

MOST = 2048  # tokens of the longest run in a graph; for more the device is slower than the host's launches
MOST_SHARED = 8192  # the same for a model on several GPUs: one host launches for all of them, and each has less work
FEWEST = 3  # tokens of the shortest run: the inputs that a convolution stores, see `keep_taps`
SMALLEST = 16  # tokens of the smallest graph
MOST_GRAPHS = 16  # most recently used graphs that stay: all sizes up to `MOST`, and one that fits a full cache

ReadMode = Literal["eager", "captured", "replayed"]
"""How a run was read: launch by launch, captured and then replayed for the first time, or replayed."""


@dataclass(frozen=True)
class LastLayerInput:
    """Tokens that have passed all layers but the last. `x`, float32 (n, hidden): input of the last layer, overwritten
    by the next run of its size."""

    x: Floats
    positions: Ints  # int64 (n,): on the device too


class PrefillGraphs:
    """Reads runs of tokens into one cache: launch by launch the first time for a size, then captured, then replayed.

    Graphs share their memory, except for their outputs; a run larger than any before drops all of them first. Some runs
    are left to the caller: those of very few or many tokens; models on the CPU, with experts in host memory or with
    mixers from outside `sp`; and packed pages after tokens that are already stored, because those are unpacked to a
    buffer as long as the cache's content. `eager`: launch every run kernel by kernel, as a reference. `refused`: the
    reason why no graph can be captured, or why a capture failed; nothing is tried then.
    """

    def __init__(self, model: Model, cache: Cache, *, eager: bool = False) -> None:
        self._model, self._cache, self._eager, self._weights = model, cache, eager, model.weights
        self._most = longest(model.shard_count, cache.precision)
        self._last = model.config.layers - 1
        self._able = model.device == "cuda" and model.captures and model.cold is None
        self.refused: str | None = padding_refusal(model) if self._able else None
        # Graphs capture the addresses of the states, which `Cache.reset` keeps.
        self._states = [cache.state(layer) for layer in model.config.delta_layers]
        self._graphs: dict[int, CapturedGraph[Any]] = {}  # ordered by use, the most recent one last
        self._read: Counter[ReadMode] = Counter()
        self._largest = 0
        if self._able:
            self._lane, self._workspace = CaptureStream(), Workspace()
            self._inputs = PinnedStaging(
                ids=(np.int32, self._most),
                positions=(np.int64, self._most),
                real=(np.int32, 1),
                rest=(np.int32, 1),
            )

    def chunk(self, tokens: int) -> int:
        """Return the number of tokens of a prompt to pass a layer together, instead of `tokens`: at most what a graph
        takes, if graphs are long."""
        return min(tokens, self._most) if self._able and self._most > MOST else tokens

    def begin(self, ids: Ints, positions: Ints) -> LastLayerInput | None:
        """Read tokens up to the last layer; return None, with nothing read, if they cannot run as a graph. `ids`,
        `positions`, int64 (n,): on the host, checked as by `prefill`; they follow the tokens of the cache."""
        n, start = len(ids), self._cache.tokens
        size = self._size_of(n, start)
        if size is None:
            self._model.set_warm(False)
            self._read["eager"] += n
            return None
        graph, error = self._graph(size), None
        replayed, capturing = graph.ready, graph.capturing
        self._model.set_warm(replayed)
        # A replay waits for nothing, so it may hold the launch lock; a first run or a capture may not.
        with self._model.launch_lock() if replayed else nullcontext(), self._lane.working():
            # Pages are allocated now: neither a capture nor a replay can.
            self._cache.reserve(size)
            self._send(ids, positions, size)
            try:
                x = graph(partial(self._work, size, capturing))
            except Exception as failure:
                if not capturing:
                    raise
                error = failure
            finally:
                self._cache.end_run()  # its rows are in the memory of graphs, which other runs overwrite
        if error is not None:
            self._refuse(error, start)
            self._read["eager"] += n
            return None
        # A replay has updated no host counts; a run launch by launch has counted the padding too, which it has stored.
        if replayed:
            self._cache.count(size, range(self._last))
        self._cache.count(n - size, range(self._last))
        self._read["replayed" if replayed else "captured" if capturing else "eager"] += n
        return LastLayerInput(x[:n], self._inputs.device["positions"][:n])

    def take_counts(self) -> dict[str, int]:
        """Return the tokens read since the last call, by `ReadMode`."""
        counts, self._read = dict(self._read), Counter()
        return {str(mode): tokens for mode, tokens in counts.items()}

    @property
    def nbytes(self) -> int:
        """Bytes allocated on the device between runs, without the graphs themselves."""
        return self._workspace.nbytes if self._able else 0

    def end(self) -> None:
        """Drop the graphs and free their memory."""
        if self._able:
            self._drop()
            self._lane.end()

    def _size_of(self, n: int, start: int) -> int | None:
        """Return the graph size for n tokens after `start`; None if there is none."""
        if not self._able or self.refused is not None or not FEWEST <= n <= self._most:
            return None
        size = size_class(n)
        if start + size > self._cache.capacity:
            size = n  # no room for padding
        # attention of many queries unpacks stored pages first, into memory whose size a graph cannot know
        packed = self._cache.kv.packed and size > FEW_QUERIES
        # Padding may overwrite no exact rows of tokens before it that the next run reads.
        padded_away = size - n > NEAR and bool(self._cache.recent)
        return None if (packed and start) or padded_away else size

    def _graph(self, size: int) -> CapturedGraph[Any]:
        """Return the graph of a size. All graphs are dropped if the weights have moved, or if their shared memory is
        too small."""
        if self._weights is not self._model.weights or size > self._largest:
            self._drop()
            self._weights, self._largest = self._model.weights, size
        options: dict[str, Any] = {
            "eager": self._eager,
            "workspace": self._workspace,
            "all_agree": self._model.all_agree,
        }
        graph = self._graphs.pop(size, None) or CapturedGraph(**options)
        if len(self._graphs) >= MOST_GRAPHS:
            self._lane.stream.synchronize()
            self._graphs.pop(next(iter(self._graphs))).clear()
        self._graphs[size] = graph
        return graph

    def _send(self, ids: Ints, positions: Ints, size: int) -> None:
        host, n = self._inputs.open(), len(ids)
        for name, values in (("ids", ids), ("positions", positions)):
            host[name][:n] = values
            host[name][n:size] = values[-1]
        host["real"][:], host["rest"][:] = n, max(0, n - self._model.overlap_start(size))
        self._inputs.send()

    def _work(self, size: int, capturing: bool) -> Any:
        """Pass all layers but the last. The overlapped form has twice as many launches, so it is used in a graph
        only."""
        inputs, cache = self._inputs.device, self._cache
        x, positions = self._model.embed(inputs["ids"][:size]), inputs["positions"][:size]
        if capturing and self._model.run_overlapped is not None and self._model.overlap_start(size):
            x = self._model.run_overlapped(x, positions, cache, inputs["rest"])
        else:
            with padded(self._states, inputs["real"]):
                x = run_layers(self._model, x, positions, cache, stop=self._last)
        cache.advance(-size)  # on the device; the caller then counts the tokens without padding
        return x

    def _refuse(self, error: Exception, start: int) -> None:
        """Continue without graphs. The failed capture has run nothing, and changed only counts of the host."""
        self.refused = error_line(error)
        self._cache.crop(start)
        self._drop()

    def _drop(self) -> None:
        self._lane.stream.synchronize()
        for graph in self._graphs.values():
            graph.clear()
        self._graphs.clear()
        self._largest = 0
        self._workspace.end()


def longest(shard_count: int, attention: Math) -> int:
    """Return the most tokens of a run in a graph of a model on so many GPUs.

    Attention in int8 or fp8 takes the number of tokens from the host, so it is limited to the runs of a single GPU. Two
    GPUs took 0.26 to 0.39 s for 6,532 tokens launched one by one, depending on how the host scheduled its threads, and
    0.26 s in a graph (``results/nvidia-h200/notes-cards.md``).

    >>> longest(1, Math.BF16), longest(2, Math.BF16), longest(2, Math.INT8)
    (2048, 8192, 2048)
    """
    return MOST_SHARED if shard_count > 1 and attention is Math.BF16 else MOST


def size_class(tokens: int) -> int:
    """Return the graph size for so many tokens: steps are tiles of the matrix products, and small compared to the
    whole.

    >>> [size_class(tokens) for tokens in (3, 17, 100, 128, 129, 512, 1000, 1025, 2048, 6554)]
    [16, 32, 128, 128, 256, 512, 1024, 1280, 2048, 6656]
    """
    if tokens <= 128:
        return max(SMALLEST, 1 << (tokens - 1).bit_length())
    step = 128 if tokens <= 1024 else 256
    return -(-tokens // step) * step


def padding_refusal(model: Model) -> str | None:
    """Return the reason why padded runs would change the state of a layer; None if they do not."""
    for index, block in enumerate(model.weights.blocks):
        if not isinstance(block.mixer, Attention | GatedDelta):
            return f"layer {index} mixes tokens by {type(block.mixer).__name__}, which may store padding in its state"
    return None
