"""The tokens of a prompt as text: what was kept, what was left out, how hot; in blocks drawn when seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.page.markup import Html, html, join, tag
from sp.prompt import TokenisedPrompt
from sp.prompt.heat import KINDS, LEVELS, edges, heat_levels, kinds, text_of, whole_characters

BLOCK = 400  # tokens, from which on a block ends with the next line
LONGEST = 2 * BLOCK
LOOKS = len(LEVELS) + 1
MOST_RUNS = 30_000  # runs of one heat in a page: a browser holds ten times as many, but slowly
WIDTHS = (1, 2, 4, 8, 16, 32)
"""Neighbours that share the heat of the hottest of them, where there are more runs than that."""


@dataclass(frozen=True)
class Place:
    """A needle or a question in a prompt: tokens [start, end), and the share of them that was kept."""

    kind: str
    name: str
    start: int
    end: int
    kept: float


@dataclass(frozen=True)
class Heated:
    """What is shown of a prompt's tokens. `kinds`, int array (n,): numbers of `KINDS`; `levels`, int array (n,): 0 to
    4, see `heat_levels`; `merged`: Tokens that share one level; see `WIDTHS`."""

    prompt: TokenisedPrompt
    kinds: Ints
    levels: Ints
    merged: int = 1

    @classmethod
    def of(cls, prompt: TokenisedPrompt, kept: Bools | None, scores: Floats | None) -> Heated:
        """Of a run: what it kept, and how important each token was, if it was scored."""
        inside, levels = whole_characters(prompt), heat_levels(scores, len(prompt))
        kind = kinds(prompt, kept)[inside]
        for width in WIDTHS:
            starts = np.arange(0, len(levels), width)
            shown = np.repeat(np.maximum.reduceat(levels, starts), width)[: len(levels)][inside]
            if np.count_nonzero(np.diff(shown) | np.diff(kind)) <= MOST_RUNS:
                break
        else:  # what was kept makes so many by itself
            shown = np.zeros_like(shown)
        return cls(prompt, kind, shown, width)

    def places(self) -> list[Place]:
        """Needles and question, in order."""
        found, numbers = [], {"needle": 0, "question": 0}
        for span in sorted(self.prompt.prompt.spans, key=lambda span: span.start):
            if span.kind in numbers:
                there = np.flatnonzero((self.prompt.bytes[:, 1] > span.start) & (self.prompt.bytes[:, 0] < span.end))
                if len(there):
                    numbers[span.kind] += 1
                    start, end = int(there[0]), int(there[-1]) + 1
                    kept = np.isin(self.kinds[start:end], [KINDS.index("dropped"), KINDS.index("lost needle")])
                    name = f"{span.kind}-{numbers[span.kind]}"
                    found.append(Place(span.kind, name, start, end, 1 - float(kept.mean())))
        return found

    def text(self, start: int, end: int) -> str:
        """Of tokens [start, end)."""
        return text_of(self.prompt.prompt.text.encode(), self.prompt.bytes, start, end)

    def markup(self) -> Html:
        """All text in blocks, each with the number of its first token; places have their names."""
        raw = self.prompt.prompt.text.encode()
        named = {place.start: place.name for place in self.places()}
        turn = np.cumsum(np.isin(np.arange(len(self.kinds)), list(named)))  # a named place begins a piece of its own
        look = (turn * len(KINDS) + self.kinds) * LOOKS + self.levels
        blocks = []
        for first, end in _blocks(self.prompt, raw):
            begins, body, parts = first, list[str](), list[str]()
            bytes_of, looks = self.prompt.bytes[first:end].tolist(), look[first:end]
            for start, stop in edges(looks):
                piece, level = divmod(int(looks[start]), LOOKS)
                said = html(raw[bytes_of[start][0] : bytes_of[stop - 1][1]].decode(errors="replace"))
                parts.append(f'<i class="h{level}">{said}</i>' if level else said)
                if stop == len(looks) or looks[stop] // LOOKS != piece:
                    kind = KINDS[piece % len(KINDS)].split()[0]
                    name = f' id="{named[begins]}"' if begins in named else ""
                    left = f' data-left="{first + stop - begins:,}"' if kind == "dropped" else ""
                    body.append(f'<span class="{kind}"{name}{left}>{"".join(parts)}</span>')
                    begins, parts = first + stop, []
            blocks.append(tag("div", Html("".join(body)), class_="block", data_at=first))
        return tag("div", join(blocks), class_="tokens", id="tokens", role="region", tabindex="0",
                   aria_label="Text of the prompt")  # fmt: skip


def _blocks(prompt: TokenisedPrompt, raw: bytes) -> Iterator[tuple[int, int]]:
    """Ranges of tokens that end with a line if one ends in time, else where a character does."""
    last = np.frombuffer(b"\n" + raw, np.uint8)[prompt.bytes[:, 1]]
    ends = np.flatnonzero(last == ord("\n")) + 1
    whole = np.append(np.flatnonzero(whole_characters(prompt) == np.arange(len(prompt))), len(prompt))
    start = 0
    while start < len(prompt):
        at = int(np.searchsorted(ends, start + BLOCK))
        end = int(ends[at]) if at < len(ends) and ends[at] <= start + LONGEST else start + LONGEST
        end = int(whole[min(int(np.searchsorted(whole, end)), len(whole) - 1)])
        yield start, end
        start = end


BINS = 500  # of as many tokens each; fewer where the prompt has fewer
WIDTH, HOT, KEPT, MARKS = 1000, (0, 24), (28, 18), (50, 10)  # of the strip, and top and height of its rows
NARROWEST = 5  # width of a mark at least, so that a needle in 128K tokens is seen


def strip(heated: Heated) -> Html:
    """A picture that is as wide as there is room; `heat.js` jumps to where it is clicked."""
    tokens = len(heated.kinds)
    starts = np.unique(np.linspace(0, tokens, BINS, endpoint=False).astype(np.int64))
    ends = np.append(starts[1:], tokens)
    left_out = np.isin(heated.kinds, [KINDS.index("dropped"), KINDS.index("lost needle")])
    hottest = np.maximum.reduceat(heated.levels, starts)
    share = 1 - np.add.reduceat(left_out.astype(np.float64), starts) / (ends - starts)
    scale = WIDTH / tokens
    parts = []
    for a, b in edges(hottest):
        if hottest[a]:
            parts.append(_box(scale * starts[a], scale * (ends[b - 1] - starts[a]), *HOT, f"h{hottest[a]}"))
    for a, b in edges(np.round(12 * share).astype(np.int64)):
        if share[a] > 0:
            height = max(1.0, KEPT[1] * float(share[a]))
            at = scale * starts[a], scale * (ends[b - 1] - starts[a])
            parts.append(_box(*at, KEPT[0] + KEPT[1] - height, height, "share"))
    for place in heated.places():
        wide = max(scale * (place.end - place.start), NARROWEST)
        name = place.kind if place.kind != "needle" or place.kept == 1 else "lost"
        parts.append(_box(min(scale * place.start, WIDTH - wide), wide, *MARKS, name))
    return tag(
        "svg", *parts, class_="strip", id="strip", role="img", viewBox=f"0 0 {WIDTH} 62", preserveAspectRatio="none",
        data_tokens=tokens, aria_label="Along the prompt: importance, share kept, needles and question",
    )  # fmt: skip


def _box(x: float, width: float, y: float, height: float, name: str) -> Html:
    return tag("rect", x=f"{x:.2f}", y=f"{y:.2f}", width=f"{width:.2f}", height=f"{height:.2f}", class_=name)
