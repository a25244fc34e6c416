"""begin_on_cards: the answer of a target that cards share: all of them read and decode as one would."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from sp.kernels import import_cupy
from sp.models import Draft
from sp.models.shards.shard_model import ShardModel
from sp.models.shards.shared_model import SharedModel
from sp.models.shards.stream import stream
from sp.pipeline.answer import Begun, OnCards, Progress, begin, check_draft
from sp.pipeline.cache_pool import CardPools
from sp.pipeline.cards.draft import draft_of
from sp.pipeline.cards.lead import Lead
from sp.pipeline.compress import Compressed
from sp.pipeline.load import Loaded
from sp.pipeline.meter import Meter
from sp.pipeline.options import RunOptions


def begin_on_cards(
    target: Loaded,
    given: Compressed,
    options: RunOptions,
    progress: Progress | None,
    draft: Draft | None,
    pools: CardPools,
) -> Begun:
    """`begin` on every card that shares the target, each with a cache and a draft of its own.

    They choose the same tokens, or take those of the first card where somebody watches these, and the first card's are
    returned. None reads further than these are asked for, so that an answer that is ended early leaves them alike.

    Parameters
    ----------
    target : Loaded
        Its model is a `SharedModel`.
    given, options, progress
        See `begin`; `progress` is called in the thread of the first card.
    draft : Draft or None
        See `draft_on_cards`.
    pools : CardPools

    Raises
    ------
    SpError
        As `begin`, and of a card that failed; what the cards keep is let go of then.
    """
    model = target.model
    assert isinstance(model, SharedModel), "one card answers by itself"
    check_draft(options, draft)
    told, lead = OnCards([0] * model.shards.group.size), Lead(model.shards.group.size)

    def work(part: ShardModel) -> Generator[Any]:
        rank = part.share.rank
        pool, mine = pools.pools[rank], replace(target, model=part)
        own = replace(options, decode=lead.decoder(options.decode, rank)) if options.decode.watched else options
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
    return replace(first, rest=pieces, cards=told)


def target_line(target: Loaded, told: OnCards) -> str:
    """The line of a report: who holds the target, and what is launched kernel by kernel if anything is.

    Examples
    --------
    >>> from sp.parallel.host import HostGroup
    >>> from sp.pipeline.load import embedded, load
    >>> target_line(load(embedded("target"), device="cpu", group=HostGroup(2)), OnCards([0, 0]))
    'target: shared by 2 cards, 86 + 86 MB of weights'
    """
    assert isinstance(target.model, SharedModel), "one card holds all"
    parts = [part.nbytes for part in target.model.shards.models]
    unit, size = ("GB", 1e9) if max(parts) >= 1e9 else ("MB", 1e6)
    held = " + ".join(f"{nbytes / size:.3g}" for nbytes in parts)
    line = f"target: shared by {len(parts)} cards, {held} {unit} of weights"
    return line if told.refused is None else f"{line}; not in CUDA graphs: {told.refused}"


@contextmanager
def _metered(part: ShardModel, peaks: list[int]) -> Iterator[None]:
    """Note the most bytes that are in use on a card inside; what its thread takes alone is seen."""
    if part.device == "cpu":
        yield
        return
    meter = Meter()
    meter.start(import_cupy().get_default_memory_pool().used_bytes())
    with meter.hook:
        yield
    peaks[part.share.rank] = meter.peak
