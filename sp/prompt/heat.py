"""A prompt's tokens as a heat map in HTML, and the whole characters and runs of tokens that it shows."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.prompt.prompt import TokenisedPrompt
from sp.prompt.spans import character_starts


def whole_characters(prompt: TokenisedPrompt) -> Ints:
    """Return the token with which each token is shown, (n,): itself, or an earlier one that shares a character.

    >>> from sp.prompt import Prompt
    >>> spans = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    >>> whole_characters(TokenisedPrompt(Prompt("a€"), np.arange(4), spans)).tolist()
    [0, 1, 1, 1]
    """
    starts = character_starts(prompt.prompt.text.encode(), prompt.bytes)
    return np.arange(len(prompt)) if starts is None else starts


KINDS = ("dropped", "kept", "question", "needle", "lost needle")
"""Kinds of tokens; `question` and `needle` were kept, `lost needle` are the needle's tokens that were dropped."""


def kinds(prompt: TokenisedPrompt, selected: Bools | None) -> Ints:
    """Return the index into `KINDS` of each token, (n,); `selected` (n,) is None if all tokens were kept."""
    needle, question = prompt.mask("needle"), prompt.mask("question")
    selected = np.ones(len(prompt), bool) if selected is None else selected
    kind: Ints = np.where(selected, np.where(needle, 3, np.where(question, 2, 1)), np.where(needle, 4, 0))
    return kind


def edges(values: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges [start, end) of equal neighbours, in order."""
    inner = (np.flatnonzero(np.diff(values)) + 1).tolist()  # first places of new values
    if len(values):
        yield from zip([0, *inner], [*inner, len(values)], strict=True)


def text_of(raw: bytes, spans: Ints, start: int, end: int) -> str:
    """Return the text of tokens [start, end), whose bytes in `raw` are `spans`; incomplete characters become U+FFFD."""
    return raw[spans[start, 0] : spans[end - 1, 1]].decode(errors="replace")


LEVELS = (0.5, 0.8, 0.95, 0.99)
"""Quantiles of importance at which the levels of heat begin; scores of different scorers compare by rank only."""
ROOM = 32_768  # bytes of a prompt that are shown, with `MARKUP` bytes added for each token
MARKUP = 6
BESIDE = 12  # dropped tokens at most this far from a kept one are shown before other dropped ones

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
    """Return the level of each token's importance, (n,): how many `LEVELS` its rank reaches; 0 without scores."""
    if scores is None:
        return np.zeros(tokens, np.int64)
    known = np.where(np.isnan(scores), -np.inf, scores)  # tokens of equal score share a level
    below = np.searchsorted(np.sort(known), known) / max(1, tokens)
    return np.searchsorted(np.array(LEVELS), below, side="right")


def as_heat(prompt: TokenisedPrompt, selected: Bools | None, scores: Floats | None, lines: tuple[str, ...]) -> str:
    """Return an HTML fragment of at most some 300 KB, whatever the length of the prompt.

    Needle, question, kept tokens and their surroundings come first where there is no room for all.

    Parameters
    ----------
    prompt : TokenisedPrompt
    selected : boolean array (n,) or None
        Tokens that were kept; None if all were.
    scores : float32 (n,) or None
        Importance, if it was scored.
    lines : tuple of str
        Lines of text above the prompt.
    """
    kind, level = kinds(prompt, selected), heat_levels(scores, len(prompt))
    visible, body, raw = visible_tokens(prompt, kind), list[str](), prompt.prompt.text.encode()
    for start, end in edges(np.where(visible, kind * (len(LEVELS) + 1) + level, -1)):
        if visible[start]:
            name = KINDS[kind[start]].split()[0]
            body.append(f'<span class="{name} h{level[start]}">{escape(text_of(raw, prompt.bytes, start, end))}</span>')
        else:
            body.append(f'<span class="gap"> [{end - start:,} tokens not shown] </span>')
    above = "".join(f"<div>{escape(line)}</div>" for line in lines)
    return f'{STYLE}<div class="sp-heat">{above}<pre>{"".join(body)}</pre></div>'


def visible_tokens(prompt: TokenisedPrompt, kind: Ints) -> Bools:
    """Return the tokens to show, a boolean array (n,): the most important kinds first, as far as there is room."""
    names = {name: number for number, name in enumerate(KINDS)}
    # A token is near a kept one if a window of BESIDE tokens on either side holds one.
    near = np.convolve(kind != names["dropped"], np.ones(2 * BESIDE + 1), "same")[: len(kind)] > 0
    order = np.select(
        [kind == names["needle"], kind == names["lost needle"], kind == names["question"], kind == names["kept"], near],
        [0, 0, 1, 2, 3],
        4,
    )
    turn = np.argsort(order, kind="stable")  # tokens by importance of their kind, then by place
    cost = np.cumsum((prompt.bytes[:, 1] - prompt.bytes[:, 0] + MARKUP)[turn])  # bytes of HTML
    visible = np.zeros(len(kind), bool)
    visible[turn[cost <= ROOM]] = True
    return visible
