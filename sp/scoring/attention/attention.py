"""AttentionScorer: which queries and layers count, and how their weights become importance."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.models import Cache, Hooks, LayerAttention, Model, ModelConfig, read_by_layer, read_by_layer_on, read_repeated
from sp.models.cache.carry import looked_at
from sp.models.config import first_layers
from sp.ops.array_module import array_module
from sp.ops.attention.importance import Folded, fold_weights, importance
from sp.ops.attention.kv_pages import unpacked_pages
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.attention.reduction import STEPS, Edges, Pooling, Reduction, average_pool
from sp.ops.attention.unrotate import unrotate
from sp.quant import F16, F32
from sp.scoring.base import Importance, ScoreRequest
from sp.scoring.reading import ReadingScorer, densities

Rotary = Literal["post", "none"]
LayerSet = Literal["middle", "last_half", "every_second"]
MOST_QUESTION_TOKENS = 64
"""Of a longer question only the last tokens are queries, for the memory of their weights."""

Take = Callable[[int, Floats, PagedKV], None]
"""Sees each scored layer: (layer, queries (n, heads, head_dim), keys of all tokens), both as they are scored."""


@dataclass(frozen=True)
class AttentionScorer(ReadingScorer):
    """Options of scorers that reduce a drafter's attention.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    queries : int or "question"
        Number of query tokens whose attention counts, or all from the first token of the question on.
    rotary : {"post", "none"}
        Score with rotary embedding (as the drafter attends) or without it (position-free relevance).
    order, over_heads, over_queries, pool, pooling, edges
        The steps of `Reduction` and how each is done.
    layers : tuple of int, or "middle", "last_half", "every_second", optional
        Layers whose attention counts; negative ones count from the end of those that are run. The named sets are
        taken of the attention layers that are run, every second one from the last on. All by default.
    depth : int, optional
        Run only so many of the drafter's layers.
    """

    queries: int | Literal["question"] = 8
    rotary: Rotary = "post"
    order: str = "pool,heads,queries"
    over_heads: Literal["max", "mean"] = "max"
    over_queries: Literal["mean", "max"] = "mean"
    pool: int = 13
    pooling: Pooling = "mean"
    edges: Edges = "renormalise"
    layers: tuple[int, ...] | LayerSet | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries != "question" and self.queries < 1:
            raise ConfigError(f"queries must be at least 1, not {self.queries}")
        if self.depth is not None and self.depth < 1:
            raise ConfigError(f"depth must be at least 1, not {self.depth}")
        self.reduction()

    def reduction(self) -> Reduction:
        """The reduction these options describe."""
        return Reduction(self.order, self.over_heads, self.over_queries, self.pool, self.edges, self.pooling)

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of the layers that are run."""
        return super().flops(first_layers(config, self.scored_layers(config)[-1] + 1), tokens)

    def scored_layers(self, config: ModelConfig) -> tuple[int, ...]:
        """Attention layers that count, ascending.

        Raises
        ------
        ConfigError
            For a layer that is not run or has no attention, or when none is left.
        """
        depth = config.layers if self.depth is None else self.depth
        if depth > config.layers:
            raise ConfigError(f"depth is {depth}, but the drafter has {config.layers} layers")
        there = [layer for layer in config.attention_layers if layer < depth]
        if self.layers is None:
            asked = there
        elif isinstance(self.layers, str):
            half = len(there) // 2
            asked = {"middle": there[half : half + 1], "last_half": there[half:], "every_second": there[::-2]}[
                self.layers
            ]
        else:
            asked = [layer + depth * (layer < 0) for layer in self.layers]
        for layer in asked:
            if layer not in there:
                raise ConfigError(f"layer {layer} is not among the attention layers that are run: {there}")
        if not asked:
            raise ConfigError(f"none of the first {depth} layers of the drafter has attention")
        return tuple(sorted(set(asked)))

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        """All that are run."""
        return first_layers(config, self.scored_layers(config)[-1] + 1)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Up to the last layer that counts."""
        return self.scored_layers(config)[-1] + 1

    def query_count(self, request: ScoreRequest) -> int:
        """Number of the prompt's last tokens that are queries."""
        n = len(request.ids)
        if self.queries != "question":
            return min(self.queries, n)
        return min(n - question_start(request), MOST_QUESTION_TOKENS)

    def read(self, request: ScoreRequest, take: Take, like: Hashable | None = None) -> LayerAttention:
        """Let the drafter read the prompt once, and show every scored layer with the last tokens' queries.

        The memory held is the stream and one layer's queries, keys and values, at any depth. Layers behind the last
        that counts are not run, and that one does not attend. `like` names what `take` does on the device, for
        `read_by_layer_on`.
        """
        model, queries = request.model, self.query_count(request)
        scored, attend = self.scored_layers(model.config), self.attend(request)

        def show(layer: int, q: Floats, cache: Cache) -> None:
            if layer in scored:
                rows = self.rows(q[-queries:], request.positions[-queries:], model)
                take(layer, rows, self.keys(cache.stored(layer), request.positions, model))

        like = None if like is None or self.rotary != "post" else (scored, like)
        hooks = Hooks(on_attention=show, queues=like)
        read_on(request, hooks, attend=attend, rows=queries, depth=scored[-1] + 1)
        return attend

    def rows(self, q: Floats, positions: Ints, model: Model) -> Floats:
        """Queries as they are scored; the ones given stay as they are."""
        if self.rotary == "post":
            return q
        turned: Floats = q.copy() if is_device(q) else q
        return unrotate(turned, model.place(positions), model.config.rope)

    def keys(self, at: PagedKV, positions: Ints, model: Model) -> PagedKV:
        """Keys of the first ``len(positions)`` tokens as they are scored."""
        return replace(at, tokens=len(positions)) if self.rotary == "post" else unrotated_keys(at, positions, model)


def importance_of(fold: Fold, attend: LayerAttention, generated: tuple[int, ...] = ()) -> Importance:
    """What a scorer returns; waits for the device."""
    found = fold.result(), fold.heatmap(), generated, fold.head_maps(), densities(attend)
    return Importance(*found, weighing=fold.laps.seconds())


def read_on(request: ScoreRequest, hooks: Hooks, *, attend: LayerAttention, rows: int, depth: int) -> None:
    """Read a prompt as `read_by_layer` does: with the keys of one layer at a time, or what a trail lacks into it.

    Where several cards are given and no keys are kept, they read it together. Progress goes to the request's.

    The last `rows` tokens are read in any case, since their queries are wanted.
    """
    model, n, keys = request.model, len(request.ids), request.keys
    how: dict[str, Any] = {"attend": attend, "depth": depth}
    hooks = replace(hooks, progress=request.progress)
    if keys is None and request.cards is not None:
        read_by_layer_on(*request.cards, request.ids, request.positions, hooks, rows=rows, **how)
        return
    if keys is None and read_repeated(model, request.ids, request.positions, hooks, rows=rows, **how):
        return
    if keys is None:
        cache = model.new_cache(n, layers=1)
        read_by_layer(model, request.ids, request.positions, cache, hooks, rows=rows, **how)
        return
    at, trail = keys.trail.back_to(n - rows), keys.trail
    stops = [stop for stop in keys.stops if at < stop <= n - rows] if trail.recurrent else []
    for stop in [*stops, n]:
        part, last = (request.ids[at:stop], request.positions[at:stop]), stop == n
        with trail.reading(n - at) as cache:
            read_by_layer(
                model,
                *part,
                cache,
                hooks if last else replace(hooks, on_attention=None),
                rows=rows if last else 1,
                keep_kv=True,
                **how,
            )
        at = stop
        if not last:
            trail.mark()


def question_start(request: ScoreRequest) -> int:
    """Index of the question's first token; ConfigError if the prompt names no question."""
    if not request.question.any():
        raise ConfigError("this scorer needs a prompt with a known question; give one with --question")
    return int(request.question.argmax())


def unrotated_keys(at: PagedKV, positions: Ints, model: Model) -> PagedKV:
    """Keys of the first ``len(positions)`` tokens without rotary embedding, in pages of their own.

    They stand in place of the values, which none reads.
    """
    at = replace(at, tokens=len(positions))
    if is_device(at.k):
        pages = unpacked_pages(at.k, at.table, at.tokens, at.fmt)
        unrotate(pages.reshape(-1, *pages.shape[2:])[: at.tokens], model.place(positions), model.config.rope)
        bits, table = pages.view(np.uint8), model.place(np.arange(len(pages)), np.int32)
        return replace(at, k=bits, v=bits, table=table, fmt=F16)
    keys = unrotate(at.keys(), positions, model.config.rope)
    bits = np.ascontiguousarray(keys).view(np.uint8)[None]
    return replace(at, k=bits, v=bits, table=np.zeros(1, np.int64), fmt=F32)


__all__ = ["STEPS", "Fold", "FoldByLayer", "Reduction", "average_pool"]


@dataclass
class Laps:
    """Adds up times; on the device by events, which nobody waits for before `seconds` is asked.

    Examples
    --------
    >>> import numpy as np
    >>> laps = Laps()
    >>> with laps.lap(np.zeros(1)):
    ...     pass
    >>> 0 < laps.seconds() < 1
    True
    """

    _host: float = 0.0
    _events: list[tuple[Any, Any]] = field(default_factory=list)

    @contextmanager
    def lap(self, array: Any) -> Iterator[None]:
        """The block is work on this array, and where it lies."""
        if not is_device(array):
            start = time.perf_counter()
            yield
            self._host += time.perf_counter() - start
            return
        cuda = import_cupy().cuda
        begun, ended, stream = cuda.Event(), cuda.Event(), cuda.get_current_stream()
        begun.record(stream)
        yield
        ended.record(stream)
        self._events.append((begun, ended))

    def seconds(self) -> float:
        """Of all laps; waits for the device."""
        cuda = import_cupy().cuda if self._events else None
        for _, ended in self._events:
            ended.synchronize()
        return self._host + sum(cuda.get_elapsed_time(*pair) for pair in self._events) / 1e3 if cuda else self._host


@dataclass
class Fold:
    """Running reduction over the layers of a drafter, in NumPy or on the device.

    Examples
    --------
    >>> fold = Fold(Reduction(pool=1))
    >>> fold.add(np.full((2, 1, 4), 0.25, np.float32))
    >>> fold.result().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    reduction: Reduction
    by_head: bool = False
    running: Any = None
    count: int = 0
    layers: list[Any] = field(default_factory=list)
    heads: list[Any] = field(default_factory=list)
    laps: Laps = field(default_factory=Laps)
    """What `add_layer` takes."""

    def add(self, probs: Floats) -> None:
        """Fold in one layer's weights (heads, queries, tokens)."""
        self._take(fold_weights(probs, self.reduction, self._so_far(), by_head=self.by_head), len(probs))

    def add_layer(self, q: Floats, keys: PagedKV, *, causal: bool) -> None:
        """Fold in the weights of queries (n, heads, head_dim) over a layer's keys; see `importance`."""
        with self.laps.lap(q):
            found = importance(q, keys, self.reduction, self._so_far(), causal=causal, by_head=self.by_head)
            self._take(found, q.shape[1])

    def _so_far(self) -> Any:
        """What the heads of the next layer are folded into."""
        return self.running

    def _take(self, found: Folded, heads: int) -> None:
        self.running = found.running
        self.layers.append(found.by_layer)
        if found.by_head is not None:
            self.heads.append(found.by_head)
        self.count += heads

    def result(self) -> Floats:
        """Importance (tokens,) after the steps that come behind the heads; waits for the device."""
        assert self.running is not None, "no layer was folded in"
        return self.reduction.finish(looked_at([self.running])[0], self.count)

    def heatmap(self) -> Floats:
        """Importance by layer, (layers, chunks)."""
        return np.stack(looked_at(self.layers))

    def head_maps(self) -> Floats | None:
        """Importance by layer and head, (layers, heads, chunks), if it was asked for."""
        return np.stack(looked_at(self.heads)) if self.heads else None


@dataclass
class FoldByLayer(Fold):
    """A `Fold` that reduces the heads of each layer by themselves, and then the layers.

    Parameters
    ----------
    over_layers : {"mean", "max"}
        With heads reduced likewise it is what `Fold` does, since all layers have as many.

    Examples
    --------
    >>> fold = FoldByLayer(Reduction(pool=1))
    >>> for top in (0.5, 1.0):
    ...     fold.add(np.array([[[top, 0]], [[0, 0.25]]], np.float32))
    >>> fold.result().tolist()
    [0.75, 0.25]
    """

    over_layers: Literal["mean", "max"] = "mean"

    def _so_far(self) -> None:
        """Nothing: each layer starts anew."""

    def _take(self, found: Folded, heads: int) -> None:
        before, layer = self.running, found.running
        if self.reduction.heads == "mean":
            layer = layer / np.float32(heads)
        if before is not None:
            layer = array_module(layer).maximum(before, layer) if self.over_layers == "max" else before + layer
        super()._take(found._replace(running=layer), 0)

    def result(self) -> Floats:
        """Importance (tokens,) after the steps that come behind the heads; waits for the device."""
        assert self.running is not None, "no layer was folded in"
        layers = len(self.layers) if self.over_layers == "mean" else 1
        return self.reduction.finish(looked_at([self.running])[0] / np.float32(layers), 1)
