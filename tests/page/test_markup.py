"""Pages show what anybody wrote as text, hold themselves to their own style and script, and can be read."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import pytest
from contrast import contrast
from markup_read import HOSTILE, Read

from sp.page.forest import ForestRow, Scale, forest
from sp.page.markup import Cell, Html, asset, html, page, sortable, tag


def test_text_and_attributes_are_only_text() -> None:
    seen = Read(tag("p", HOSTILE, tag("b", HOSTILE), title=HOSTILE))
    assert [name for name, _ in seen.tags] == ["p", "b"]
    assert seen.tags[0][1] == {"title": HOSTILE}
    assert seen.text == HOSTILE * 2
    assert isinstance(html(Html("<b>")), Html)
    assert html(Html("<b>")) == "<b>"


def test_tables_and_plots_escape_what_they_are_told() -> None:
    made = sortable(HOSTILE, [HOSTILE, "b"], [[Cell(HOSTILE, HOSTILE), Cell(1, 1)]])
    made += forest(HOSTILE, Scale(HOSTILE, 0, 1), [ForestRow(HOSTILE, "scorer", 3, 0.5, 0.1, 0.9)])
    assert not {name for name, _ in Read(made).tags} & {"img", "script"}
    assert Read(made).text.count(HOSTILE) == 5


def test_only_the_page_s_own_style_and_script_may_run() -> None:
    made = page("t", tag("p", "x"), styles=("p { color: red }",), scripts=("let a = 1;", "let b = 2;"))
    policy = next(str(each["content"]) for name, each in Read(made).tags if "http-equiv" in each)
    for name in ("style", "script"):
        inside = re.search(rf"<{name}>(.*?)</{name}>", made, flags=re.DOTALL)
        assert inside
        assert f"{name}-src 'sha256-{b64encode(sha256(inside[1].encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "script-src" not in page("t", "x")


@pytest.mark.parametrize("dark", [False, True])
def test_every_ink_can_be_read_on_every_paper(dark: bool) -> None:
    light, _, after = asset("style.css").partition("@media (prefers-color-scheme: dark)")
    colours = dict(re.findall(r"--(\w+): #([0-9a-f]{6})", after if dark else light))
    assert colours.keys() == dict(re.findall(r"--(\w+): #([0-9a-f]{6})", light)).keys()
    papers = [colours[name] for name in ("paper", "band", "h1", "h2", "h3", "h4")]
    for ink in ("ink", "soft"):
        for paper in papers:
            assert contrast(colours[ink], paper) >= 4.5, (ink, paper)
    for ink in ("mark", "good", "bad", "ask"):
        assert contrast(colours[ink], colours["paper"]) >= 4.5, ink


def test_a_forest_tells_one_example_and_draws_no_interval_of_it() -> None:
    lines = [
        ForestRow("a", "full", 20, 90.0, 70.0, 97.0),
        ForestRow("b", "control", 1, 0.0, 0.0, 79.0),
        ForestRow("c", "scorer", 0, None),
    ]
    made = forest("Keep 0.1", Scale("right (%)", 0, 100, reference=90.0), lines)
    rows = re.findall(r"<tr class=.*?</tr>", made)
    assert ['class="interval"' in row for row in rows] == [True, False, False]
    assert "one example" in rows[1]
    assert "not run" in rows[2]
    assert 'x1="70.00" x2="97.00"' in rows[0]
    assert all('x1="90.00" x2="90.00"' in row for row in rows)
