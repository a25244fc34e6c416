"""Heat map of a prompt's tokens as text: their importance, which are selected and which omitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.page.markup import Html, html, join, tag
from sp.prompt import TokenisedPrompt
from sp.prompt.heat import KINDS, LEVELS, edges, heat_levels, kinds, text_of, whole_characters

BLOCK = 400  # tokens after which a block ends with the next line
LONGEST = 2 * BLOCK
LOOKS = len(LEVELS) + 1
MOST_RUNS = 30_000  # runs of one level in a page: a browser manages ten times as many, but slowly
WIDTHS = (1, 2, 4, 8, 16, 32)
"""Numbers of neighbours that share the level of the hottest of them, tried in turn until `MOST_RUNS` suffices."""


@dataclass(frozen=True)
class Place:
    """A needle or a question in a prompt: tokens [start, end), and the share of them that was selected."""

    kind: str
    name: str
    start: int
    end: int
    kept_share: float


@dataclass(frozen=True)
class HeatMap:
    """Importance and selection of a prompt's tokens.

    Attributes
    ----------
    prompt : TokenisedPrompt
        The prompt, with n tokens.
    kinds : int array (n,)
        Indices into `KINDS`.
    levels : int array (n,)
        Importance from 0 to 4; see `heat_levels`.
    merged : int
        Number of neighbours that share one level; see `WIDTHS`.
    """

    prompt: TokenisedPrompt
    kinds: Ints
    levels: Ints
    merged: int = 1

    @classmethod
    def of(cls, prompt: TokenisedPrompt, selected: Bools | None, scores: Floats | None) -> HeatMap:
        """Build the map of a run. `selected` (n,): None for a full prefill; `scores` (n,): None without a scorer."""
        # A character of several tokens looks like its first token: a page cannot colour parts of one.
        inside, levels = whole_characters(prompt), heat_levels(scores, len(prompt))
        kind = kinds(prompt, selected)[inside]
        for width in WIDTHS:
            starts = np.arange(0, len(levels), width)
            merged = np.repeat(np.maximum.reduceat(levels, starts), width)[: len(levels)][inside]
            if np.count_nonzero(np.diff(merged) | np.diff(kind)) <= MOST_RUNS:
                break
        else:  # the selection alone has too many runs
            merged = np.zeros_like(merged)
        return cls(prompt, kind, merged, width)

    def places(self) -> list[Place]:
        """Return needles and question, in order."""
        places, numbers = [], {"needle": 0, "question": 0}
        for span in sorted(self.prompt.prompt.spans, key=lambda span: span.start):
            if span.kind in numbers:
                there = np.flatnonzero((self.prompt.bytes[:, 1] > span.start) & (self.prompt.bytes[:, 0] < span.end))
                if len(there):
                    numbers[span.kind] += 1
                    start, end = int(there[0]), int(there[-1]) + 1
                    omitted = np.isin(self.kinds[start:end], [KINDS.index("dropped"), KINDS.index("lost needle")])
                    name = f"{span.kind}-{numbers[span.kind]}"
                    places.append(Place(span.kind, name, start, end, 1 - float(omitted.mean())))
        return places

    def text(self, start: int, end: int) -> str:
        """Return the text of tokens [start, end)."""
        return text_of(self.prompt.prompt.text.encode(), self.prompt.bytes, start, end)

    def markup(self) -> Html:
        """Return all text in blocks, each with the index of its first token; places have their names as ids."""
        raw = self.prompt.prompt.text.encode()
        named = {place.start: place.name for place in self.places()}
        turn = np.cumsum(np.isin(np.arange(len(self.kinds)), list(named)))  # a new piece begins at every place
        # one number for piece, kind and level, so that runs of equal ones are elements
        look = (turn * len(KINDS) + self.kinds) * LOOKS + self.levels
        blocks = []
        for first, end in _blocks(self.prompt, raw):
            begins, body, parts = first, list[str](), list[str]()
            bytes_of, looks = self.prompt.bytes[first:end].tolist(), look[first:end]
            for start, stop in edges(looks):
                piece, level = divmod(int(looks[start]), LOOKS)
                text = html(raw[bytes_of[start][0] : bytes_of[stop - 1][1]].decode(errors="replace"))
                parts.append(f'<i class="h{level}">{text}</i>' if level else text)
                if stop == len(looks) or looks[stop] // LOOKS != piece:
                    kind = KINDS[piece % len(KINDS)].split()[0]
                    name = f' id="{named[begins]}"' if begins in named else ""
                    omitted = f' data-left="{first + stop - begins:,}"' if kind == "dropped" else ""
                    body.append(f'<span class="{kind}"{name}{omitted}>{"".join(parts)}</span>')
                    begins, parts = first + stop, []
            blocks.append(tag("div", Html("".join(body)), class_="block", data_at=first))
        return tag("div", join(blocks), class_="tokens", id="tokens", role="region", tabindex="0",
                   aria_label="Text of the prompt")  # fmt: skip


def _blocks(prompt: TokenisedPrompt, raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield ranges of tokens that end with a line if one ends within `LONGEST` tokens, else with a character."""
    last = np.frombuffer(b"\n" + raw, np.uint8)[prompt.bytes[:, 1]]
    ends = np.flatnonzero(last == ord("\n")) + 1
    whole = np.append(np.flatnonzero(whole_characters(prompt) == np.arange(len(prompt))), len(prompt))
    start = 0
    while start < len(prompt):
        line = int(np.searchsorted(ends, start + BLOCK))
        end = int(ends[line]) if line < len(ends) and ends[line] <= start + LONGEST else start + LONGEST
        end = int(whole[min(int(np.searchsorted(whole, end)), len(whole) - 1)])
        yield start, end
        start = end


BINS = 500  # of equal numbers of tokens; fewer if the prompt has fewer tokens
WIDTH, HOT, KEPT, MARKS = 1000, (0, 24), (28, 18), (50, 10)  # width of the overview; top and height of its rows
NARROWEST = 5  # least width of a mark, so that a needle in 128K tokens is visible


def overview(heat: HeatMap) -> Html:
    """Return a picture of the whole prompt, as wide as the page; a click on it jumps to the text (`heat.js`)."""
    tokens = len(heat.kinds)
    starts = np.unique(np.linspace(0, tokens, BINS, endpoint=False).astype(np.int64))
    ends = np.append(starts[1:], tokens)
    omitted = np.isin(heat.kinds, [KINDS.index("dropped"), KINDS.index("lost needle")])
    hottest = np.maximum.reduceat(heat.levels, starts)
    share = 1 - np.add.reduceat(omitted.astype(np.float64), starts) / (ends - starts)
    scale = WIDTH / tokens
    parts = []
    for a, b in edges(hottest):
        if hottest[a]:
            parts.append(_box(scale * starts[a], scale * (ends[b - 1] - starts[a]), *HOT, f"h{hottest[a]}"))
    for a, b in edges(np.round(12 * share).astype(np.int64)):  # in steps of a twelfth, so that bins become few boxes
        if share[a] > 0:
            height = max(1.0, KEPT[1] * float(share[a]))
            x, width = scale * starts[a], scale * (ends[b - 1] - starts[a])
            parts.append(_box(x, width, KEPT[0] + KEPT[1] - height, height, "share"))
    for place in heat.places():
        width = max(scale * (place.end - place.start), NARROWEST)
        name = place.kind if place.kind != "needle" or place.kept_share == 1 else "lost"
        parts.append(_box(min(scale * place.start, WIDTH - width), width, *MARKS, name))
    return tag(
        "svg", *parts, class_="strip", id="strip", role="img", viewBox=f"0 0 {WIDTH} 62", preserveAspectRatio="none",
        data_tokens=tokens, aria_label="Along the prompt: importance, share kept, needles and question",
    )  # fmt: skip


def _box(x: float, width: float, y: float, height: float, name: str) -> Html:
    return tag("rect", x=f"{x:.2f}", y=f"{y:.2f}", width=f"{width:.2f}", height=f"{height:.2f}", class_=name)
