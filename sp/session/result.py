"""Results of runs and turns: answers, selections, costs, and their rows for records."""

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
"""Called with each token of the answer as it is decoded; the answer ends where it returns True."""

SHOWN = 60  # characters of an answer in a repr


@dataclass(frozen=True)
class Answer:
    """One pass of the target over a prompt; `densities` and `passes` as in `PrefilledAnswer`.

    `reasoning` is the thinking before the answer, by the marks of the chat template, and `calls` are calls of the tools
    given; neither is a part of `text`. `ttft_s`: time to first token, in seconds.
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
        """Return the answer with calls of tools parsed out of its text; unchanged without `calling`."""
        if calling is None:
            return self
        text, calls = read_calls(self.text, calling)
        return replace(self, text=text, calls=calls)

    @property
    def acceptance_length(self) -> float | None:
        """Mean number of tokens per pass of the target; None without speculative decoding."""
        return sum(self.passes) / len(self.passes) if self.passes else None


@dataclass(frozen=True)
class Scored:
    """The scores of a prompt.

    `drafted`: the prompt in the vocabulary of the scoring model; `importance`: its scores; `trace`: the stages this
    took; `transfer`: the map to the target's tokens, if it was computed already.
    """

    drafted: TokenisedPrompt
    importance: Importance
    trace: Trace
    transfer: Transfer | None = None

    def __repr__(self) -> str:
        return f"Scored({len(self.drafted):,} tokens of the drafter in {self.trace.seconds:.3g} s)"


@dataclass(frozen=True)
class RunResult:
    """The result of a run; `full` is None when a full prefill was not requested, or not possible.

    `drafted` (the prompt as the drafter read it), `selection`, `scores` and `importance` are None when compression
    was not active, and `drafted` also where the scorer runs no model. `options` are those of the run as adapted to this
    prompt. `peak_bytes` is host memory; device memory is in the trace of the answer.
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
        share = f"{self.kept_tokens:,} of {len(self.prompt):,} tokens kept"
        text = plain(self.answer.text, SHOWN)
        return f"RunResult({text!r}, {share}, first token after {self.answer.ttft_s:.3g} s{full})"

    def _repr_html_(self) -> str:
        """Return the heat map of the prompt's tokens for notebooks; see `as_heat`."""
        selected = None if self.selection is None else self.selection.selected
        return as_heat(self.prompt, selected, self.scores, (repr(self), self.decision.reason))

    @property
    def kept_tokens(self) -> int:
        """Number of the prompt's tokens that the target read."""
        return len(self.prompt) if self.selection is None else int(self.selection.selected.sum())

    @property
    def needle_recall(self) -> float | None:
        """Share of the needle's tokens that were selected; None without a known needle."""
        needle = self.prompt.mask("needle")
        if not needle.any():
            return None
        # Without a selection all was read.
        return 1.0 if self.selection is None else float(self.selection.selected[needle].mean())


RecallMethod = Literal["append", "rewind"]
ConversationMatch = Literal["hit", "fork", "miss"]
"""Conversation of a prompt: one that it continues, a fork of one at an earlier point, or a new one."""


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens of a turn, in the target's vocabulary.

    Attributes
    ----------
    prompt : int
        Tokens of the whole transcript.
    cached : int
        Tokens of the transcript about which an earlier turn decided.
    new : int
        The other tokens.
    kept : int
        New tokens that the target reads.
    recalled : int
        Cached tokens that were left out before and are brought back now.
    read : int
        Tokens that the target read in this turn before it answered: kept, recalled, and those it had to read again.
    held : int
        Tokens in the target's cache when it answered.
    drafted : int
        Tokens that the drafter read, in its own vocabulary.
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
        """Return the counts by name, for reports."""
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
        The highest score of its tokens, for the present question.
    threshold : float
        The score it had to reach: the quantile 1 - `keep_ratio` of the scores of the transcript.
    way : {"append", "rewind"}
        As an excerpt before the first new message, or at its original place.
    """

    text: str
    start: int
    end: int
    score: float
    threshold: float
    way: RecallMethod


@dataclass(frozen=True)
class TurnResult:
    """The result of a turn.

    Attributes
    ----------
    answer : Answer
    usage : Usage
    trace : Trace
        The trace of all stages.
    recalled : tuple of Recalled
    prompt : TokenisedPrompt
        The transcript with the question, in the target's vocabulary.
    present : boolean array (n,)
        Tokens of it that the target's cache held when it answered, excerpts included.
    scores : float32 (n,) or None
        Importance for this question; None where nothing was scored.
    decision : Decision
        Whether new text was compressed, and the reason.
    drafted : tuple of float
        Shares of the blocks that each layer of the drafter read for new tokens; empty where it read all.
    match : {"hit", "fork", "miss"} or None
        Match of the prompt among `Conversations`, if it was answered by these.
    restored : bool
        True if the matching conversation was read from a file.
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
    match: ConversationMatch | None = None
    restored: bool = False

    def __repr__(self) -> str:
        used = self.usage
        counts = f"{used.kept:,} of {used.new:,} new tokens kept, {used.recalled:,} recalled"
        text = plain(self.answer.text, SHOWN)
        return f"TurnResult({text!r}, {counts}, first token after {self.answer.ttft_s:.3g} s)"

    def _repr_html_(self) -> str:
        """Return the heat map of the transcript's tokens for notebooks; see `as_heat`."""
        return as_heat(self.prompt, self.present, self.scores, (repr(self), self.reason))

    @property
    def reason(self) -> str:
        """Reason why new text was compressed, or was not."""
        return self.decision.reason


def turn_row(result: TurnResult, number: int, marked: Sequence[str] = ()) -> dict[str, Any]:
    """Return a turn's result in a form small enough for records: runs of tokens instead of scores and text.

    Parameters
    ----------
    result : TurnResult
    number : int
        Number of the turn, from 1.
    marked : sequence of str
        Pieces of the text to locate, such as the evidence of a question.

    Returns
    -------
    dict
        ``turn``, ``answer``, ``reasoning``, ``reason``, the counts of `Usage`, ``ttft_s``, and ``seconds`` of all
        stages. ``spans`` has tokens ``[start, end)`` of the transcript: ``cached`` were in the target's cache from
        earlier turns, ``kept`` are new, ``needle`` are those of `marked`; all other tokens that were not recalled were
        left out. ``recall`` are the fields of `Recalled`, span by span.
    """
    prompt, usage, present = result.prompt, result.usage, result.present
    new = np.arange(len(prompt)) >= usage.cached  # (n,)
    back = np.zeros(len(prompt), bool)  # tokens recalled by this turn
    for span in result.recalled:
        back[span.start : span.end] = True
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
        "spans": {**spans, "needle": _locate(prompt, marked)},
        "recall": [asdict(span) for span in result.recalled],
    }


def runs_of(mask: Bools) -> list[list[int]]:
    """Return the runs ``[start, end)`` of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    runs: list[list[int]] = edges.reshape(-1, 2).tolist()
    return runs


def _locate(prompt: TokenisedPrompt, pieces: Sequence[str]) -> list[list[int]]:
    """Return the tokens of every occurrence of the pieces, ascending."""
    text, ranges = prompt.prompt.text.encode(), list[list[int]]()
    for piece in {piece.encode() for piece in pieces if piece}:
        offset = text.find(piece)
        while offset >= 0:
            # The first token that ends after the piece begins.
            first = int(np.searchsorted(prompt.bytes[:, 1], offset, side="right"))
            # The first that begins after its end.
            stop = int(np.searchsorted(prompt.bytes[:, 0], offset + len(piece), side="left"))
            ranges.append([first, stop])
            offset = text.find(piece, offset + len(piece))
    return sorted(ranges)  # pieces come in the order of a set
