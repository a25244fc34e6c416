"""Turns as rows of JSON: what stood where in the transcript, for files, programs and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sp.arrays import Bools
from sp.conversation.turn import TurnResult
from sp.prompt import TokenisedPrompt


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
    """Runs ``[start, end)`` of what is true.

    Examples
    --------
    >>> runs_of(np.array([True, True, False, True]))
    [[0, 2], [3, 4]]
    """
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
