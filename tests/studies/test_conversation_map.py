"""Maps of conversations: what is drawn is what rows say, column by column, and can be told apart in grey."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from sp.errors import ConfigError
from sp.studies.pages.report import write_report
from sp.studies.plots.maps import BAR, CELLS, STATES, conversation_figure, read_turns, shares

STATE_OF = {"cached": 1, "kept": 2, "recalled": 3}


def row(turn: int, prompt: int, cached: Any, kept: Any, recall: Any = (), needle: Any = ()) -> dict[str, Any]:
    spans = {"cached": cached, "kept": kept, "needle": list(needle)}
    back = [{"start": start, "end": end} for start, end in recall]
    return {"conversation": 1, "turn": turn, "prompt": prompt, "read": 7, "spans": spans, "recall": back}


ROWS = [
    row(1, 1000, [], [[0, 30], [500, 640]], needle=[[510, 520], [700, 710]]),
    row(2, 1075, [[0, 30], [500, 640]], [[1000, 1075]], [[690, 722]], [[510, 520], [700, 710]]),
]


def by_token(row: dict[str, Any]) -> np.ndarray:
    """The state of each token, one by one."""
    states = np.zeros(row["prompt"], int)
    for name in ("cached", "kept"):
        for start, end in row["spans"][name]:
            states[start:end] = STATE_OF[name]
    for each in row["recall"]:
        states[each["start"] : each["end"]] = STATE_OF["recalled"]
    return states


def drawn(figure: Figure, at: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Heights, as shares of a row's, and edges of what is drawn of a turn, by state."""
    steps = [patch for patch in figure.axes[0].patches if isinstance(patch, StepPatch)]
    mine = {str(patch.get_label()).partition(":")[2]: patch for patch in steps if patch.get_label()[0] == str(at)}
    found = {}
    for name, patch in mine.items():
        assert to_rgb(patch.get_facecolor()) == to_rgb(STATES[name])
        values, edges, baseline = patch.get_data()
        found[name] = ((baseline - values) / BAR, edges)
    return found


@pytest.mark.parametrize("at", [0, 1])
def test_each_column_has_the_shares_of_its_tokens(at: int) -> None:
    states = by_token(ROWS[at])
    found = drawn(conversation_figure(ROWS), at)
    assert list(found) == list(STATES)
    for name, (heights, edges) in found.items():
        assert edges[0] == 0
        assert edges[-1] == ROWS[at]["prompt"]
        assert len(edges) <= CELLS + 1
        cuts = zip(edges[:-1].astype(int), edges[1:].astype(int), strict=True)
        want = [np.mean(states[a:b] == STATE_OF.get(name, 0)) for a, b in cuts]
        np.testing.assert_allclose(heights, want, atol=1e-9)


def test_marks_stand_at_what_came_back_and_at_needles() -> None:
    figure = conversation_figure(ROWS)
    marks = {
        (line.get_marker(), float(line.get_xdata()[0]), round(float(line.get_ydata()[0]))): line.get_markerfacecolor()
        for line in figure.axes[0].lines
    }
    assert set(marks) == {("^", 515, 0), ("^", 705, 0), ("^", 515, 1), ("^", 705, 1), ("v", 706, 1)}
    assert marks["^", 705, 0] == "white" != marks["^", 515, 0]
    assert marks["^", 705, 1] != "white"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["1", "2"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "cached", "new, kept", "recalled", "left out", "needle, read", "needle, left out",
    ]  # fmt: skip


def test_a_long_transcript_costs_what_its_rows_do() -> None:
    long = row(1, 10**11, [[0, 10]], [[10**10, 5 * 10**10]])
    parts = shares(long, np.array([0.0, 5 * 10**10, 10**11]))
    assert parts["kept"].tolist() == [0.8, 0]
    assert drawn(conversation_figure([long]), 0)["kept"][0].sum() > 100


def luminance(colour: str) -> float:
    """Relative luminance of sRGB (WCAG 2.2)."""
    parts = np.array(to_rgb(colour))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_states_differ_in_grey() -> None:
    for one, other in combinations(STATES.values(), 2):
        low, high = sorted((luminance(one), luminance(other)))
        assert (high + 0.05) / (low + 0.05) > 4 / 3, (one, other)


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_the_last_conversation_of_a_file_is_read_and_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", {**ROWS[0], "conversation": 0}, *ROWS)
    assert read_turns(path) == ROWS
    page = write_report([path], tmp_path / "out").read_text()
    assert "![Parts of the transcript that each turn read](conversation.png)" in page
    assert (tmp_path / "out" / "conversation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": 600}, {"prompt": 0}, {"prompt": True}, {"prompt": 10**18}, {"read": "7"}, {"recall": 1},
        {"recall": [[1, 2]]}, {"recall": [{"start": 5}]}, {"spans": {"cached": []}},
        {"spans": {"cached": [], "kept": [[5, 9], [0, 6]], "needle": []}},
        {"spans": {"cached": [], "kept": [[5, 5]], "needle": []}},
        {"spans": {"cached": [], "kept": [["a", "b"]], "needle": []}},
    ],
    ids=str,
)  # fmt: skip
def test_a_row_that_cannot_be_drawn_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    path = written(tmp_path / "rows.jsonl", ROWS[0], {**ROWS[1], **change})
    with pytest.raises(ConfigError, match=re.escape(f"{path}, line 2: not a turn of a conversation")):
        read_turns(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        read_turns(written(tmp_path / "rows.jsonl"))
