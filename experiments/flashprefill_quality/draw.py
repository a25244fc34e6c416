"""The table and the picture of quality.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binomtest

from sp.bench.record import newest

Found = dict[int, dict[str, dict[str, Any]]]
"""Metrics by length and by what was compared: "dense", "alpha 0.1", the name of a control."""

PANELS = {
    "density": "share of blocks read",
    "rank_correlation": "rank correlation with dense scores (mean)",
    "overlap": "overlap of kept tokens with dense (mean)",
    "found": "documents whose needle is kept (Wilson 95 %)",
}


def found_in(path: Path, chosen: dict[str, Any], lengths: Sequence[int]) -> Found:
    """The newest metrics of these lengths in a file of records, of configurations that contain `chosen`."""
    found: Found = {tokens: {} for tokens in lengths}
    for record in newest(path):
        config = record["config"]
        if config["prompt_tokens"] in found and all(config.get(name) == value for name, value in chosen.items()):
            found[config["prompt_tokens"]][config["row"]] = record["metrics"]
    return found


def wilson(metrics: dict[str, Any]) -> tuple[float, float]:
    """95 % interval of the share of needles kept."""
    interval = binomtest(metrics["found"], metrics["cases"]).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def table(found: Found) -> str:
    """Markdown."""
    lines = [
        "| tokens | drafter attention | density | rank correlation (lowest) | overlap | needle kept (Wilson 95 %) "
        "| lost | seconds |",
        "|---:|---|---:|---:|---:|---|---:|---:|",
    ]
    for rows in found.values():
        for name, m in rows.items():
            low, high = wilson(m)
            density = "" if m["density"] is None else f"{m['density']:.1%}"
            seconds = "" if m["score_s"] is None else f"{m['score_s']:.3f}"
            ranks = f"{m['rank_correlation']:.4f} ({m['lowest_rank_correlation']:.4f}) | {m['overlap']:.3f}"
            lines.append(
                f"| {m['tokens']:,.0f} | {name} | {density} | {' | ' if name == 'full prefill' else ranks} "
                f"| {m['found']}/{m['cases']} ({low:.0%} to {high:.0%}) | {m['lost']} | {seconds} |"
            )
    return "\n".join(lines)


def picture(found: Found, keep_ratio: float) -> Figure:
    """Density, rank correlation, overlap and recall over alpha, a line a length; light is short, dark is long."""
    figure = Figure(figsize=(9.5, 7), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    tints = [(0.78 - 0.72 * t, 0.86 - 0.66 * t, 0.95 - 0.5 * t) for t in np.linspace(0, 1, len(found))]
    for number, (tokens, rows) in enumerate(found.items()):
        sparse = {float(name.split()[1]): m for name, m in rows.items() if name.startswith("alpha")}
        for panel, name in zip(axes, PANELS, strict=True):
            style: dict[str, Any] = {"marker": "o", "markersize": 4, "color": tints[number], "label": f"{tokens:,}"}
            if name != "found":
                panel.plot(list(sparse), [m[name] for m in sparse.values()], **style)
                continue
            share = np.array([m["found"] / m["cases"] for m in sparse.values()])
            low, high = np.array([wilson(m) for m in sparse.values()]).T
            # Side by side, so that the intervals of six lengths do not cover each other.
            shifted = np.array(list(sparse)) * 1.07 ** (number - (len(found) - 1) / 2)
            panel.errorbar(shifted, share, [share - low, high - share], elinewidth=1, linewidth=0, **style)
    longest = next(reversed(found.values()))
    alphas = [float(name.split()[1]) for name in longest if name.startswith("alpha")]
    controls = [
        axes[3].axhline(longest[name]["found"] / longest[name]["cases"], color="#868e96", linestyle=mark, linewidth=1)
        for name, mark in (("lexical", ":"), ("random", "--"))
    ]
    for panel, (name, title) in zip(axes, PANELS.items(), strict=True):
        panel.set_xscale("log")
        panel.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
        panel.minorticks_off()
        panel.set_xlabel("alpha (larger reads less)")
        panel.set_title(title, fontsize=10)
        panel.grid(axis="y", color="#dee2e6", linewidth=0.6)
        if name == "rank_correlation":  # it hardly falls
            panel.set_ylim(top=1.005)
        else:
            panel.set_ylim(0, 1.05)
    axes[0].legend(frameon=False, fontsize=8, title="prompt tokens", title_fontsize=8)
    names = ["lexical scores, longest prompt", "random scores, longest prompt"]
    axes[3].legend(controls, names, frameon=False, fontsize=8, loc="center")
    cases = next(iter(longest.values()))["cases"]
    figure.suptitle(
        f"FlashPrefill in the embedded drafter against its dense attention; {keep_ratio:.0%} of the tokens kept, "
        f"{cases} documents a length",
        fontsize=11,
    )
    return figure
