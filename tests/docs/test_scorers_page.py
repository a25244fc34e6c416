"""docs/leaderboard.md and the tables of scorers in docs/results and the README are what the records come to."""

from __future__ import annotations

import re

import blind_page
from leaderboard_table import ROOT, TASKS, board, entries, lines

from sp.studies.board.markdown import as_markdown


def test_the_page_is_what_the_records_come_to() -> None:
    assert (ROOT / "docs" / "leaderboard.md").read_text() == as_markdown(board(), "tail queries=24"), (
        "sp eval board results/nvidia-h200/instrument/evals results/nvidia-h100-80gb-hbm3/instrument/evals "
        "-o docs/leaderboard.md "
        "--html docs/leaderboard.html"
    )


def test_the_page_shows_the_table_of_scorers() -> None:
    section = (
        (ROOT / "docs" / "results" / "scorers.md")
        .read_text()
        .split("# Can scorers be told apart?\n")[1]
        .split("\n## ")[0]
    )
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
    readme = " ".join((ROOT / "README.md").read_text().split())
    full = {task: int(sum(answers)) for (task, scorer), answers in blind_page.right().items() if scorer == "full"}
    assert {len(answers) for answers in blind_page.right().values()} == {24}
    json, code, *others = (
        full[f"{name} phrases=blind"] for name in ("json", "code", "updates", "multi_session", "nolima")
    )
    assert f"`json` {json}, `code` {code} (held-out ones: {full['json seed=1']}, {full['code seed=1']})" in readme
    assert {f"`updates`, `multi_session`, `nolima` {count}" in readme for count in others} == {True}


def test_the_readme_shows_some_of_its_rows_in_few_lines() -> None:
    section = (ROOT / "README.md").read_text().split("### Can scorers be told apart?\n")[1].split("\n#")[0].strip()
    shown = [line for line in section.splitlines() if line.startswith("|")]
    assert shown == [line for line in lines() if line in shown], "run tests/leaderboard_table.py and take rows of it"
    names = {line.split("|")[1].strip() for line in shown}
    assert {"full prefill", "`oracle`", "`random` (control)", "`lexical` (control)"} < names
    assert len(section.splitlines()) <= 12
    assert "docs/results/scorers.md" in section
