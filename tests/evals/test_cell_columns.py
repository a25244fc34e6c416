"""What rows say of a cache: whether it was rotated, not whether that was asked for; the names of their strategies."""

from __future__ import annotations

import pytest

from sp.evals.run import cell_columns
from sp.models.synthetic.shapes import find_shape
from sp.session import RunOptions
from sp.studies.sweep.cells import strategy_name

TARGET = find_shape("qwen3-0.6b").config


@pytest.mark.parametrize(
    ("given", "rotated", "name"),
    [
        ({}, False, "tail"),
        ({"kv": "q4_0"}, True, "tail + kv=q4_0"),
        ({"kv": "q4_0", "rotate": True}, True, "tail + kv=q4_0"),
        ({"kv": "q4_0", "rotate": False}, False, "tail + kv=q4_0 rotate=False"),
        ({"rotate": True}, True, "tail + rotate=True"),
    ],
)
def test_rows_say_whether_keys_were_rotated(given: dict[str, object], rotated: bool, name: str) -> None:
    row = cell_columns(0, RunOptions(scorer="tail", **given), TARGET)  # type: ignore[arg-type]
    assert row["rotate"] is rotated
    assert strategy_name(row, False) == name


def test_rows_of_before_are_named_by_what_was_done_then() -> None:
    row = cell_columns(0, RunOptions(scorer="tail", kv="q4_0"), TARGET)
    assert strategy_name(row | {"rotate": False}, False) == "tail + kv=q4_0 rotate=False"
    assert strategy_name({name: value for name, value in row.items() if name != "rotate"}, False) == "tail + kv=q4_0"
