"""Pictures hide nothing: no series under another, no bar shorter than its time, one example told, limits named."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from study_rows import N, rows

from sp.studies.figures import SMALLEST, save_figure
from sp.studies.plots import ttft_plots
from sp.studies.plots.pareto import SINGLE, forest_figure, needle_figure, pareto_figure, stage_figure
from sp.studies.plots.roofline import Point, roofline_figure
from sp.studies.sweep.cells import Table


def words(figure: Figure) -> str:
    """All text of a figure."""
    import matplotlib.text

    return " | ".join(each.get_text() for each in figure.findobj(matplotlib.text.Text))


def equal_rows() -> list[dict[str, Any]]:
    """Every strategy right on the same examples."""
    return [{**row, "correct": int(row["example"].endswith(("1", "2", "3")))} for row in rows()]


def test_strategies_that_are_equal_are_all_seen() -> None:
    axes = pareto_figure(Table.of(equal_rows()), "kept_tokens").axes[0]
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 2 and line.get_linestyle() != "None"]
    drawn = [line.get_xydata() for line in lines]
    assert len(drawn) == 3
    for one, other in combinations(drawn, 2):
        assert (np.abs(one[:, 0] / other[:, 0] - 1) > 0.01).all()  # type: ignore[index]
    axes = forest_figure(Table.of(equal_rows()), 0.05).axes[0]
    heights = [line.get_ydata()[0] for line in axes.get_lines() if len(line.get_ydata()) == 1]  # type: ignore[index]
    assert sorted(heights) == [0, 1, 2, 3]


def test_a_forest_has_shares_and_intervals() -> None:
    axes = forest_figure(Table.of(rows()), 0.05).axes[0]
    [share] = [line for line in axes.get_lines() if len(line.get_xdata()) == 1 and line.get_ydata()[0] == 1]  # type: ignore[index]
    assert share.get_xdata()[0] == pytest.approx(75)  # type: ignore[index]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["full prefill", "tail", "random", "oracle"]


def test_one_example_is_told() -> None:
    single = [row for row in rows() if row["example"].endswith("-0")]
    for figure in (forest_figure(Table.of(single), 0.05), pareto_figure(Table.of(single), "kept_tokens")):
        assert "n = 1: one example per point" in words(figure)
    axes = forest_figure(Table.of(single), 0.05).axes[0]
    assert all(len(line.get_xdata()) == 1 for line in axes.get_lines())
    names = ["tail"]
    assert "one example per cell" in words(needle_figure(Table.of(single), "needle", 0.05, names))
    more = [row for row in rows() if row["tokens_asked"] == 1024 or row["example"].endswith("-0")]
    told = words(needle_figure(Table.of([{**row, "depth": 0.5} for row in more]), "needle", 0.05, names))
    assert f"n = 1 to {N} per cell; {SINGLE} one example" in told
    assert f"100{SINGLE}" in told


def test_no_bar_is_cut() -> None:
    def record(keep: float, seconds: float) -> dict[str, Any]:
        config = {"prompt_tokens": 4096, "keep_ratio": keep, "scorer": "tail"}
        return {"config": config, "metrics": {"ttft_s": seconds, "stages": {"score": seconds / 4,
                "target prefill": 3 * seconds / 4}, "full_ttft_s": 20.0}}  # fmt: skip

    panel = [record(1, 20.0), record(0.1, 2.0), record(0.05, 1.0)]
    axes = Figure().subplots()
    ttft_plots._bars(axes, panel, ttft_plots.stage_colours(panel), ())
    ends = {}
    for box in axes.findobj(Rectangle):
        if box is not axes.patch:
            ends[round(box.get_y())] = max(ends.get(round(box.get_y()), 0), box.get_x() + box.get_width())
    assert ends == {0: 20.0, 1: 2.0, 2: 1.0}
    assert axes.get_xlim()[1] > 20
    assert ttft_plots.enlarged(panel) == panel[1:]
    assert "keep 0.1" not in ttft_plots.shared_parts([record(1, 9.0), record(0.1, 2.0), record(0.2, 1.0)])
    assert "keep 0.1" in ttft_plots.shared_parts([record(1, 9.0), record(0.1, 2.0), record(0.1, 1.0)])
    assert ttft_plots.shared_parts(panel[:2]) == []
    assert ttft_plots.enlarged(panel[1:]) == []
    assert ttft_plots.enlarged([record(1, 2.0), record(0.1, 1.0)]) == []
    axes = Figure().subplots()
    ttft_plots._bars(axes, panel, ttft_plots.stage_colours(panel), (), 2.3)
    alike = [record(1, 20.0), record(0.1, 2.0), record(0.1, 1.0)]
    other = Figure().subplots()
    ttft_plots._bars(other, alike, ttft_plots.stage_colours(alike), ttft_plots.shared_parts(alike))
    assert [label.get_text() for label in other.get_yticklabels()] == ["full prefill", "keep 0.1", "keep 0.1"]
    marks = [patch for patch in axes.patches if patch.get_gid() == ttft_plots.BREAK_MARK]
    assert [round(float(mark.get_xy()[:, 1].mean())) for mark in marks] == [0], "the full prefill's bar is broken"  # type: ignore[attr-defined]
    assert max(box.get_x() + box.get_width() for box in axes.findobj(Rectangle)) == pytest.approx(2.3)
    assert [text.get_text() for text in axes.texts] == [" 20 s", " 2 s, 10.0x", " 1 s, 20.0x"]


def sizes(figure: Figure) -> list[float]:
    """Points of all letters of a figure."""
    import matplotlib.text

    return [each.get_fontsize() for each in figure.findobj(matplotlib.text.Text) if each.get_text().strip()]


def test_letters_are_large_enough_to_read() -> None:
    table = Table.of([{**row, "depth": 0.5} for row in rows()])
    for figure in (needle_figure(table, "needle", 0.05, ["tail"]), forest_figure(table, 0.05),
                   pareto_figure(table, "kept_tokens"), stage_figure(table, 4096, 0.05)):  # fmt: skip
        assert min(sizes(figure)) >= SMALLEST


def test_colour_is_not_the_only_sign_of_what_failed() -> None:
    figure = needle_figure(Table.of([{**row, "depth": 0.5} for row in rows()]), "needle", 0.05, ["random"])
    answers = figure.axes[0]
    hatched = [patch for patch in answers.patches if patch.get_hatch()]
    assert len(hatched) == 2, "random is wrong in most examples of both lengths"
    assert "hatched: lower half of the scale" in words(figure)
    assert {"prompt tokens", "needle kept by the selector", "margin of the needle's chunk"} <= set(
        words(figure).split(" | ")
    )


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_a_picture_is_in_the_format_asked_for_and_the_same_twice(suffix: str, begins: bytes, tmp_path: Path) -> None:
    table = Table.of(rows())
    files = [save_figure(forest_figure(table, 0.05), tmp_path / f"{name}.{suffix}") for name in "ab"]
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(begins)
    assert first == second
    assert b"/Type3" not in first, "journals refuse such fonts"


def test_limits_of_a_gpu_say_that_they_were_reached() -> None:
    found = [
        Point("project", "portable", 100.0, 50.0, 500.0, "a GPU", {}),
        Point("memory", "", 0, 0, 900.0, "a GPU", {}),
    ]
    told = words(roofline_figure(found))
    assert "50 TFLOP/s, highest measured" in told
    assert "900 GB/s, highest measured" in told
