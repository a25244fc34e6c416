"""docs/leaderboard.md and the tables of scorers in docs/results and the README are what the records come to."""

from __future__ import annotations

import re

import blind_page
from leaderboard_table import ROOT, TASKS, board, entries, lines

from sp.studies.board.html import as_markdown


def test_the_page_is_what_the_records_come_to() -> None:
    assert (ROOT / "docs" / "leaderboard.md").read_text() == as_markdown(board(), "tail queries=24"), (
        "sp eval board results/nvidia-h200/instrument/evals results/nvidia-h100-80gb-hbm3/instrument/evals "
        "-o docs/leaderboard.md "
        "--html docs/leaderboard.html"
    )


def test_the_page_shows_the_table_of_scorers() -> None:
    section = (ROOT / "docs" / "results" / "scorers.md").read_text().split("# Scorers compared\n")[1].split("\n## ")[0]
    assert "\n".join(lines()) in section, "run tests/leaderboard_table.py and put its table there"
    assert len(section.splitlines()) <= 40
    found = entries(8192)
    better = [
        task for task in TASKS if (a := found["lines", task]).low > (b := found["tail", task]).high  # type: ignore[operator]
        or a.accuracy < b.accuracy - 0.02  # type: ignore[operator]
    ]  # fmt: skip
    said = re.search(r"beats `tail`, which the default `auto` takes with this drafter, on (.*?) with disjoint", section)
    assert said is not None
    assert re.findall(r"`(\w+)`", said[1]) == better


def test_phrases_that_nobody_had_read() -> None:
    [made] = blind_page.tables().values()
    assert "\n".join(made) in blind_page.PAGE.read_text(), "run: PYTHONPATH=tests python tests/blind_page.py"
    assert {len(answers) for answers in blind_page.right().values()} == {24}
