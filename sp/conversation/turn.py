"""What one turn of a conversation found, and what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from sp.arrays import Bools, Floats
from sp.errors import plain
from sp.pipeline import Answer
from sp.pipeline.plan import Decision
from sp.pipeline.result import SHOWN
from sp.prompt import TokenisedPrompt
from sp.prompt.heat import as_heat
from sp.trace import Trace

Way = Literal["append", "rewind"]
Found = Literal["hit", "fork", "miss"]
"""How a prompt came by its conversation: it went on where one stood, or another way than one, or began anew."""


@dataclass(frozen=True)
class Usage:
    """Tokens of a turn, in the target's vocabulary.

    Attributes
    ----------
    prompt : int
        Of the whole transcript.
    cached : int
        Of the transcript as far as an earlier turn has decided what of it is kept.
    new : int
        The others.
    kept : int
        Of the new ones, those the target reads.
    recalled : int
        Of the cached ones, those left out before and brought back now.
    read : int
        That the target read in this turn before it answered: kept, recalled, and what it had to read again.
    held : int
        In the target's cache when it answered.
    drafted : int
        That the drafter read, in its own vocabulary.
    """

    prompt: int
    cached: int
    new: int
    kept: int
    recalled: int = 0
    read: int = 0
    held: int = 0
    drafted: int = 0

    def as_dict(self) -> dict[str, int]:
        """For reports."""
        return asdict(self)


@dataclass(frozen=True)
class Recalled:
    """A span that was brought back.

    Attributes
    ----------
    text : str
    start, end : int
        Tokens ``[start, end)`` of the transcript, in the target's vocabulary.
    score : float
        The highest of its tokens, for the present question.
    threshold : float
        What it had to reach: what the best share of `keep_ratio` of the transcript has.
    way : {"append", "rewind"}
        As an excerpt before the first new message, or where it stood.
    """

    text: str
    start: int
    end: int
    score: float
    threshold: float
    way: Way


@dataclass(frozen=True)
class TurnResult:
    """Everything one turn found.

    Attributes
    ----------
    answer : Answer
    usage : Usage
    trace : Trace
        Of all stages.
    recalled : tuple of Recalled
    prompt : TokenisedPrompt
        The transcript with the question, in the target's vocabulary.
    present : boolean array (n,)
        What of it the target had before it when it answered, excerpts included.
    scores : float32 (n,) or None
        Importance for this question; None where nothing was scored.
    decision : Decision
        Whether new text was compressed, and why, or why not.
    drafted : tuple of float
        Shares of the blocks that each layer of the drafter read for new tokens; empty where that was all of them.
    found : {"hit", "fork", "miss"} or None
        Of a conversation that `Conversations` found.
    """

    answer: Answer
    usage: Usage
    trace: Trace
    recalled: tuple[Recalled, ...]
    prompt: TokenisedPrompt
    present: Bools
    scores: Floats | None
    decision: Decision
    drafted: tuple[float, ...] = ()
    found: Found | None = None

    def __repr__(self) -> str:
        used = self.usage
        read = f"{used.kept:,} of {used.new:,} new tokens kept, {used.recalled:,} recalled"
        said = plain(self.answer.text, SHOWN)
        return f"TurnResult({said!r}, {read}, first token after {self.answer.ttft_s:.3g} s)"

    def _repr_html_(self) -> str:
        """What a notebook shows: this in words, and the heat of the transcript's tokens; see `as_heat`."""
        return as_heat(self.prompt, self.present, self.scores, (repr(self), self.reason))

    @property
    def reason(self) -> str:
        """Why new text was compressed, or why not."""
        return self.decision.reason
