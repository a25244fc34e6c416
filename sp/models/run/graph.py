"""PrefillGraphs: a run of a prompt's tokens as one CUDA graph, the same for all runs of up to so many tokens.

A pass through a large model is hundreds of launches, which take many hosts longer than the device takes for the work.
In a graph they are one. Tokens, positions and how many they are lie in device memory that the host fills before each
replay, and so do the counts of the cache: a graph serves behind whatever the cache holds. Runs are filled up to the
next of few sizes. What is behind the tokens is a copy of the last one: attention does not look there, recurrent layers
take no notice of it (`sp.ops.delta.padding`), and the next tokens are written over its keys and values. The last layer,
of which little is wanted, comes after the graph.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels.scratch import Scratch
from sp.models.cache.cache import Cache, padded
from sp.models.layer.attention import Attention
from sp.models.layer.delta import GatedDelta
from sp.models.network.model import Model
from sp.models.run.captured_graph import CapturedGraph, CaptureStream, PinnedStaging, why
from sp.models.run.hooks import through
from sp.ops.attention.attention import FEW_QUERIES
from sp.quant import Math

MOST = 2048  # tokens of the longest run in a graph; for more the device takes longer than hosts do to launch it
MOST_SHARED = 8192  # the same where cards share the model: one host launches for all of them, while each has less to do
FEWEST = 3  # tokens of the shortest, as many as a convolution remembers; see `keep_taps`
SMALLEST = 16  # tokens of the smallest graph
KEPT = 16  # graphs that are kept, those used last: all sizes up to `MOST`, and one that fits a full cache

Way = Literal["eager", "captured", "replayed"]
"""How a run was read: launch by launch, captured and then replayed for the first time, or replayed."""


@dataclass(frozen=True)
class Begun:
    """Tokens that are through all layers but the last. `x`, float32 (n, hidden): what enters the last layer; where it
    lies is written again by the next run of its size."""

    x: Floats
    positions: Ints  # int64 (n,): on the device too


class PrefillGraphs:
    """Reads runs of tokens into one cache: launch by launch the first time of a size, then captured, then replayed.

    Graphs share their memory, but for what they return; a larger run than any so far lets go of them all first. Runs
    that cannot go this way are left to the caller: those of few or many tokens, models on the CPU, with experts in host
    memory or with mixers not of this house, and packed pages behind tokens that are there already, which are unpacked
    to what they hold.
    `eager`: launch every run kernel by kernel, as a reference. `refused`: why no graph can be captured, or could not
    be; nothing is tried then.
    """

    def __init__(self, model: Model, cache: Cache, *, eager: bool = False) -> None:
        self._model, self._cache, self._eager, self._trunk = model, cache, eager, model.trunk
        self._most = longest(model.sharers, cache.precision)
        self._last = model.config.layers - 1
        self._able = model.device == "cuda" and model.captures and model.cold is None
        self.refused: str | None = refusal(model) if self._able else None
        self._states = [cache.state(layer) for layer in model.config.delta_layers]
        self._graphs: dict[int, CapturedGraph[Any]] = {}  # the one used last stands last
        self._read: Counter[Way] = Counter()
        self._largest = 0
        if self._able:
            self._lane, self._scratch = CaptureStream(), Scratch()
            self._inputs = PinnedStaging(
                ids=(np.int32, self._most),
                positions=(np.int64, self._most),
                real=(np.int32, 1),
                rest=(np.int32, 1),
            )

    def chunk(self, tokens: int) -> int:
        """Tokens of a prompt to go through a layer together in place of so many: no more than a graph takes, if it is
        a long one."""
        return min(tokens, self._most) if self._able and self._most > MOST else tokens

    def begin(self, ids: Ints, positions: Ints) -> Begun | None:
        """Read tokens up to the last layer; None, and nothing is read, if they cannot go this way. `ids`, `positions`,
        int64 (n,): on the host, checked as by `prefill`; they follow what the cache holds."""
        n, start = len(ids), self._cache.tokens
        size = self._size_of(n, start)
        if size is None:
            self._model.done_before(False)
            self._read["eager"] += n
            return None
        graph, error = self._graph(size), None
        replayed, capturing = graph.ready, graph.capturing
        self._model.done_before(replayed)
        with self._model.turn() if replayed else nullcontext(), self._lane.working():
            self._cache.reserve(size)
            self._send(ids, positions, size)
            try:
                x = graph(partial(self._work, size, capturing))
            except Exception as found:
                if not capturing:
                    raise
                error = found
        if error is not None:
            self._refuse(error, start)
            self._read["eager"] += n
            return None
        # On the host a replay has counted nothing, and what ran launch by launch the padding as well.
        self._cache.count(n if replayed else n - size, range(self._last))
        self._read["replayed" if replayed else "captured" if capturing else "eager"] += n
        return Begun(x[:n], self._inputs.device["positions"][:n])

    def told(self) -> dict[str, int]:
        """Tokens by how they were read since this was asked last, see `Way`."""
        found, self._read = dict(self._read), Counter()
        return {str(way): tokens for way, tokens in found.items()}

    @property
    def nbytes(self) -> int:
        """Bytes held on the device between runs, but for the graphs themselves."""
        return self._scratch.nbytes if self._able else 0

    def end(self) -> None:
        """Let go of the graphs and their memory."""
        if self._able:
            self._drop()
            self._lane.end()

    def _size_of(self, n: int, start: int) -> int | None:
        """Tokens of the graph for n of them behind `start`; None where there can be none."""
        if not self._able or self.refused is not None or not FEWEST <= n <= self._most:
            return None
        size = size_class(n)
        if start + size > self._cache.capacity:
            size = n  # nowhere to put padding
        packed = self._cache.kv.packed and size > FEW_QUERIES
        return None if packed and start else size

    def _graph(self, size: int) -> CapturedGraph[Any]:
        """The graph of a size; those that know weights where they are no more are gone, or share memory too small."""
        if self._trunk is not self._model.trunk or size > self._largest:
            self._drop()
            self._trunk, self._largest = self._model.trunk, size
        how: dict[str, Any] = {"eager": self._eager, "scratch": self._scratch, "agreed": self._model.agreed}
        graph = self._graphs.pop(size, None) or CapturedGraph(**how)
        if len(self._graphs) >= KEPT:
            self._lane.stream.synchronize()
            self._graphs.pop(next(iter(self._graphs))).clear()
        self._graphs[size] = graph
        return graph

    def _send(self, ids: Ints, positions: Ints, size: int) -> None:
        host, n = self._inputs.open(), len(ids)
        for name, values in (("ids", ids), ("positions", positions)):
            host[name][:n] = values
            host[name][n:size] = values[-1]
        host["real"][:], host["rest"][:] = n, max(0, n - self._model.parts_at(size))
        self._inputs.send()

    def _work(self, size: int, capturing: bool) -> Any:
        """Through all layers but the last; in parts only in a graph, for they are twice as many launches."""
        inputs, cache = self._inputs.device, self._cache
        x, positions = self._model.embed(inputs["ids"][:size]), inputs["positions"][:size]
        if capturing and self._model.in_parts is not None and self._model.parts_at(size):
            x = self._model.in_parts(x, positions, cache, inputs["rest"])
        else:
            with padded(self._states, inputs["real"]):
                x = through(self._model, x, positions, cache, stop=self._last)
        cache.advance(-size)  # on the device: how many of the tokens count, the caller knows
        return x

    def _refuse(self, error: Exception, start: int) -> None:
        """Go on without graphs; what was being captured has not run, and moved nothing but counts of the host."""
        self.refused = why(error)
        self._cache.crop(start)
        self._drop()

    def _drop(self) -> None:
        self._lane.stream.synchronize()
        for graph in self._graphs.values():
            graph.clear()
        self._graphs.clear()
        self._largest = 0
        self._scratch.end()


def longest(sharers: int, attention: Math) -> int:
    """Tokens of the longest run in a graph of a model that so many cards share.

    8-bit attention takes the number of tokens from the host, and is for longer runs than those of one card. Two
    cards took 0.26 to 0.39 s for 6,532 tokens launched one by one, by how the host shared its time among threads, and
    0.26 s in a graph (``results/nvidia-h200/notes-cards.md``).

    >>> longest(1, Math.BF16), longest(2, Math.BF16), longest(2, Math.INT8)
    (2048, 8192, 2048)
    """
    return MOST_SHARED if sharers > 1 and attention is Math.BF16 else MOST


def size_class(tokens: int) -> int:
    """Tokens of the graph for so many: steps are tiles of the matrix products, and small beside the whole.

    >>> [size_class(tokens) for tokens in (3, 17, 100, 128, 129, 512, 1000, 1025, 2048, 6554)]
    [16, 32, 128, 128, 256, 512, 1024, 1280, 2048, 6656]
    """
    if tokens <= 128:
        return max(SMALLEST, 1 << (tokens - 1).bit_length())
    step = 128 if tokens <= 1024 else 256
    return -(-tokens // step) * step


def refusal(model: Model) -> str | None:
    """Why runs with padding behind them would harm the memory of a layer; None where they do not."""
    for index, block in enumerate(model.trunk.blocks):
        if not isinstance(block.mixer, Attention | GatedDelta):
            return f"layer {index} mixes tokens by {type(block.mixer).__name__}, which may remember padding"
    return None
