"""The answer of the target, on one GPU or on several: prefill up to the first token, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.decode import Decoder, Speculative
from sp.decode.base import Chooser, generate
from sp.decode.speculate import speculate
from sp.errors import ConfigError
from sp.kernels import import_cupy
from sp.models import Hooks, Model, prefill, prefill_sparse
from sp.models.drafts.dflash import Draft
from sp.models.run.tensor_parallel import ShardModel
from sp.models.run.tree import LayerFeatures
from sp.models.shards.shards import SharedModel, stream
from sp.ops.array_module import array_module, on_host
from sp.parallel.group import StoppedError
from sp.session.compress import CompressedPrompt
from sp.session.device.cache_pool import CacheGraphs, CachePool, PooledCache
from sp.session.device_memory import Meter
from sp.session.loaded import Loaded, draft_of
from sp.session.options import RunOptions

Progress = Callable[[int], None]


@dataclass
class OnGPUs:
    """Reports of GPUs that share the target on an answer, complete once `PrefilledAnswer.tokens` is closed.

    `peaks`: most bytes in use on each up to the first token, 0 on the CPU; `refused`: see `CacheGraphs.refused`.
    """

    peaks: list[int]
    refused: str | None = None


@dataclass(frozen=True)
class PrefilledAnswer:
    """An answer whose first token is known; `rest` computes the others on demand.

    Attributes
    ----------
    first : int
    rest : generator of int
    densities : tuple of float
        Shares of the causal blocks that sparse attention layers read; empty where attention was dense.
    passes : list of int
        With speculative decoding, the number of tokens of each pass of the target; once `tokens` is closed, only those
        that were taken from it.
    prefill_counts : mapping
        Prompt tokens by the way they were read, see `sp.models.run.graph`; empty where all were launched eagerly.
    gpus : OnGPUs or None
        Reports of GPUs that share the target.
    """

    first: int
    rest: Generator[int]
    densities: tuple[float, ...] = ()
    passes: list[int] = field(default_factory=list)
    prefill_counts: Mapping[str, int] = field(default_factory=dict)
    gpus: OnGPUs | None = None

    def tokens(self) -> Generator[int]:
        """Yield all tokens, the first one first; closes `rest` when closed."""
        count = 0  # tokens after the first
        try:
            with closing(self.rest):
                yield self.first
                for token in self.rest:
                    count += 1
                    yield token
        finally:
            self.passes[:] = truncated(self.passes, count)


def truncated(passes: Sequence[int], tokens: int) -> list[int]:
    """Return the tokens of each pass, up to so many in all: the last one reduced, those after it omitted."""
    lengths: list[int] = []
    for length in passes:
        if tokens <= 0:
            break
        lengths.append(min(length, tokens))
        tokens -= length
    return lengths


def required_draft(draft: Draft | None) -> Draft:
    """Return the draft of a speculative decoder; ConfigError if there is none."""
    if draft is None:
        raise ConfigError(
            "speculative decoding needs a draft model of the target; pass --speculator FILE, or call with_speculator"
        )
    return draft


def begin(
    target: Loaded,
    compressed: CompressedPrompt,
    options: RunOptions,
    progress: Progress | None,
    draft: Draft | None = None,
    pool: CachePool | None = None,
) -> PrefilledAnswer:
    """Run the target over a compressed prompt, up to the first token of the answer.

    ConfigError if the options' decoder needs a draft and there is none.
    """
    pool, decoder = pool or CachePool(keep=False), options.decode
    tokens = len(compressed.ids) + options.max_new_tokens
    if isinstance(decoder, Speculative):
        tokens += decoder.nodes(required_draft(draft).block_size)
    # The counts of used experts in host memory are those of this prompt alone.
    if target.model.cold is not None:
        target.model.cold.restart()
    pooled = pool.take(target.model, tokens, options.kv, options.rotate)
    try:
        if draft is not None and isinstance(decoder, Speculative):
            prefilled = _begin_with_draft(target, compressed, options, decoder, progress, draft, pooled)
        else:
            logits, densities = read_prompt(
                target.model, compressed.ids, compressed.positions, pooled, options, progress
            )
            rest = decode(target.model, logits, compressed.next_position, pooled, options)
            prefilled = PrefilledAnswer(-1, rest, densities, prefill_counts=pooled.take_counts())
    except BaseException:
        pooled.end()
        raise
    stream = _returning(pooled, pool, prefilled.rest)
    # The first token is computed here, so that it is timed with the prefill.
    return replace(prefilled, first=next(stream), rest=stream)


def _returning(pooled: PooledCache, pool: CachePool, stream: Generator[int]) -> Generator[int]:
    """Yield the same tokens, and return the cache to the pool at the end or when closed, but not after an error."""
    try:
        with closing(stream):
            yield from stream
    # A caller that stops early leaves a valid cache; after any other error its contents are unknown.
    except GeneratorExit:
        pool.give_back(pooled)
        raise
    except BaseException:
        pooled.end()
        raise
    pool.give_back(pooled)


def read_prompt(
    model: Model,
    ids: Ints,
    positions: Ints,
    graphs: CacheGraphs,
    options: RunOptions,
    progress: Progress | None,
) -> tuple[Floats, tuple[float, ...]]:
    """Return the logits of the last token, and the densities of sparse attention layers; see `PrefilledAnswer`."""
    arguments = model, ids, positions, graphs.cache
    if options.target_sparse is not None:
        return prefill_sparse(*arguments, options.target_sparse, progress=progress)
    return prefill(*arguments, gaps=options.state_gaps, hooks=Hooks(progress=progress), graphs=graphs.prefill()), ()


def decode(model: Model, logits: Floats, position: int, graphs: CacheGraphs, options: RunOptions) -> Generator[int]:
    """Return the tokens of an answer without a draft, from the logits of the token before `position`."""
    return generate(
        *(model, logits, position, graphs.cache),
        limit=options.max_new_tokens,
        decoder=graphs.greedy(),
        chooser=options.decode.chooser(options.seed),
    )


def _begin_with_draft(
    target: Loaded,
    compressed: CompressedPrompt,
    options: RunOptions,
    decoder: Speculative,
    progress: Progress | None,
    draft: Draft,
    pooled: PooledCache,
) -> PrefilledAnswer:
    """Prefill for speculative decoding, passing the outputs of some layers to the draft; `first` is not known yet."""
    session, count = pooled.session(draft), 0

    def take(features: Floats) -> None:
        nonlocal count
        session.remember(features, compressed.positions[count : count + len(features)])
        count += len(features)  # the features of a chunk belong to the next positions

    logits = prefill(
        *(target.model, compressed.ids, compressed.positions, pooled.cache),
        # All rows of the last layer are computed only where the draft needs its outputs.
        rows=len(compressed.ids) if target.model.config.layers - 1 in draft.layers else 1,
        gaps=options.state_gaps,
        hooks=Hooks(after_layer=LayerFeatures(draft.layers, take), progress=progress),
    )
    passes: list[int] = []
    rest = speculate(
        *(target.model, session, decoder, logits, compressed.next_position, pooled.cache),
        limit=options.max_new_tokens,
        seed=options.seed,
        on_pass=passes.append,
        cycle=pooled.cycle(decoder),
    )
    return PrefilledAnswer(-1, rest, passes=passes)


def begin_on_gpus(
    target: Loaded,
    compressed: CompressedPrompt,
    options: RunOptions,
    progress: Progress | None,
    draft: Draft | None,
    pool: CachePool,
) -> PrefilledAnswer:
    """Run `begin` on every GPU that shares the target, each with a cache and a draft of its own.

    See `answer_on_gpus`; kept caches and graphs of all GPUs are dropped after a failure.
    """
    pools = pool.gpus
    assert pools is not None, "only for shared targets"
    if isinstance(options.decode, Speculative):
        required_draft(draft)

    def start(part: ShardModel, own: RunOptions, progress: Progress | None) -> PrefilledAnswer:
        rank = part.shard.rank
        return begin(replace(target, model=part), compressed, own, progress, draft_of(draft, rank), pools.pools[rank])

    def refused() -> str | None:
        idle = pools.pools[0].idle
        return None if idle is None else idle.refused

    return answer_on_gpus(target, options, progress, start, refused, spoiled=pools.spoiled)


def answer_on_gpus(
    target: Loaded,
    options: RunOptions,
    progress: Progress | None,
    start: Callable[[ShardModel, RunOptions, Progress | None], PrefilledAnswer],
    refused: Callable[[], str | None],
    spoiled: Callable[[], object] = lambda: None,
) -> PrefilledAnswer:
    """Return the answer that all GPUs that share the target compute together.

    They choose the same tokens, or take those of the first GPU where the decoder is observed; the first GPU's are
    returned. No GPU reads further than tokens are requested, so that an answer that is ended early leaves them equal.

    Parameters
    ----------
    start : callable
        Begins the answer with a GPU's shard, its options, and the progress to report.
    refused : callable
        Called at the end for the first GPU: see `CacheGraphs.refused`.
    spoiled : callable
        Called after a failure, see `stream`.

    Raises
    ------
    SpError
        As `start`, and for a GPU that failed.
    """
    model = target.model
    assert isinstance(model, SharedModel), "only for shared targets"
    report, leader = OnGPUs([0] * model.shards.group.size), TokenLeader(model.shards.group.size)

    def work(part: ShardModel) -> Generator[Any]:
        rank = part.shard.rank
        own = replace(options, decode=leader.decoder(options.decode, rank)) if options.decode.observed else options
        # Inside, followers may wait for the leader; however it ends, they are released.
        with leader.leading() if rank == 0 else nullcontext():
            with _metered(part, report.peaks):
                prefilled = start(part, own, progress if rank == 0 else None)
            try:
                with closing(prefilled.rest):
                    yield prefilled
                    yield from prefilled.rest
            finally:
                # All GPUs capture the same graphs, so one of them can report.
                if rank == 0:
                    report.refused = refused()

    pieces = stream(model.shards, work, spoiled=spoiled)
    first: PrefilledAnswer = next(pieces)
    return replace(first, rest=pieces, gpus=report)


def target_line(target: Loaded, report: OnGPUs) -> str:
    """Return the line of the report on the GPUs that hold the target, and on launches outside of CUDA graphs.

    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.loaded import embedded, load
    >>> target_line(load(embedded("target"), device="cpu", group=HostGroup(2)), OnGPUs([0, 0]))
    'target: shared by 2 GPUs, 13.5 + 13.5 MB of weights'
    """
    assert isinstance(target.model, SharedModel), "only for shared targets"
    parts = [part.nbytes for part in target.model.shards.models]
    unit, size = ("GB", 1e9) if max(parts) >= 1e9 else ("MB", 1e6)
    sizes = " + ".join(f"{nbytes / size:.3g}" for nbytes in parts)
    line = f"target: shared by {len(parts)} GPUs, {sizes} {unit} of weights"
    return line if report.refused is None else f"{line}; not in CUDA graphs: {report.refused}"


@contextmanager
def _metered(part: ShardModel, peaks: list[int]) -> Iterator[None]:
    """Note the most bytes in use on a GPU inside; only allocations of this thread are counted."""
    if part.device == "cpu":
        yield
        return
    meter = Meter()
    meter.start(import_cupy().get_default_memory_pool().used_bytes())
    with meter.hook:
        yield
    peaks[part.shard.rank] = meter.peak


class TokenLeader:
    """Passes the tokens that the first GPU chooses to every other GPU.

    A grammar advances with each token and callbacks report each, so one GPU alone may choose. All GPUs have the same
    logits, and without an observer each chooses by itself.

    >>> from sp.decode import Greedy
    >>> leader, choices = TokenLeader(2), []
    >>> first = leader.decoder(Greedy(), 0).chooser(0, on_choice=choices.append)
    >>> logits = np.array([[0.5, 2.0]], np.float32)
    >>> int(first.choose(logits)[0]), int(leader.decoder(Greedy(), 1).chooser(0).choose(logits)[0]), len(choices)
    (1, 1, 1)
    """

    def __init__(self, gpus: int) -> None:
        self._chosen = [SimpleQueue[int | None]() for _ in range(gpus - 1)]

    def decoder(self, base: Decoder, rank: int) -> Decoder:
        """Return the decoder of a GPU."""
        return _LeaderDecoder(base, self, rank)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Enter on the first GPU while it answers; GPUs that wait for it are released when it leaves."""
        try:
            yield
        finally:
            self.send(None)

    def send(self, token: int | None) -> None:
        """Send a chosen token to the other GPUs; None if there is no further one."""
        for queue in self._chosen:
            queue.put(token)

    def token(self, rank: int) -> int:
        """Return the next token for a GPU; StoppedError if the first GPU has failed."""
        token = self._chosen[rank - 1].get()
        if token is None:
            raise StoppedError
        return token


@dataclass(frozen=True)
class _LeaderDecoder(Decoder):
    base: Decoder
    leader: TokenLeader
    rank: int

    def chooser(self, seed: int, **observed: Any) -> Chooser:
        if self.rank > 0:
            return _ReceivingChooser(self.leader, self.rank)
        chooser = self.base.chooser(seed, **observed)
        assert chooser is not None, "an observed decoder has a chooser"
        return _SendingChooser(chooser, self.leader)


class _SendingChooser(Chooser):
    """Chooses like another chooser, and sends the tokens to the other GPUs."""

    def __init__(self, chooser: Chooser, leader: TokenLeader) -> None:
        self._chooser, self._leader = chooser, leader

    def choose(self, logits: Floats) -> Any:
        token = self._chooser.choose(logits)
        self._leader.send(int(on_host(token)[0]))
        return token


class _ReceivingChooser(Chooser):
    """Takes the tokens that the first GPU has chosen."""

    def __init__(self, leader: TokenLeader, rank: int) -> None:
        self._leader, self._rank = leader, rank

    def choose(self, logits: Floats) -> Any:
        return array_module(logits).full(1, self._leader.token(self._rank), np.int32)
