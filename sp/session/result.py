"""What a run and a turn found, what it cost, and how they tell of their progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from sp.arrays import Bools, Floats
from sp.chat import Call
from sp.chat.answer import read_calls
from sp.chat.call_splitter import Calling
from sp.errors import plain
from sp.prompt import TokenisedPrompt, Transfer
from sp.prompt.heat import as_heat
from sp.scoring import Importance
from sp.selection import Selection
from sp.session.decision import Decision
from sp.session.options import RunOptions
from sp.trace import Trace

OnToken = Callable[[int], bool | None]
"""Takes a token of the answer as it is decoded; the answer ends where it returns True."""

SHOWN = 60  # characters of an answer that a short form shows


@dataclass(frozen=True)
class Answer:
    """One pass of the target over a prompt; `densities` and `passes` as in `Begun`.

    `reasoning` is what the model thought before, by the marks of its chat template, and `calls` what it called of the
    tools that it was given; neither is a part of the `text`.
    """

    text: str
    tokens: tuple[int, ...]
    ttft_s: float
    trace: Trace
    densities: tuple[float, ...] = ()
    passes: tuple[int, ...] = ()
    reasoning: str = ""
    calls: tuple[Call, ...] = ()

    def __repr__(self) -> str:
        return f"Answer({plain(self.text, SHOWN)!r}, {len(self.tokens):,} tokens, the first after {self.ttft_s:.3g} s)"

    def with_calls(self, calling: Calling | None) -> Answer:
        """The same with calls of tools read from the text; as it is where none can be there."""
        if calling is None:
            return self
        text, calls = read_calls(self.text, calling)
        return replace(self, text=text, calls=calls)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that a pass of the target gave, on average; None where no draft guessed."""
        return sum(self.passes) / len(self.passes) if self.passes else None


@dataclass(frozen=True)
class Scored:
    """What the drafter found in a prompt, in its own vocabulary, the stages that took, and the way to the target's."""

    drafted: TokenisedPrompt
    importance: Importance
    trace: Trace
    transfer: Transfer | None = None

    def __repr__(self) -> str:
        return f"Scored({len(self.drafted):,} tokens of the drafter in {self.trace.seconds:.3g} s)"


@dataclass(frozen=True)
class RunResult:
    """Everything one run found; `full` is None when the full prefill was not asked for, or not possible.

    `drafted` (the prompt as the drafter read it), `selection`, `scores` and `importance` are None when compression
    was not active, and `drafted` also where the scorer runs no model. `options` are those of the run as this prompt
    settled them. `peak_bytes` is memory of the host; what the device held is in the trace of the answer.
    """

    prompt: TokenisedPrompt
    decision: Decision
    answer: Answer
    full: Answer | None
    importance: Importance | None
    scores: Floats | None
    selection: Selection | None
    peak_bytes: int
    drafted: TokenisedPrompt | None = None
    options: RunOptions | None = None

    def __repr__(self) -> str:
        full = "" if self.full is None or self.full is self.answer else f" against {self.full.ttft_s:.3g} s in full"
        kept = f"{self.kept_tokens:,} of {len(self.prompt):,} tokens kept"
        said = plain(self.answer.text, SHOWN)
        return f"RunResult({said!r}, {kept}, first token after {self.answer.ttft_s:.3g} s{full})"

    def _repr_html_(self) -> str:
        """What a notebook shows: this in words, and the heat of the prompt's tokens; see `as_heat`."""
        kept = None if self.selection is None else self.selection.selected
        return as_heat(self.prompt, kept, self.scores, (repr(self), self.decision.reason))

    @property
    def kept_tokens(self) -> int:
        """Tokens of the prompt the target read."""
        return len(self.prompt) if self.selection is None else int(self.selection.selected.sum())

    @property
    def needle_recall(self) -> float | None:
        """Share of the needle's tokens that were kept; None without a known needle."""
        needle = self.prompt.mask("needle")
        if not needle.any():
            return None
        return 1.0 if self.selection is None else float(self.selection.selected[needle].mean())


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
    restored : bool
        Whether that was read from a file, of a process before this one or of one that had no room for it.
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
    restored: bool = False

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


def turn_row(result: TurnResult, number: int, marked: Sequence[str] = ()) -> dict[str, Any]:
    """What a turn found and what it cost, small enough to keep: runs of tokens in place of scores and text.

    Parameters
    ----------
    result : TurnResult
    number : int
        Of the turn, from 1.
    marked : sequence of str
        Pieces of the text to find again, such as the evidence of a question.

    Returns
    -------
    dict
        ``turn``, ``answer``, ``reasoning``, ``reason``, the counts of `Usage`, ``ttft_s``, and ``seconds`` of all
        stages. ``spans`` has tokens ``[start, end)`` of the transcript: ``cached`` were before the target from earlier
        turns, ``kept`` are new, ``needle`` are those of `marked`; all that is neither of these nor recalled was left
        out. ``recall`` are the fields of `Recalled`, span by span.
    """
    prompt, usage, present = result.prompt, result.usage, result.present
    new = np.arange(len(prompt)) >= usage.cached
    back = np.zeros(len(prompt), bool)
    for each in result.recalled:
        back[each.start : each.end] = True
    masks = {"cached": present & ~new & ~back, "kept": present & new & ~back}
    spans = {name: runs_of(mask) for name, mask in masks.items()}
    return {
        "turn": number,
        "answer": result.answer.text,
        "reasoning": result.answer.reasoning,
        "reason": result.reason,
        **usage.as_dict(),
        "ttft_s": result.answer.ttft_s,
        "seconds": result.trace.seconds,
        "spans": {**spans, "needle": _found(prompt, marked)},
        "recall": [asdict(each) for each in result.recalled],
    }


def runs_of(mask: Bools) -> list[list[int]]:
    """Runs ``[start, end)`` of what is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    found: list[list[int]] = edges.reshape(-1, 2).tolist()
    return found


def _found(prompt: TokenisedPrompt, pieces: Sequence[str]) -> list[list[int]]:
    """Tokens of every place where a piece stands, ascending."""
    text, found = prompt.prompt.text.encode(), list[list[int]]()
    for piece in {each.encode() for each in pieces if each}:
        at = text.find(piece)
        while at >= 0:
            first = int(np.searchsorted(prompt.bytes[:, 1], at, side="right"))
            stop = int(np.searchsorted(prompt.bytes[:, 0], at + len(piece), side="left"))
            found.append([first, stop])
            at = text.find(piece, at + len(piece))
    return sorted(found)
