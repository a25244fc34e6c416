"""The text of a sparse rule: one for each rule however its numbers are written, and errors in the user's words."""

from __future__ import annotations

import pytest

from sp.commands.common import read_settings
from sp.errors import ConfigError
from sp.scoring.sparse import Sparse
from sp.session import RunOptions
from sp.studies.sweep.sweep import load_sweep

WRONG = [
    ("skip:2.0", "skip is 2.0; it must be at least 0 and below 1"),
    ("skip:nan", "skip is nan; it must be at least 0 and below 1"),
    ("alpha:1.5", "alpha is 1.5; it must be from 0 to 1"),
    ("density:0", "density is 0.0; it must be above 0 and at most 1"),
    ("blocks:0", "count is 0; it must be at least 1"),
    ("blocks:1.5", "COUNT in blocks:COUNT must be a whole number"),
    ("sqrt:64:5", "TOKENS is 5; it must be at least 128"),
    ("sqrt:", "COUNT in sqrt:COUNT[:TOKENS] must be a whole number"),
    ("energy:2", "energy is 2.0; it is a share, above 0 and at most 1"),
    ("energy:0.9:8:x", "MOST in energy:SHARE[:LEAST[:MOST]] must be a whole number"),
    ("alpha:", "THRESHOLD in alpha:THRESHOLD must be a number"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_an_error_has_the_text_that_was_written(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Sparse.parse(text, "--sparse")
    assert str(raised.value) == f"--sparse {text}: {said}"


@pytest.mark.parametrize("text", ["", "64", "blocks", "blocks:1:2", "energy", "energy:1:2:3:4", "on", "alpha:0.1:2"])
def test_a_text_that_is_no_rule_gets_the_list_of_rules(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--sparse takes off, auto, alpha:THRESHOLD, .*skip:BUDGET, as in"):
        Sparse.parse(text, "--sparse")


@pytest.mark.parametrize(
    ("setting", "said"),
    [("skip=2.0", "skip is 2.0; it must be at least 0"), ("alpha=3", "alpha is 3.0"), ("window=0", "window is 0")],
)
def test_an_error_of_the_targets_rule_has_no_class(setting: str, said: str) -> None:
    settings = ["target.alpha=0.1"] * setting.startswith("window") + [f"target.{setting}"]
    with pytest.raises(ConfigError, match=f"^target: {said}"):
        read_settings("tail", "top_chunks", "greedy", settings)


SAME = [
    ("skip:5e-2", "skip:0.05"), ("skip:0.050", "skip:0.05"), ("skip:.05", "skip:0.05"), ("skip:1e-05", "skip:1e-05"),
    ("alpha:1.0", "alpha:1"), ("alpha:+0.1", "alpha:0.1"), ("alpha:-0", "alpha:0"), ("density:1", "density:1"),
    ("blocks:064", "blocks:64"), ("constant:64", "blocks:64"), ("sqrt:64:032768", "sqrt:64:32768"),
    ("energy:9e-1:08:64", "energy:0.9:8:64"), ("alpha:0.12345678901", "alpha:0.12345678901"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "kept"), SAME)
def test_one_rule_has_one_text(written: str, kept: str) -> None:
    parsed = Sparse.parse(written, "--sparse")
    assert parsed == kept
    assert Sparse.parse(kept, "--sparse") == kept
    assert parsed.rule == Sparse(kept).rule
    assert RunOptions(scorer=f"tail[sparse={written}]") == RunOptions(scorer="tail", sparse=kept)
    assert parsed.recorded() == Sparse(kept).recorded()


def test_cells_of_a_sweep_that_write_a_number_twice_are_one(tmp_path) -> None:
    file = tmp_path / "s.yaml"
    task = "tasks: {task: needle, tokens: 1k, examples: 1}\n"
    file.write_text(task + "cells: {scorer: tail, grid: {sparse: ['skip:5e-2', 'skip:0.05']}}\n")
    (run,) = load_sweep(file).runs
    assert len(run.cells) == 1
