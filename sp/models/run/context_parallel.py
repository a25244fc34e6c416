"""read_context_parallel: a prompt that several GPUs read together, two chunks each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.models.cache.context_parallel_cache import ContextChunk, ContextChunks, ContextParallelCache
from sp.models.cache.kv_type import known_kv
from sp.models.config import ModelConfig
from sp.models.layer.steps import dense_attention
from sp.models.network.cost import prefill_cost
from sp.models.network.model import Model
from sp.models.run.chunked import checked_prompt
from sp.models.run.hooks import Hooks, Progress, ProgressReporter, counts_on_host
from sp.models.run.layer_attention import BlockCounts, ByEnergy, LayerAttention, SparseAttention
from sp.models.run.layer_major import LAYER_MAJOR_CHUNK, LayerMajorPass, read_layer_major
from sp.models.run.replay import (
    LayerSegments,
    QueriesAndGates,
    ReplayedLayers,
    ReplayWorkspace,
    replay_workspace,
    segments_of,
)
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.sparse.expected_density import expected_density
from sp.parallel.group import ParallelGroup, Rank

MOST_TOGETHER = 65536  # most tokens that one of several GPUs projects together
TOGETHER_BYTES = 1 << 30  # most bytes of their widest product


def tokens_together(model: Model) -> int:
    """Return the number of tokens that each of several GPUs projects together. The threads of all GPUs share Python's
    lock for every launch, so there are as few launches as memory allows: on the device the chunk of a single GPU is
    doubled as long as the widest product fits `TOGETHER_BYTES`. Experts sort tokens, which needs more memory."""
    config, tokens = model.config, LAYER_MAJOR_CHUNK[model.device]
    if model.device == "cuda" and config.experts is None:
        while tokens < MOST_TOGETHER and 2 * tokens * _widest(config) <= TOGETHER_BYTES:
            tokens *= 2
    return tokens


def even_chunk(tokens: int, most: int) -> int:
    """Return the number of tokens per projection within a context chunk: equal parts of `most` tokens or up to an
    eighth more. A short remainder would cost all launches of a layer.

    >>> even_chunk(67_584, 65_536), even_chunk(133_000, 65_536), even_chunk(150_000, 65_536), even_chunk(1000, 65_536)
    (67584, 66560, 50048, 1024)
    """
    parts = -(-8 * tokens // (9 * most))
    return -(-tokens // (parts * PAGE_TOKENS)) * PAGE_TOKENS


def _widest(config: ModelConfig) -> int:
    """Return the bytes of a token in 16 bits at the widest point: the normed stream plus queries, gates, keys and
    values, or plus the feed-forward."""
    heads = config.heads * (2 if config.gated else 1) + 2 * config.kv_heads
    return 2 * (config.hidden + max(*config.ffn, heads * config.head_dim))


SCAN_OPERATIONS = 700
"""Operations that a GPU could do in the time in which it scans one byte of keys for the last queries: for 256K tokens
0.44 ms per layer on an H200, which reaches 860 Tflop/s with a drafter (results/nvidia-h200/notes-cards.md)."""


def last_chunk_pages_less(config: ModelConfig, attend: LayerAttention, tokens: int) -> int:
    """Return the number of pages by which the last chunk should be shorter than the others, so that all GPUs take the
    same time. The GPU that reads it also scans all keys of every layer for the last queries, and some selectors let the
    last blocks of queries attend to all keys instead of a share of them. `config`: the drafter's. `attend`: selectors
    other than the energy-based ones of `sp.ops.sparse` count as dense."""
    selector = attend.selector if isinstance(attend, SparseAttention) else None
    return _pages_less(config, selector if isinstance(selector, ByEnergy) else None, tokens)


@lru_cache(64)
def _pages_less(config: ModelConfig, selector: ByEnergy | None, tokens: int) -> int:
    share = 1.0 if selector is None else expected_density(selector, tokens)
    cost, whole = prefill_cost(config, tokens, share), prefill_cost(config, tokens).attention
    at_end = (
        cost.weights + 2 * cost.attention
    ) / tokens  # cost of a token at the end; one in the middle sees half as many keys
    dense = 0.0 if selector is None else selector.last_n * BLOCK * (1 - share) * 2 * whole / tokens
    keys = 2.0 * len(config.attention_layers) * config.kv_heads * config.head_dim * tokens
    return int((dense + SCAN_OPERATIONS * keys) / at_end / BLOCK)


class ContextParallel(NamedTuple):
    """Several GPUs that can read a prompt together, see `read_context_parallel`."""

    group: ParallelGroup
    models: Sequence[Model]


def read_context_parallel(
    group: ParallelGroup,
    models: Sequence[Model],
    ids: Ints,
    positions: Ints,
    hooks: Hooks,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
    kv: str = "f16",
    rotate: bool | None = None,
    chunk: int | None = None,
) -> None:
    """Read a prompt as `read_layer_major` does, on all GPUs of a group.

    Every GPU reads the chunks that `ContextChunks` assigns to it. In each layer it computes and stores their keys and
    values, gathers those of the others, and attends for its own queries. There are two barriers per layer, one for each
    chunk. Hooks see, and `attend` counts, what a single GPU would, within rounding; attention in int8 or fp8 is not
    used for chunks of less than `BYTE_QUERIES` tokens. A prompt with less than a page per chunk is read by the first
    GPU alone.

    Parameters
    ----------
    models : sequence of Model
        The same model on each GPU, in the group's order; only attention layers.
    ids, positions, attend, rows, depth
        See `read_layer_major`.
    chunk : int, optional
        Tokens that a GPU projects together; see `tokens_together`.
    hooks : Hooks
        `on_attention` is called in the thread of GPU 0, with the queries of the last chunk or of `rows`, and all keys.
        If all GPUs have completed a reading with the same `replay_key` and shapes before, the first steps of this one
        wait for nothing, see `Rank.set_warm`; without a key every reading counts as the first. `progress` is called
        layer by layer, from any thread of the group, one call at a time.
    kv, rotate
        See `Cache`.

    Raises
    ------
    ConfigError
        For recurrent layers, experts in host memory, or a number of models that differs from the number of GPUs.
    PromptError
        As `read_layer_major`.
    SpError
        The error that stopped a GPU; see `ParallelGroup.run`.

    References
    ----------
    Chunks in pairs as in "zig-zag" ring attention; all-gather of keys and values as in Dubey et al., "The Llama 3 Herd
    of Models", 2024, section 3.3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import Hooks, load_model
    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.loaded import embedded
    >>> model, ids, seen = load_model(embedded("drafter")), np.arange(600), []
    >>> hooks = Hooks(on_attention=lambda layer, q, cache: seen.append((layer, cache.stored(layer).tokens)))
    >>> read_context_parallel(HostGroup(2), [model] * 2, ids, ids, hooks, depth=2)
    >>> seen
    [(0, 600), (1, 600)]
    """
    model = _checked(group, models)
    depth = model.config.layers if depth is None else depth
    model.check_loaded(depth)
    alone = LAYER_MAJOR_CHUNK[model.device] if chunk is None else chunk
    ids, positions = checked_prompt(model, ids, positions, alone, rows)
    # No block of queries is split: part of a block would attend densely where the whole would not.
    tail = max(rows, BLOCK)
    exact = known_kv(kv).keeps_recent  # of all tokens that are read, whose rows no GPU has
    if group.size == 1 or exact or not ContextChunks.fits(len(ids), group.size, tail):
        cache = model.new_cache(len(ids), kv, rotate=rotate, layers=1)
        read_layer_major(model, ids, positions, cache, hooks, attend=attend, rows=rows, depth=depth, chunk=alone)
        return
    context_chunks = ContextChunks(len(ids), group.size, tail, last_chunk_pages_less(model.config, attend, len(ids)))
    chunk = tokens_together(model) if chunk is None else chunk
    # The key includes the magnitude of the length: other lengths may use other kernels, and other NCCL algorithms.
    attention_key = type(attend), type(getattr(attend, "selector", None)), kv, rotate
    shape_key = ref(model.placement), model.config.rope, len(ids).bit_length(), rows
    kind = None if hooks.replay_key is None else (*shape_key, *attention_key, hooks.replay_key)
    known, hooks = kind in group.completed, replace(hooks, progress=_serialized(hooks.progress))
    reading = _Reading(models, ids, positions, context_chunks, hooks, attend, rows, depth, kv, rotate, chunk, known)
    for counted in group.run(reading.on):
        for layer, reads in counted.items():
            attend.reads.setdefault(layer, []).extend(reads)  # type: ignore[attr-defined]
    if kind is not None:
        group.completed.add(kind)
    if hooks.progress is not None and depth < model.config.layers:
        hooks.progress(len(ids) * (model.config.layers - depth))


@dataclass(frozen=True)
class _Reading:
    """Arguments of one reading, shared by all GPUs; see `read_context_parallel`."""

    models: Sequence[Model]
    ids: Ints
    positions: Ints
    context_chunks: ContextChunks
    hooks: Hooks
    attend: LayerAttention
    rows: int
    depth: int
    kv: str
    rotate: bool | None
    chunk: int
    known: bool

    def on(self, gpu: Rank) -> dict[int, list[BlockCounts]]:
        """Read one GPU's chunks; return the block counts of its attention, on the host. While one chunk finishes a
        layer and starts the next, the keys and values of the other chunk's next layer are gathered."""
        gpu.set_warm(self.known)
        segments = segments_of(self.models[gpu.rank])
        with gpu.on_shared_cpu(), replay_workspace(segments) as workspace:
            return self._read(gpu, segments, workspace)

    def _read(
        self, gpu: Rank, segments: list[LayerSegments], workspace: ReplayWorkspace | None
    ) -> dict[int, list[BlockCounts]]:
        """Run the reading in a workspace, and leave nothing in it."""
        with gpu.launch_lock():
            cache, chunk_states = self._start(gpu.rank, segments, workspace)
        pace = ProgressReporter(self.models[gpu.rank], self.hooks.progress)  # it waits: outside the launch lock
        for state in chunk_states:
            with gpu.launch_lock():
                self._qkv_proj(state, gpu, 0)
            state.gathered = cache.begin_gather_chunks(0, state.which, gpu.begin_gather)
        for layer in range(self.depth):
            for state in chunk_states:
                self._pass(state, gpu, layer)
            cache.release(layer)
            pace.done(sum(len(state.x) for state in chunk_states))
        gpu.wait()
        pace.done(0, ahead=0)
        return _block_counts([state.prompt_pass.attend for state in chunk_states])

    def _start(
        self, rank: int, segments: list[LayerSegments], workspace: ReplayWorkspace | None
    ) -> tuple[ContextParallelCache, list[_ChunkState]]:
        """Return a GPU's cache, and the state of both its chunks before the first layer."""
        model, chunk_states, replayed = self.models[rank], list[_ChunkState](), None
        options: dict[str, Any] = {
            "rotate": self.rotate,
            "device": model.device,
            "precision": model.arithmetic.attention,
        }
        cache = ContextParallelCache(
            model.config, self.context_chunks, rank, self.kv, bases=model.bases_for(self.kv), **options
        )
        if len(cache.places):  # a window of the second chunk may start on another GPU
            cache.places[: len(self.positions)] = model.place(self.positions)
        for which, context_chunk in enumerate(self.context_chunks.of(rank)):
            places, attend = slice(*context_chunk), self.attend
            following = self.context_chunks.tokens - context_chunk.stop
            if isinstance(attend, SparseAttention):  # a copy without counts, for queries that other blocks follow
                attend = attend.before_end(-(-following // BLOCK))
            chunk = even_chunk(context_chunk.stop - context_chunk.start, self.chunk)
            positions = model.place(self.positions[places])
            prompt_pass = LayerMajorPass(
                model, positions, cache, attend, chunk, ProgressReporter(model, None), self.hooks
            )
            x = model.embed(self.ids[places])
            replayed = ReplayedLayers(prompt_pass, x, which, segments, workspace, replayed)
            chunk_states.append(_ChunkState(which, context_chunk, prompt_pass, replayed, cache, x))
        return cache, chunk_states

    def _qkv_proj(self, state: _ChunkState, gpu: Rank, layer: int) -> None:
        """Run the steps before attention in a layer."""
        hook_rows = self.rows if state.which == 1 and gpu.rank == 0 else 0
        rows = len(state.x) if layer < self.depth - 1 or state.replayed.able else hook_rows
        if rows == len(state.x):
            state.queries = state.replayed.qkv_proj(layer)
        else:
            state.queries = state.prompt_pass.qkv_proj(layer, state.x, rows, report_progress=False)

    def _pass(self, state: _ChunkState, gpu: Rank, layer: int) -> None:
        """Run attention and the steps after it in a layer, then the steps before attention in the next layer, and start
        its gather."""
        state.gathered()
        state.cache.look(state.context_chunk)
        # The last context chunk of the prompt is the second one of GPU 0.
        on_attention = self.hooks.on_attention if state.which == 1 and gpu.rank == 0 else None
        waits = self.hooks.replay_key is None  # a hook without a key may wait, so it must not hold the launch lock
        if on_attention is not None and waits:
            on_attention(layer, state.queries[0], state.cache)
        with gpu.launch_lock():
            if on_attention is not None and not waits:
                on_attention(layer, state.queries[0], state.cache)
            if layer == self.depth - 1:
                return
            attended = state.replayed.attend(layer, state.queries)
            del state.queries  # queries are as large as the chunk: freed before the feed-forward needs memory
            state.replayed.out_proj(layer, attended)
            self._qkv_proj(state, gpu, layer + 1)
        state.gathered = state.cache.begin_gather_chunks(layer + 1, state.which, gpu.begin_gather)


@dataclass
class _ChunkState:
    """State of one of a GPU's two chunks on its way through the layers."""

    which: int  # 0 for the first, 1 for the second
    context_chunk: ContextChunk
    prompt_pass: LayerMajorPass
    replayed: ReplayedLayers
    cache: ContextParallelCache
    x: Floats  # float32 (tokens, hidden)
    queries: QueriesAndGates = field(init=False)  # queries and gates for the next attention
    gathered: Callable[[], None] = field(init=False)  # makes later launches wait for the keys and values of that layer


def _checked(group: ParallelGroup, models: Sequence[Model]) -> Model:
    """Return the first of the models, after checking that models and group fit together."""
    model = models[0]
    if len(models) != group.size or any(other.config != model.config for other in models):
        raise ConfigError(f"{group.size} GPUs need the same model each, not {len(models)}, or several kinds")
    if len(model.config.attention_layers) < model.config.layers:
        raise ConfigError("several GPUs read with attention layers alone; a recurrent state would go from one to one")
    if len(model.config.head_sizes) > 1:
        raise ConfigError("several GPUs read models whose layers all have heads of one size; use one GPU")
    if model.cold is not None:
        raise ConfigError("several GPUs read only models that lie wholly on each; here experts wait in host memory")
    return model


def _serialized(progress: Progress | None) -> Progress | None:
    """Return a progress callback that several threads may call."""
    if progress is None:
        return None
    lock = Lock()

    def report_progress(amount: int) -> None:
        with lock:
            progress(amount)

    return report_progress


def _block_counts(attends: Sequence[LayerAttention]) -> dict[int, list[BlockCounts]]:
    """Return all block counts on the host: another GPU may not read them where they are."""
    sparse = [attend for attend in attends if isinstance(attend, SparseAttention)]
    counted = [(layer, entry) for attend in sparse for layer, entries in attend.reads.items() for entry in entries]
    by_layer: dict[int, list[BlockCounts]] = {}
    for (layer, entry), counts in zip(counted, counts_on_host([entry.counts for _, entry in counted]), strict=True):
        by_layer.setdefault(layer, []).append(entry._replace(counts=counts.copy()))
    return by_layer
