"""WAYS: how a pair goes through the turns of a transcript, one function a way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sp.chat import Thinking
from sp.evals.base import WITHOUT, Example
from sp.evals.run import Row, evaluate
from sp.evals.turns.prefix import with_prefix_cache
from sp.pipeline import Pipeline, RunOptions

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Session:
    """A transcript that is gone through.

    Parameters
    ----------
    pipeline : Pipeline
    examples : tuple of Example
        One a turn, in order.
    messages : tuple of list of dict
        What is said up to each question, as messages of role and content.
    thinking : Thinking
    progress : callable
        Called with 1 after every row.
    """

    pipeline: Pipeline
    examples: tuple[Example, ...]
    messages: tuple[list[dict[str, str]], ...]
    thinking: Thinking = WITHOUT
    progress: Progress = lambda done: None


@dataclass(frozen=True)
class Way:
    """One way.

    Parameters
    ----------
    run : callable
        Yields a row for every turn and each of some options, as `evaluate` has them; ``cell`` is the place of the
        options, or -1 where they only say how the target's cache is stored. It may add ``cached_tokens``,
        ``new_tokens`` and ``recalled_tokens``.
    compresses : bool
        Whether it is run once for every scorer, selector and keep ratio; else once.
    controls : bool
        Whether scorers that are controls are run as well.
    """

    run: Callable[[Session, Sequence[RunOptions]], Iterator[Row]]
    compresses: bool = True
    controls: bool = False


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
    return with_prefix_cache(session.pipeline, session.examples, cells[0], session.thinking, session.progress)


WAYS = {
    "full": Way(full, compresses=False),
    "prefix": Way(prefix, compresses=False),
    "cold": Way(cold, controls=True),
}
"""Ways by name, in the order in which tables have them."""
