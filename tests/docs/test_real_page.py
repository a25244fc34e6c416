"""docs/results/real.md and the README's table of scorers are what the records come to."""

from __future__ import annotations

import pytest
from real_page import KINDS, ROOT, table, times


@pytest.mark.parametrize("name", KINDS)
def test_the_page_shows_the_table(name: str) -> None:
    page = (ROOT / "docs" / "results" / "real.md").read_text()
    assert "\n".join(table(name)) in page, "run PYTHONPATH=tests python tests/real_page.py and put its table there"


def test_the_page_shows_the_times() -> None:
    assert "\n".join(times()) in (ROOT / "docs" / "results" / "real.md").read_text()


def test_the_readme_ranks_scorers_on_real_weights_with_controls() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line in table("natural")]
    names = [row.split("|")[1].strip() for row in rows]
    controls = ["`bm25` (control)", "`random` (control)", "`oracle`"]
    assert names == ["scorer", "---", "full prefill (n)", "`auto`", "`calibrated`", "`tail`", *controls]
