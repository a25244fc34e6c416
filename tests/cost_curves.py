"""Cost from 8K to 1M tokens on 1, 2 and 4 GPUs: predicted, measured, and the peer's; run it to draw the figure.

The peer's times are quoted: llama-bench of llama-cpp-python 0.3.36 on an H200, 27B shapes as Q4_K_M, flash attention.
Between and beyond its prompts they are estimated by a n + b n^2, fitted to the quoted ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from models_page import table
from times_page import PAIR

from sp.bench.record import newest
from sp.models.network.arithmetic import AUTO
from sp.ops.sparse.block_budget import read_rule
from sp.ops.sparse.expected_density import expected_density
from sp.planning.gpus import find_gpu
from sp.planning.memory import scoring_bytes
from sp.planning.plan import format_tokens
from sp.planning.roofline import Roofline, TimedModel
from sp.planning.tables import seconds_text
from sp.quant import Math
from sp.studies.figures import INK, save_figure

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "cost-curves.png"
GPU, GPUS, KEEP, RULE = "h200", (1, 2, 4), 0.05, "constant:64"
LENGTHS = tuple(1 << power for power in range(13, 21))
PEER = {8192: 2457.0, 32768: 2330.0, 131072: 1942.0}
"""Quoted tokens per second by prompt length."""
COLOURS = dict(zip(GPUS, ("#1c7ed6", "#2f9e44", "#f08c00"), strict=True))


@dataclass(frozen=True)
class Cost:
    """Predicted seconds at one length and number of GPUs; `full` is None beyond the target's window."""

    tokens: int
    gpus: int
    score: float
    first: float
    full: float | None


def predicted() -> list[Cost]:
    """All lengths and numbers of GPUs, on H200."""
    gpu, rule, costs = find_gpu(GPU), read_rule(RULE, "blocks"), []
    target = TimedModel.of_shape(*PAIR[0]).multiplied_in(Math.INT8, gpu)
    drafter = TimedModel.of_shape(*PAIR[1]).multiplied_in(AUTO, gpu)
    for gpus in GPUS:
        roofline, part = Roofline(gpu, gpus, gpus), target.shared_by(gpus)
        for n in LENGTHS:
            times = roofline.compressed(part, drafter, n, KEEP, expected_density(rule, n))
            full = roofline.full_s(part, n) if n <= target.config.context else None
            costs.append(Cost(n, gpus, times.score_s, times.ttft_s, full))
    return costs


def peer(tokens: int) -> float:
    """Seconds of the peer's full prefill: quoted, or by the curve through the quoted ones.

    >>> round(peer(131072), 1)
    67.5
    """
    if tokens in PEER:
        return tokens / PEER[tokens]
    lengths = np.array(list(PEER), np.float64)
    seconds = np.array([n / PEER[int(n)] for n in lengths])
    (linear, square), *_ = np.linalg.lstsq(np.stack([lengths / seconds, lengths**2 / seconds], 1), np.ones(3))
    return float(linear * tokens + square * tokens**2)


def measured() -> list[tuple[int, int, float]]:
    """List (GPUs, tokens, seconds) of measured scorings with the rule."""
    scorings = []
    for row in newest(ROOT / "results" / f"nvidia-{GPU}" / "drafter.jsonl"):
        c = row["config"]
        if c.get("blocks") == RULE and c["model"].startswith(PAIR[1][0]):
            scorings.append((c["cards"], c["prompt_tokens"], row["metrics"]["score_s"]))
    return scorings


def curves() -> list[str]:
    """One row per length: scoring and first token by GPUs, full prefills, and the exponent since the row before."""
    costs, lines = {(cost.tokens, cost.gpus): cost for cost in predicted()}, []
    config = TimedModel.of_shape(*PAIR[1]).config
    for before, n in zip((None, *LENGTHS), LENGTHS, strict=False):
        row = [costs[n, gpus] for gpus in GPUS]
        grew = math.log2(costs[n, 1].score / costs[before, 1].score) if before else None
        other = f"{peer(n):.3g}" + ("" if n in PEER else " (extrapolated)" if n > max(PEER) else " (interpolated)")
        lines.append(
            [format_tokens(n), *(seconds_text(cost.score) for cost in row), "" if grew is None else f"{grew:.2f}",
             *(seconds_text(cost.first) for cost in row), *(seconds_text(cost.full) for cost in row), other,
             f"{scoring_bytes(config, n) / 2**30:.1f}"]
        )  # fmt: skip
    heads = ["tokens"]
    heads += [f"scoring, {_gpus(n)}" for n in GPUS] + ["exponent"]
    heads += [f"first token, {_gpus(n)}" for n in GPUS] + [f"in full, {_gpus(n)}" for n in GPUS]
    return table([*heads, "llama.cpp in full, one", "scoring, GiB a GPU"], lines)


def _gpus(count: int) -> str:
    return {1: "one", 2: "two", 4: "four"}[count]


def figure() -> Figure:
    """Draw two panels: scoring with measurements, and first tokens with full prefills and the peer's."""
    drawn = Figure(figsize=(7.2, 3.5), layout="constrained")
    scoring, first_token = drawn.subplots(1, 2)
    costs = predicted()
    for gpus in GPUS:
        series = [cost for cost in costs if cost.gpus == gpus]
        line: dict[str, Any] = {"color": COLOURS[gpus], "linestyle": "--", "linewidth": 1.4}
        label = f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}"
        scoring.plot(LENGTHS, [cost.score for cost in series], label=f"{label}, predicted", **line)
        first_token.plot(LENGTHS, [cost.first for cost in series], label=f"{label}, keep {KEEP}", **line)
        with_full = [cost for cost in series if cost.full is not None]
        first_token.plot(
            [cost.tokens for cost in with_full], [cost.full for cost in with_full], **(line | {"linestyle": ":"})
        )
    for gpus, marker in ((1, "o"), (2, "s"), (4, "D")):
        points = [(n, seconds) for count, n, seconds in measured() if count == gpus]
        style: dict[str, Any] = {"color": COLOURS[gpus], "marker": marker, "linestyle": "", "markersize": 5}
        scoring.plot(*zip(*points, strict=True), label=f"{gpus}, measured", **style)
    quoted, beyond = list(PEER), [n for n in LENGTHS if n >= max(PEER)]
    first_token.plot(quoted, [peer(n) for n in quoted], color=INK, label="llama.cpp in full, quoted")
    first_token.plot(beyond, [peer(n) for n in beyond], color=INK, linestyle=":", label="the same, extrapolated")
    first_token.plot([], [], color="#868e96", linestyle=":", label="ours in full, predicted")
    _dress(scoring, f"scoring, {RULE.replace(':', ' ')} blocks")
    _dress(first_token, "first token")
    return drawn


def _dress(axes: Axes, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks: Sequence[int] = LENGTHS[::2]
    axes.set_xticks(ticks, [format_tokens(n) for n in ticks])
    axes.set_xlabel("tokens", color=INK)
    axes.set_ylabel("seconds", color=INK)
    axes.set_title(f"H200: {title}", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=6.5, frameon=False)


if __name__ == "__main__":
    save_figure(figure(), PICTURE, dpi=200)
