"""The answer to what the target reads, on one GPU or on several: prefill up to the first token, and the rest."""

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
from sp.session.compress import Compressed
from sp.session.device_memory import Meter
from sp.session.loaded import Loaded, draft_of
from sp.session.options import RunOptions
from sp.session.residency import CacheGraphs, CachePool, PooledCache

Progress = Callable[[int], None]


@dataclass
class OnGPUs:
    """What GPUs that share the target tell of an answer, once `Begun.tokens` is closed. `peaks` are the most bytes in
    use on each up to the first token, 0 on the CPU; `refused` is `PooledCache.refused`.
    """

    peaks: list[int]
    refused: str | None = None


@dataclass(frozen=True)
class Begun:
    """An answer whose first token is known; `rest` computes the others as it is asked for them.

    `densities` are the shares of the causal blocks that sparse attention layers read; empty where attention was dense.
    `passes` fills with the tokens that each pass of the target gives, where a draft guesses; once `tokens` is closed,
    those that were taken from it are left. `read` tells how many tokens of the prompt were read in which way, see
    `sp.models.run.graph.Way`; empty where all were read launch by launch without asking. `gpus` is there
    where GPUs share the target.
    """

    first: int
    rest: Generator[int]
    densities: tuple[float, ...] = ()
    passes: list[int] = field(default_factory=list)
    read: Mapping[str, int] = field(default_factory=dict)
    gpus: OnGPUs | None = None

    def tokens(self) -> Generator[int]:
        """All tokens, the first one first; closes `rest` when closed."""
        taken = 0  # after the first
        try:
            with closing(self.rest):
                yield self.first
                for token in self.rest:
                    taken += 1
                    yield token
        finally:
            self.passes[:] = cut(self.passes, taken)


def cut(passes: Sequence[int], tokens: int) -> list[int]:
    """Tokens of each pass, up to so many in all: the last one cut, those after it left out."""
    found: list[int] = []
    for length in passes:
        if tokens <= 0:
            break
        found.append(min(length, tokens))
        tokens -= length
    return found


def needed(draft: Draft | None) -> Draft:
    """Return the draft model; ConfigError if there is none, which speculative decoding needs."""
    if draft is None:
        raise ConfigError(
            "speculative decoding needs a draft model of the target; pass --speculator FILE, or call with_speculator"
        )
    return draft


def begin(
    target: Loaded,
    given: Compressed,
    options: RunOptions,
    progress: Progress | None,
    draft: Draft | None = None,
    pool: CachePool | None = None,
) -> Begun:
    """Run the target over the given tokens, up to the first token of the answer. ConfigError without the draft that the
    options' way of decoding needs.
    """
    pool, decoder = pool or CachePool(keep=False), options.decode
    tokens = len(given.ids) + options.max_new_tokens
    if isinstance(decoder, Speculative):
        tokens += decoder.nodes(needed(draft).block_size)
    if target.model.cold is not None:
        target.model.cold.restart()
    pooled = pool.take(target.model, tokens, options.kv, options.rotate)
    try:
        if draft is not None and isinstance(decoder, Speculative):
            begun = _begin_with_draft(target, given, options, decoder, progress, draft, pooled)
        else:
            logits, densities = read_prompt(target.model, given.ids, given.positions, pooled, options, progress)
            rest = decode(target.model, logits, given.next_position, pooled, options)
            begun = Begun(-1, rest, densities, read=pooled.take_counts())
    except BaseException:
        pooled.end()
        raise
    lent = _lent(pooled, pool, begun.rest)
    return replace(begun, first=next(lent), rest=lent)


def _lent(pooled: PooledCache, pool: CachePool, stream: Generator[int]) -> Generator[int]:
    """The same stream; its cache goes back to the pool when it has ended or is closed, but not after an error."""
    try:
        with closing(stream):
            yield from stream
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
    """Logits of the last token, and the densities of sparse attention layers; see `Begun`."""
    what = model, ids, positions, graphs.cache
    if options.target_sparse is not None:
        return prefill_sparse(*what, options.target_sparse, progress=progress)
    return prefill(*what, gaps=options.state_gaps, hooks=Hooks(progress=progress), graphs=graphs.prefill()), ()


def decode(model: Model, logits: Floats, position: int, graphs: CacheGraphs, options: RunOptions) -> Generator[int]:
    """The tokens of an answer without a draft, from the logits of what was read before `position`."""
    return generate(
        *(model, logits, position, graphs.cache),
        limit=options.max_new_tokens,
        decoder=graphs.greedy(),
        chooser=options.decode.chooser(options.seed),
    )


def _begin_with_draft(
    target: Loaded,
    given: Compressed,
    options: RunOptions,
    decoder: Speculative,
    progress: Progress | None,
    draft: Draft,
    pooled: PooledCache,
) -> Begun:
    """Read the prompt for an answer whose draft takes the outputs of some layers; `first` is not known yet."""
    session, read = pooled.session(draft), 0

    def take(features: Floats) -> None:
        nonlocal read
        session.remember(features, given.positions[read : read + len(features)])
        read += len(features)

    logits = prefill(
        *(target.model, given.ids, given.positions, pooled.cache),
        # The last layer is whole only where the draft wants its outputs.
        rows=len(given.ids) if target.model.config.layers - 1 in draft.layers else 1,
        gaps=options.state_gaps,
        hooks=Hooks(after_layer=LayerFeatures(draft.layers, take), progress=progress),
    )
    passes: list[int] = []
    rest = speculate(
        *(target.model, session, decoder, logits, given.next_position, pooled.cache),
        limit=options.max_new_tokens,
        seed=options.seed,
        on_pass=passes.append,
        cycle=pooled.cycle(decoder),
    )
    return Begun(-1, rest, passes=passes)


def begin_on_gpus(
    target: Loaded,
    given: Compressed,
    options: RunOptions,
    progress: Progress | None,
    draft: Draft | None,
    pool: CachePool,
) -> Begun:
    """`begin` on every GPU that shares the target, each with a cache and a draft of its own. They choose the same
    tokens, or take those of the first GPU where somebody watches these, and the first GPU's are returned. None reads
    further than these are asked for, so that an answer that is ended early leaves them alike. SpError as `begin`, and
    of a GPU that failed; what the GPUs keep is let go of then.
    """
    model, pools = target.model, pool.gpus
    assert isinstance(model, SharedModel), "one GPU answers by itself"
    assert pools is not None
    if isinstance(options.decode, Speculative):
        needed(draft)
    told, lead = OnGPUs([0] * model.shards.group.size), Lead(model.shards.group.size)

    def work(part: ShardModel) -> Generator[Any]:
        rank = part.shard.rank
        pool, mine = pools.pools[rank], replace(target, model=part)
        own = replace(options, decode=lead.decoder(options.decode, rank)) if options.decode.observed else options
        with lead.leading() if rank == 0 else nullcontext():
            with _metered(part, told.peaks):
                begun = begin(mine, given, own, progress if rank == 0 else None, draft_of(draft, rank), pool)
            try:
                with closing(begun.rest):
                    yield begun
                    yield from begun.rest
            finally:
                if rank == 0 and pool.idle is not None:
                    told.refused = pool.idle.refused

    pieces = stream(model.shards, work, spoiled=pools.drop)
    first: Begun = next(pieces)
    return replace(first, rest=pieces, gpus=told)


def target_line(target: Loaded, told: OnGPUs) -> str:
    """The line of a report: who holds the target, and what is launched kernel by kernel if anything is.

    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.loaded import embedded, load
    >>> target_line(load(embedded("target"), device="cpu", group=HostGroup(2)), OnGPUs([0, 0]))
    'target: shared by 2 GPUs, 13.5 + 13.5 MB of weights'
    """
    assert isinstance(target.model, SharedModel), "one GPU holds all"
    parts = [part.nbytes for part in target.model.shards.models]
    unit, size = ("GB", 1e9) if max(parts) >= 1e9 else ("MB", 1e6)
    held = " + ".join(f"{nbytes / size:.3g}" for nbytes in parts)
    line = f"target: shared by {len(parts)} GPUs, {held} {unit} of weights"
    return line if told.refused is None else f"{line}; not in CUDA graphs: {told.refused}"


@contextmanager
def _metered(part: ShardModel, peaks: list[int]) -> Iterator[None]:
    """Note the most bytes that are in use on a GPU inside; what its thread takes alone is seen."""
    if part.device == "cpu":
        yield
        return
    meter = Meter()
    meter.start(import_cupy().get_default_memory_pool().used_bytes())
    with meter.hook:
        yield
    peaks[part.shard.rank] = meter.peak


class Lead:
    """What the first GPU has chosen, for every other one.

    A grammar goes on with each token and log probabilities are told of each, so that this may be done once alone. All
    GPUs have the same logits, and where nobody watches each chooses by itself.

    >>> from sp.decode import Greedy
    >>> lead, told = Lead(2), []
    >>> first = lead.decoder(Greedy(), 0).chooser(0, on_choice=told.append)
    >>> logits = np.array([[0.5, 2.0]], np.float32)
    >>> int(first.choose(logits)[0]), int(lead.decoder(Greedy(), 1).chooser(0).choose(logits)[0]), len(told)
    (1, 1, 1)
    """

    def __init__(self, gpus: int) -> None:
        self._chosen = [SimpleQueue[int | None]() for _ in range(gpus - 1)]

    def decoder(self, base: Decoder, rank: int) -> Decoder:
        """How a GPU decodes."""
        return _Led(base, self, rank)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """The first GPU is inside while it answers; others that wait for it leave when it has left."""
        try:
            yield
        finally:
            self.tell(None)

    def tell(self, token: int | None) -> None:
        """What was chosen; None when nothing more is."""
        for queue in self._chosen:
            queue.put(token)

    def token(self, rank: int) -> int:
        """What a GPU is to take next; StoppedError where the first one has failed."""
        token = self._chosen[rank - 1].get()
        if token is None:
            raise StoppedError
        return token


@dataclass(frozen=True)
class _Led(Decoder):
    base: Decoder
    lead: Lead
    rank: int

    def chooser(self, seed: int, **observed: Any) -> Chooser:
        if self.rank > 0:
            return _Taken(self.lead, self.rank)
        chooser = self.base.chooser(seed, **observed)
        assert chooser is not None, "nobody watches"
        return _Told(chooser, self.lead)


class _Told(Chooser):
    """Chooses as another does, and tells the other GPUs."""

    def __init__(self, chooser: Chooser, lead: Lead) -> None:
        self._chooser, self._lead = chooser, lead

    def choose(self, logits: Floats) -> Any:
        token = self._chooser.choose(logits)
        self._lead.tell(int(on_host(token)[0]))
        return token


class _Taken(Chooser):
    """Takes what the first GPU has chosen."""

    def __init__(self, lead: Lead, rank: int) -> None:
        self._lead, self._rank = lead, rank

    def choose(self, logits: Floats) -> Any:
        return array_module(logits).full(1, self._lead.token(self._rank), np.int32)
