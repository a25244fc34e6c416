"""Where in the tokens of a prompt messages begin and end."""

from __future__ import annotations

import numpy as np

from sp.arrays import Ints
from sp.prompt import TokenisedPrompt


def message_ends(prompt: TokenisedPrompt) -> Ints:
    """Tokens at which messages end, ascending: all before the k-th belong to the messages up to it, or to markup.

    A token that reaches over an end stands behind it.
    """
    said = prompt.prompt.segments or [span for span in prompt.prompt.spans if span.kind == "plain"]
    return _edges(prompt, [each.end for each in said])


def message_starts(prompt: TokenisedPrompt) -> Ints:
    """Tokens with which messages begin, ascending; the question of a document counts as one."""
    segments = prompt.prompt.segments
    kinds = ("question",) if segments else ("plain", "question")
    spans = [span for span in prompt.prompt.spans if span.kind in kinds]
    return _edges(prompt, [each.start for each in segments] + [each.start for each in spans])


def _edges(prompt: TokenisedPrompt, at: list[int]) -> Ints:
    return np.unique(np.searchsorted(np.ascontiguousarray(prompt.bytes[:, 1]), at, side="right")).astype(np.int64)
