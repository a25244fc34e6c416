"""The whole of a prompt as one strip: heat above, the share that was kept in the middle, needles and question below."""

from __future__ import annotations

import numpy as np

from sp.page.heat import Heated
from sp.page.markup import Html, tag
from sp.prompt.heat import KINDS, edges

BINS = 500
"""Of as many tokens each; fewer where the prompt has fewer."""
WIDTH, HOT, KEPT, MARKS = 1000, (0, 24), (28, 18), (50, 10)
"""Of the strip, and top and height of its rows."""
NARROWEST = 5
"""Width of a mark at least, so that a needle in 128K tokens is seen."""


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
