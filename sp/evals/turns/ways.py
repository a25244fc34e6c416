"""WAYS: how a pair goes through the turns of a transcript, one function a way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from sp.errors import ConfigError
from sp.evals.run import Row, evaluate
from sp.evals.turns.asking import asking
from sp.evals.turns.prefix import with_prefix_cache
from sp.evals.turns.session import Session, Way
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions
from sp.session.options import check_run


def full(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
    """The whole transcript is read anew at every turn."""
    how = {"thinking": session.thinking, "progress": session.progress}
    return evaluate(session.pipeline, session.examples, [], full=cells[0], **how)  # type: ignore[arg-type]


def cold(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
    """The whole transcript is compressed anew at every turn."""
    how = {"thinking": session.thinking, "progress": session.progress}
    return evaluate(session.pipeline, session.examples, cells, full=False, **how)  # type: ignore[arg-type]


def prefix(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
    """Nothing is left out, and what the last turn had read is not read again."""
    return with_prefix_cache(session, cells[0])


def can_talk(pipeline: Pipeline, options: RunOptions) -> None:
    """ConfigError for options that a conversation cannot have."""
    try:
        check_run(options, pipeline.drafter)
    except ConfigError as error:
        others = ",".join(name for name, way in WAYS.items() if way.check is not can_talk)
        raise ConfigError(f"{error}; or leave conversations out with --ways {others}") from None


WAYS = {
    "full": Way(full, compresses=False),
    "prefix": Way(prefix, compresses=False),
    "cold": Way(cold, controls=True),
    "conversation": Way(asking(partial(Conversation, memory=ConversationOptions(recall="off"))), check=can_talk),
    "recall": Way(asking(Conversation), check=can_talk),
}
"""Ways by name, in the order in which tables have them."""
