"""docs/findings.md lists every script of findings once, with the versions that its header names."""

from __future__ import annotations

import re

from pages import ROOT

PAGE = (ROOT / "docs" / "findings.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")] for line in PAGE.splitlines() if line.endswith(".sh` |")
]
SCRIPTS = sorted((ROOT / "findings").glob("*.sh"))


def test_every_script_is_listed_once() -> None:
    listed = [re.fullmatch(r"`(\w+\.sh)`", row[-1])[1] for row in ROWS]  # type: ignore[index]
    assert sorted(listed) == [path.name for path in SCRIPTS]
    assert all(len(row) == 4 and all(row) for row in ROWS)


def test_versions_are_those_of_the_scripts() -> None:
    for *_, versions, name in ROWS:
        header = " ".join((ROOT / "findings" / name.strip("`")).read_text("utf-8").split("set -euo")[0].split())
        for version in re.findall(r"v?\d+(?:\.\d+)+", versions):
            assert version in header, f"{name}: {version}"


def test_figures_are_those_of_the_scripts() -> None:
    for finding, why, _, name in ROWS:
        header = (ROOT / "findings" / name.strip("`")).read_text("utf-8").split("set -euo")[0]
        for figure in re.findall(r"\d+\.\d+", finding + why):
            assert figure in header, f"{name}: {figure}"
