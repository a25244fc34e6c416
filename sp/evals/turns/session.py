"""What goes through the turns of a transcript, and what such a way through them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sp.chat import Thinking
from sp.evals.base import WITHOUT, Example
from sp.evals.run import Row
from sp.session import Pipeline, RunOptions

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Session:
    """A transcript that is gone through.

    Parameters
    ----------
    pipeline : Pipeline
    examples : tuple of Example
        One a turn, in order.
    thinking : Thinking
    progress : callable
        Called with 1 after every row.
    """

    pipeline: Pipeline
    examples: tuple[Example, ...]
    thinking: Thinking = WITHOUT
    progress: Progress = lambda done: None


@dataclass(frozen=True)
class Way:
    """One way.

    Parameters
    ----------
    run : callable
        Yields a row for every turn and each of some options, as `evaluate` has them; ``cell`` is the place of the
        options, or -1 where they only say how the target's cache is stored. It may add `TOKENS`.
    compresses : bool
        Whether it is run once for every scorer, selector and keep ratio; else once.
    controls : bool
        Whether it is also run with scorers that read no model, or know the evidence.
    check : callable
        Raises ConfigError for options that it cannot have, before anything runs.
    """

    run: Callable[[Session, Sequence[RunOptions]], Iterator[Row]]
    compresses: bool = True
    controls: bool = False
    check: Callable[[Pipeline, RunOptions], object] = lambda pipeline, options: None


TOKENS = ("cached_tokens", "new_tokens", "read_tokens", "recalled_tokens")
"""Tokens of a turn: that were known from turns before, the others, all that the target read, and what came back."""
