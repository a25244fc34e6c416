"""The tokens of a prompt as a picture in HTML, and the whole characters and pieces that are shown."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.prompt.prompt import TokenisedPrompt
from sp.prompt.spans import character_starts


def whole_characters(prompt: TokenisedPrompt) -> Ints:
    """The token each is shown with, (n,): itself, but the one before where it begins inside a character of UTF-8.

    >>> from sp.prompt import Prompt
    >>> spans = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    >>> whole_characters(TokenisedPrompt(Prompt("a\u20ac"), np.arange(4), spans)).tolist()
    [0, 1, 1, 1]
    """
    found = character_starts(prompt.prompt.text.encode(), prompt.bytes)
    return np.arange(len(prompt)) if found is None else found


KINDS = ("dropped", "kept", "question", "needle", "lost needle")
"""Of the question and of the needle only what was kept, but of a lost needle."""


def kinds(prompt: TokenisedPrompt, kept: Bools | None) -> Ints:
    """Number in `KINDS` of each token, (n,); `kept` (n,) is None where all were."""
    needle, question = prompt.mask("needle"), prompt.mask("question")
    kept = np.ones(len(prompt), bool) if kept is None else kept
    found: Ints = np.where(kept, np.where(needle, 3, np.where(question, 2, 1)), np.where(needle, 4, 0))
    return found


def edges(values: Ints) -> Iterator[tuple[int, int]]:
    """Ranges [start, end) of equal neighbours, in order."""
    inner = (np.flatnonzero(np.diff(values)) + 1).tolist()
    if len(values):
        yield from zip([0, *inner], [*inner, len(values)], strict=True)


def text_of(raw: bytes, spans: Ints, start: int, end: int) -> str:
    """Text of tokens [start, end), whose bytes in `raw` are `spans`; those cut off from a character become U+FFFD."""
    return raw[spans[start, 0] : spans[end - 1, 1]].decode(errors="replace")


LEVELS = (0.5, 0.8, 0.95, 0.99)
"""Shares of the tokens that each level of heat lies above: only their order has a meaning."""
ROOM = 32_768  # bytes of text, and `MARKUP` for each token, that are shown of a prompt
MARKUP = 6
BESIDE = 12  # tokens left out that are shown first: those so near to what was kept

STYLE = """<style>
.sp-heat { font: 13px/1.6 ui-monospace, monospace; max-width: 60rem; }
.sp-heat pre { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 30rem; overflow: auto; font: inherit;
  color: #111; background: #fff; padding: .5rem; margin: .3rem 0; }
.sp-heat .dropped { color: #525252; } .sp-heat .gap { color: #525252; font-style: italic; }
.sp-heat .question { border-bottom: 2px solid #1098ad; }
.sp-heat .needle { border-bottom: 2px solid #2f9e44; font-weight: bold; }
.sp-heat .lost { border-bottom: 2px solid #c92a2a; font-weight: bold; }
.sp-heat .h1 { background: #fff9db; } .sp-heat .h2 { background: #fff3bf; }
.sp-heat .h3 { background: #ffe066; } .sp-heat .h4 { background: #ffc078; }
</style>"""


def heat_levels(scores: Floats | None, tokens: int) -> Ints:
    """Level of each token's importance, (n,): how many of `LEVELS` of the tokens lie below it; 0 without scores."""
    if scores is None:
        return np.zeros(tokens, np.int64)
    known = np.where(np.isnan(scores), -np.inf, scores)  # equal ones are equally hot, however many
    below = np.searchsorted(np.sort(known), known) / max(1, tokens)
    return np.searchsorted(np.array(LEVELS), below, side="right")


def as_heat(prompt: TokenisedPrompt, kept: Bools | None, scores: Floats | None, lines: tuple[str, ...]) -> str:
    """A fragment of HTML, at most some 300 KB whatever the prompt holds. `kept` boolean array (n,) or None: None where
    all of it was; `scores` float32 (n,) or None: importance, if it was scored; Returns str: needle, question, what was
    kept and what is near to that come first where there is no room for all.
    """
    kind, level = kinds(prompt, kept), heat_levels(scores, len(prompt))
    shown, body, raw = fitting(prompt, kind), list[str](), prompt.prompt.text.encode()
    for start, end in edges(np.where(shown, kind * (len(LEVELS) + 1) + level, -1)):
        if shown[start]:
            name = KINDS[kind[start]].split()[0]
            body.append(f'<span class="{name} h{level[start]}">{escape(text_of(raw, prompt.bytes, start, end))}</span>')
        else:
            body.append(f'<span class="gap"> [{end - start:,} tokens not shown] </span>')
    above = "".join(f"<div>{escape(line)}</div>" for line in lines)
    return f'{STYLE}<div class="sp-heat">{above}<pre>{"".join(body)}</pre></div>'


def fitting(prompt: TokenisedPrompt, kind: Ints) -> Bools:
    """Which tokens are shown, (n,): as many as there is room for, those of the kinds that matter most first."""
    names = {name: number for number, name in enumerate(KINDS)}
    near = np.convolve(kind != names["dropped"], np.ones(2 * BESIDE + 1), "same")[: len(kind)] > 0
    order = np.select(
        [kind == names["needle"], kind == names["lost needle"], kind == names["question"], kind == names["kept"], near],
        [0, 0, 1, 2, 3],
        4,
    )
    turn = np.argsort(order, kind="stable")
    cost = np.cumsum((prompt.bytes[:, 1] - prompt.bytes[:, 0] + MARKUP)[turn])
    shown = np.zeros(len(kind), bool)
    shown[turn[cost <= ROOM]] = True
    return shown
