"""What all pictures of results share: colours and markers of strategies, axes, the field's colour map of needles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sp.studies.figures import INK
from sp.studies.sweep.cells import FULL, is_control, is_oracle

COLOURS = (
    "#1c7ed6", "#f08c00", "#2f9e44", "#ae3ec9", "#e03131", "#0c8599", "#846358", "#e64980", "#5c940d", "#4263eb",
    "#a61e4d", "#087f5b",
)  # fmt: skip
GREYS = ("#495057", "#868e96", "#adb5bd")
MARKERS = "osD^vPX*"
NEEDLE_COLOURS = LinearSegmentedColormap.from_list("needle", ["#F0496E", "#EBB839", "#0CD79F"])
"""Red, yellow and green of Kamradt's pictures (LLMTest_NeedleInAHaystack)."""


@dataclass(frozen=True)
class Look:
    """How a strategy is drawn."""

    colour: str
    marker: str
    line: str


def looks(strategies: Sequence[str]) -> dict[str, Look]:
    """Colours for strategies, greys and dashes for controls and oracles, ink for the full prefill; always the same."""
    found, colours, greys = {}, 0, 0
    for name in strategies:
        if name.startswith(FULL):
            found[name] = Look(INK, "*", "-")
        elif is_control(name) or is_oracle(name):
            found[name] = Look(GREYS[greys % len(GREYS)], MARKERS[greys % len(MARKERS)], "--")
            greys += 1
        else:
            turn = colours // len(COLOURS)
            found[name] = Look(
                COLOURS[colours % len(COLOURS)], MARKERS[colours % len(MARKERS)], ("-", ":", "-.")[turn % 3]
            )
            colours += 1
    return found


def apart(place: int, count: int, step: float = 0.025) -> float:
    """What a value on a logarithmic axis is drawn times, so that series at one value are all seen.

    Examples
    --------
    >>> apart(0, 1), apart(0, 3) < apart(1, 3) == 1.0 < apart(2, 3)
    (1.0, True)
    """
    return float((1 + step) ** (place - (count - 1) / 2))


def tokens_label(tokens: float) -> str:
    """A number of tokens as it stands on an axis.

    Examples
    --------
    >>> tokens_label(512), tokens_label(4096), tokens_label(131072), tokens_label(1500)
    ('512', '4K', '128K', '1.5K')
    """
    if tokens < 1000:
        return f"{tokens:g}"
    return f"{tokens / 1024:g}K" if tokens % 1024 == 0 else f"{tokens / 1000:.3g}K"


def plain_log(axes: Axes, ticks: Sequence[float], *, tokens: bool = False) -> None:
    """A logarithmic x axis with these ticks, written out."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tokens_label(x) if tokens else f"{x:g}"))


def tidy(axes: Axes) -> None:
    """Thin grid, no box."""
    axes.grid(True, which="major", color="#e9ecef", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
