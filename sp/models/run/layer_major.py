"""A prompt through layer after layer, with one attention a layer over all of it: to predict, to look on, to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import PromptError
from sp.kernels import import_cupy, is_device
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.models.layer.steps import Attend, Flow, Qkv, dense_attention, with_reach
from sp.models.network.model import Model
from sp.models.run.chunked import CHUNK, checked_prompt, slices
from sp.models.run.hooks import NO_HOOKS, Hooks, Pace, Progress
from sp.models.run.layer_attention import LayerAttention, SparseAttention
from sp.ops.sparse.block_selector import BlockSelector

CHUNK_BY_LAYER = {"cpu": 2048, "cuda": 16384}
"""Tokens that are projected together: on the CPU what its caches like, on the device what fills it."""
NARROW = 640
"""Hidden size up to which hosts are slower than the device at any length: scoring by SmolLM2 (576) took 28, 48, 107 and
180 ms of 16K, 33K, 70K and 134K tokens on an H200 with a slow host, and so takes 15, 27, 93 and 140."""
NARROW_CHUNK = 65536
"""`CHUNK_BY_LAYER` of such a model on the device: fewer launches, and emptier last rounds of tiles only at the end. An
H200 scored 33K and 131K tokens by SmolLM2 in 23.6 and 103.6 ms by chunks of 16,384, and so does in 19.7 and 98.4."""
SPARSE_CHUNK = {"cpu": 8192, "cuda": 32768}
"""Tokens that go through a layer together: on the device, what queries and gates of them leave room for."""


@dataclass(frozen=True)
class Walk:
    """What all layers of one reading share."""

    model: Model
    positions: Ints  # int64 (n,): where the model is
    cache: Cache
    attend: LayerAttention  # what attends in layers without a window
    chunk: int  # tokens that go through a step together, but for attention
    pace: Pace  # counts tokens x layers
    hooks: Hooks = NO_HOOKS
    reached: dict[int, Ints] = field(default_factory=dict)  # see `with_reach`

    def layer(self, index: int, x: Floats, rows: int, *, finish: bool = True) -> Floats:
        """The stream (n, hidden) through a layer, in place; only its last `rows` come out. Without `finish` an
        attention layer stops once its keys, its values and the last queries are known and seen."""
        steps = self.model.trunk.layers[index]
        rows = min(rows, len(x))
        first = len(x) - rows
        if isinstance(steps[0][0], Qkv):
            q, gate = self.enter(index, x, rows, tell=not finish)
            if self.hooks.on_attention is not None:
                self.hooks.on_attention(index, q, self.cache)
            if finish:
                mixed = [self.attention(index, q, gate)]
                del q, gate  # as large as the prompt: gone before the feed-forward needs room
                self.leave(index, x[first:], mixed)
                self.pace.done(first)
        elif finish:
            for part, flow in self.flows(x, rows):
                done = self.model.pass_layer(steps, flow)
                if not is_device(done):  # on the device it is there already
                    x[part.stop - len(done) : part.stop] = done
                self.pace.done(part.stop - part.start)
        else:
            self.pace.done(len(x))
        return x[first:]

    def attention(self, index: int, q: Floats, gate: Floats | None) -> Floats:
        """What queries of the last tokens make of a layer, gated."""
        step = self.model.trunk.layers[index][0][1]
        assert isinstance(step, Attend), f"layer {index} does not attend"
        attend = self.attend if step.mixer.rule.window is None else dense_attention
        rule = step.mixer.rule
        if rule.window is not None:
            rule = with_reach(step.mixer, self.cache, self.positions, self.reached)
            rule = rule.of_run(slice(len(self.positions) - len(q), None))
        return attend(self.cache, index, q, gate, rule)

    def enter(
        self, index: int, x: Floats, rows: int, tell: bool, into: Floats | None = None
    ) -> tuple[Floats, Floats | None]:
        """All that comes before attention, chunk by chunk: queries, `into` there, and gates of the last `rows`."""
        qkv, on_device = self.model.trunk.layers[index][0][0], is_device(x)
        assert isinstance(qkv, Qkv), f"layer {index} does not attend"
        sizes = qkv.mixer.sizes
        xp = import_cupy() if on_device else np
        kind = np.float16 if on_device else np.float32
        q: Floats = xp.empty((rows, sizes.heads, sizes.head_dim), kind) if into is None else into
        shape, gated = (rows, sizes.heads, 2 * sizes.head_dim), self.model.config.gated
        gates: Floats | None = xp.empty(shape, np.uint16 if on_device else np.float32) if gated else None
        at = 0
        for part, flow in self.flows(x, rows):
            end = at + flow.rows
            to = q if flow.rows == rows else q[at:end]
            qkv(flow, to)
            if flow.q is not to and flow.rows:
                to[...] = flow.q
            if gates is not None and flow.rows:
                gates[at:end] = flow.gate
            at = end
            if tell:
                self.pace.done(part.stop - part.start)
        return q, gates

    def leave(self, index: int, x: Floats, mixed: list[Any]) -> None:
        """All that comes after attention, chunk by chunk: the stream (n, hidden) is moved on in place. What attention
        made is taken out of `mixed`, so that nobody holds it for longer."""
        (_, _, *rest), feed = self.model.trunk.layers[index]
        whole = mixed.pop()
        for part, flow in self.flows(x, len(x)):
            flow.h = whole if flow.rows == len(whole) else whole[part]
            done = self.model.pass_layer((tuple(rest), feed), flow)
            if not is_device(done):
                x[part] = done
            self.pace.done(part.stop - part.start)

    def flows(self, x: Floats, rows: int) -> Iterator[tuple[slice, Flow]]:
        """The stream (n, hidden) chunk by chunk, to go through steps of which the last `rows` tokens are wanted."""
        for part, wanted in slices(len(x), self.chunk, rows):
            if part.stop - part.start == len(self.positions):  # to cut an array takes the host a good part of a launch
                yield part, Flow(x, self.positions, self.cache, wanted)
            else:
                yield part, Flow(x[part], self.positions[part], self.cache, wanted)


def chunk_on_device(config: ModelConfig) -> int:
    """Tokens of a prompt that the device projects together where it is read layer by layer.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> chunk_on_device(find_shape("qwen3-0.6b").config)
    16384
    """
    return NARROW_CHUNK if config.hidden <= NARROW else CHUNK_BY_LAYER["cuda"]


def prefill_by_layer(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    *,
    chunk: int | None = None,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    keep_kv: bool = True,
    hooks: Hooks = NO_HOOKS,
) -> Floats:
    """Read a prompt layer by layer: all of it through layer 0, then all of it through layer 1, and so on.

    The same numbers as `prefill`, beyond rounding. Projections and feed-forward go chunk by chunk, attention once a
    layer. With ``keep_kv=False`` the pages of each layer are released after it, so a cache with ``layers=1`` is large
    enough; no token can be decoded from it afterwards.

    Parameters
    ----------
    attend : LayerAttention
        What attends in every layer that has no window.
    hooks : Hooks
        Called once a layer, in the last one with the queries of the last `rows`; progress counts tokens x layers.
    model, ids, positions, cache, chunk, rows
        See `prefill`.

    Returns
    -------
    float32 (vocab,)
        Logits of the last token.
    """
    model.check_loaded()
    how = attend, rows, None, chunk, hooks
    x = _read(model, ids, positions, cache, *how, keep_kv=keep_kv)
    logits: Floats = model.head(x[-1:])[0]
    return logits


def read_by_layer(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    hooks: Hooks,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
    keep_kv: bool = False,
    chunk: int | None = None,
) -> None:
    """Read a prompt for what its attention layers show, with the keys and values of one layer at a time.

    Layers from `depth` on are not run, and of the last one run only keys, values and the queries of the last `rows`
    tokens are computed. With `keep_kv` the cache, which is then one of those layers, goes on holding all of it, and
    more tokens can be read. Everything else is as in `prefill_by_layer`.
    """
    _read(model, ids, positions, cache, attend, rows, depth, chunk, hooks, finish=False, keep_kv=keep_kv)


def stream_by_layer(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    *,
    attend: LayerAttention = dense_attention,
    depth: int | None = None,
    chunk: int | None = None,
    hooks: Hooks = NO_HOOKS,
) -> Floats:
    """Read a prompt for its residual stream after the first `depth` layers, all of them by default.

    One layer's keys and values are held at a time. Everything else is as in `read_by_layer`.

    Returns
    -------
    float32 (n, hidden)
        Where the model is; what `Model.head` takes, if all layers were run.
    """
    return _read(model, ids, positions, cache, attend, max(1, len(ids)), depth, chunk, hooks)


def _read(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    attend: LayerAttention,
    rows: int,
    depth: int | None,
    chunk: int | None,
    hooks: Hooks,
    *,
    finish: bool = True,
    keep_kv: bool = False,
) -> Floats:
    """The stream through so many layers, of the last one for the last `rows` alone, which is finished or not."""
    depth = model.config.layers if depth is None else depth
    model.check_loaded(depth)
    if chunk is None:
        chunk = CHUNK_BY_LAYER["cpu"] if model.device == "cpu" else chunk_on_device(model.config)
    ids, positions = checked_prompt(model, ids, positions, chunk, rows, cache)
    if len(ids) > cache.most_at_once:  # all of them are cached before the first one attends
        raise PromptError(
            f"{len(ids)} tokens layer by layer, and layers of this cache with a window take {cache.most_at_once} at "
            "once; read them by prefill, or into a cache of all tokens"
        )
    pace = Pace(model, hooks.progress)
    x, walk = model.embed(ids), Walk(model, model.place(positions), cache, attend, chunk, pace, hooks)
    for index in range(depth):
        last = index == depth - 1
        x = walk.layer(index, x, rows if last else len(x), finish=finish or not last)
        if not keep_kv:
            cache.release(index)
    pace.done(len(ids) * (model.config.layers - depth), ahead=0)
    return x


def prefill_sparse(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    selector: BlockSelector,
    *,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> tuple[Floats, tuple[float, ...]]:
    """Read a prompt whose attention layers see, of what came before, the key blocks a selector lists.

    Chunks go one after the other through all layers, each seeing the cache as its prefix. The last query blocks of
    the prompt see everything where the selector has it so; those of the chunks before do not.

    Parameters
    ----------
    model, ids, positions, progress
        See `prefill`.
    cache : Cache
        Of any format, rotated or not; may hold earlier tokens of the same sequence.
    selector : BlockSelector
        ``FlashPrefill(alpha=0.1)`` for example.
    chunk : int, optional
        Tokens of a chunk; a good number by default. The result depends on it a little, since query blocks begin
        where chunks do.

    Returns
    -------
    logits : float32 (vocab,)
        Of the last token, where the model is.
    densities : tuple of float
        Share of the causal blocks that each attention layer read; the last layer, of which one row a chunk is
        computed, reads all and is not listed.

    Raises
    ------
    PromptError
        As `prefill`.
    """
    chunk = min(SPARSE_CHUNK[model.device] if chunk is None else chunk, cache.most_at_once)
    inside = min(chunk, CHUNK[model.device])
    ids, positions = checked_prompt(model, ids, positions, chunk, 1, cache)
    attend, told = SparseAttention(selector, ends=False), _whole_tokens(model.config.layers, progress)
    logits = None
    for part, _ in slices(len(ids), chunk, 1):
        if part.stop == len(ids):
            attend = replace(attend, ends=True)  # what was read is shared
        logits = prefill_by_layer(
            model, ids[part], positions[part], cache, chunk=inside, attend=attend, hooks=Hooks(progress=told)
        )  # fmt: skip
    assert logits is not None
    return logits, attend.densities()


def _whole_tokens(layers: int, progress: Progress | None) -> Progress | None:
    """Tells of tokens that are through all layers, given tokens x layers."""
    if progress is None:
        return None
    told, tell = 0, progress

    def count(amount: int) -> None:
        nonlocal told
        before, told = told, told + amount
        tell(told // layers - before // layers)

    return count
