"""The answer to what the target reads: prefill up to the first token, and the others as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from sp.arrays import Floats
from sp.decode import Speculative
from sp.decode.greedy import generate
from sp.decode.speculate import speculate
from sp.errors import ConfigError
from sp.models import prefill, prefill_sparse
from sp.models.drafts.dflash import Draft
from sp.models.passes.tree import LayerFeatures
from sp.pipeline.cache_pool import CachePool, PooledCache
from sp.pipeline.compress import Compressed
from sp.pipeline.load import Loaded
from sp.pipeline.options import RunOptions

Progress = Callable[[int], None]


@dataclass
class OnCards:
    """What cards that share the target tell of an answer, once `Begun.tokens` is closed.

    Attributes
    ----------
    peaks : list of int
        Most bytes in use on each card up to the first token; 0 on the CPU.
    refused : str or None
        See `PooledCache.refused`.
    """

    peaks: list[int]
    refused: str | None = None


@dataclass(frozen=True)
class Begun:
    """An answer whose first token is known; `rest` computes the others as it is asked for them.

    `densities` are the shares of the causal blocks that sparse attention layers read; empty where attention was dense.
    `passes` fills with the tokens that each pass of the target gives, where a draft guesses; once `tokens` is closed,
    those that were taken from it are left. `read` tells how many tokens of the prompt were read in which way, see
    `sp.models.passes.prefill_graphs.Way`; empty where all were read launch by launch without asking. `cards` is there
    where cards share the target.
    """

    first: int
    rest: Generator[int]
    densities: tuple[float, ...] = ()
    passes: list[int] = field(default_factory=list)
    read: Mapping[str, int] = field(default_factory=dict)
    cards: OnCards | None = None

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
    """Tokens of each pass, up to so many in all: the last one cut, those after it left out.

    Examples
    --------
    >>> cut([3, 4, 2], 5)
    [3, 2]
    """
    found: list[int] = []
    for length in passes:
        if tokens <= 0:
            break
        found.append(min(length, tokens))
        tokens -= length
    return found


def check_draft(options: RunOptions, draft: Draft | None) -> None:
    """ConfigError if the options' way of decoding needs a draft and there is none."""
    if draft is None and isinstance(options.decode, Speculative):
        raise ConfigError("guessing ahead needs the target's draft; name its file with --draft, or in with_draft")


def begin(
    target: Loaded,
    given: Compressed,
    options: RunOptions,
    progress: Progress | None,
    draft: Draft | None = None,
    pool: CachePool | None = None,
) -> Begun:
    """Run the target over the given tokens, up to the first token of the answer.

    Parameters
    ----------
    target, given, options, progress
    draft : Draft, optional
        For the speculative ways of decoding.
    pool : CachePool, optional
        Where the answer's cache comes from and goes; by default it is made for this answer.

    Raises
    ------
    ConfigError
        Without the draft that the options' way of decoding needs.
    """
    pool, decoder = pool or CachePool(keep=False), options.decode
    tokens = len(given.ids) + options.max_new_tokens
    check_draft(options, draft)
    if draft is not None and isinstance(decoder, Speculative):
        tokens += decoder.nodes(draft.block_size)
    if target.model.cold is not None:
        target.model.cold.restart()
    pooled = pool.take(target.model, tokens, options.kv, options.rotate)
    try:
        if draft is not None and isinstance(decoder, Speculative):
            begun = _begin_with_draft(target, given, options, decoder, progress, draft, pooled)
        else:
            begun = _begin_alone(target, given, options, progress, pooled)
    except BaseException:
        pooled.end()
        raise
    rest = _lent(pooled, pool, begun.rest)
    return replace(begun, first=next(rest), rest=rest)


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


def _begin_alone(
    target: Loaded, given: Compressed, options: RunOptions, progress: Progress | None, pooled: PooledCache
) -> Begun:
    """Read the prompt, for an answer without a draft; `first` is not known yet."""
    what = target.model, given.ids, given.positions, pooled.cache
    densities: tuple[float, ...] = ()
    graphs = pooled.prefill() if options.target_sparse is None else None
    if options.target_sparse is None:
        logits = prefill(*what, gaps=options.state_gaps, progress=progress, graphs=graphs)
    else:
        logits, densities = prefill_sparse(*what, options.target_sparse, progress=progress)
    how = target.model, logits, given.next_position, pooled.cache
    rest = generate(
        *how,
        limit=options.max_new_tokens,
        decoder=pooled.greedy(),
        chooser=options.decode.chooser(options.seed),
    )
    return Begun(-1, rest, densities, read={} if graphs is None else graphs.told())


def _begin_with_draft(
    target: Loaded,
    given: Compressed,
    options: RunOptions,
    decoder: Speculative,
    progress: Progress | None,
    draft: Draft,
    pooled: PooledCache,
) -> Begun:
    """The same where a draft reads along: the outputs of some layers, as each part of the prompt passes them."""
    session, read = pooled.session(draft), 0

    def take(features: Floats) -> None:
        nonlocal read
        session.remember(features, given.positions[read : read + len(features)])
        read += len(features)

    logits = prefill(
        *(target.model, given.ids, given.positions, pooled.cache),
        after=LayerFeatures(draft.layers, take),
        # The last layer is whole only where the draft wants its outputs.
        rows=len(given.ids) if target.model.config.layers - 1 in draft.layers else 1,
        gaps=options.state_gaps,
        progress=progress,
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
