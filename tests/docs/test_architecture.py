"""docs/architecture.md names files that exist, and functions and classes that these files define."""

from __future__ import annotations

import re

import pytest
from pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
NAMED = re.findall(r"`((?:sp|tests)/[\w/]+\.\w+)`(?: \(((?:`\w+`(?:, )?)+)\))?", PAGE)


def test_every_file_and_name_is_there() -> None:
    wrong = []
    for path, names in NAMED:
        if not (ROOT / path).is_file():
            wrong.append(path)
            continue
        source = (ROOT / path).read_text("utf-8")
        defined = {one for pair in re.findall(r"^(?:def|class) (\w+)|^    def (\w+)", source, re.M) for one in pair}
        wrong += [f"{path}: {name}" for name in re.findall(r"\w+", names) if name not in defined]
    assert not wrong, "docs/architecture.md names what is not there:\n" + "\n".join(wrong)
    assert len(NAMED) > 30


def test_the_way_has_ten_steps_each_with_a_file() -> None:
    steps = re.findall(r"^\| (\d+)\. .*$", PAGE, re.M)
    assert steps == [str(number) for number in range(1, 11)]
    assert all(re.search(r"`sp/[\w/]+\.py`", line) for line in PAGE.splitlines() if re.match(r"\| \d+\. ", line))


@pytest.mark.parametrize("decision", ["block", "token", "page", "scorer", "request"])
def test_a_reader_of_the_readme_is_two_steps_from_the_file_of_a_decision(decision: str) -> None:
    assert "](docs/architecture.md)" in (ROOT / "README.md").read_text("utf-8")
    [row] = [line for line in PAGE.splitlines() if line.startswith("|") and f"**{decision}**" in line]
    assert re.search(r"`sp/[\w/]+\.py`", row)
