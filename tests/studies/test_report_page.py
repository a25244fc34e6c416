"""`report.html` of evaluations: figures as the rows have them, one example told, no text of a row as markup."""

from __future__ import annotations

import re
from typing import Any

import pytest
from markup_read import HOSTILE, Read
from study_rows import N, rows
from test_report import wilson

from sp.studies.pages.study_page import HEADS, PREDICTED, TIMES, Section, lines_page, study_page


def text(markup: str) -> str:
    return " ".join(Read(markup).text.split())


def forests(page: str) -> list[str]:
    return re.findall(r'<table class="forest">.*?</table>', page, flags=re.DOTALL)


def test_a_keep_ratio_is_one_forest_of_all_strategies() -> None:
    page = study_page("Report", [Section("Report", rows())])
    plots = [plot for plot in forests(page) if "Right answers" in plot]
    assert len(plots) == 2
    names = re.findall(r'<th scope="row" class="text">([\w ]+)', plots[0])
    assert names == ["full prefill", "tail", "random", "oracle"]
    low, high = wilson(30, 2 * N)
    assert f"75 ({100 * low:.0f} to {100 * high:.0f})" in text(plots[0])
    assert f'x1="{100 * low:.2f}" x2="{100 * high:.2f}"' in plots[0]
    full = f'x1="{100 * 19 / N:.2f}" x2="{100 * 19 / N:.2f}" y1="0" y2="10" class="reference"'
    assert plots[0].count(full) == 4
    assert "-20 (" in text(next(plot for plot in forests(page) if "Against" in plot))


def test_a_strategy_that_was_asked_less_is_not_held_against_the_others() -> None:
    more = [{**row, "task": "other"} for row in rows() if row["scorer"] != "tail"]
    plot = forests(study_page("Report", [Section("Report", rows() + more)]))[0]
    assert "tail only 1 of 2 tasks" in text(plot)
    assert text(plot).count("only") == 1


def test_every_cell_is_a_row_that_sorts_by_its_value() -> None:
    page = study_page("Report", [Section("Report", rows())])
    body = page.partition('<table class="sorts"')[2]
    heads = re.findall(r'<button type="button">(.*?)</button>', body)
    assert tuple(heads) == HEADS
    cells = [re.findall(r'data-value="(.*?)"', row) for row in re.findall(r"<tr><td.*?</tr>", body)]
    assert len(cells) == 2 * 7
    assert ["tail", "needle", "4096", "0.05", str(N), "0.75"] in [one[:6] for one in cells]
    assert all(len(one) == len(HEADS) for one in cells)
    without = study_page("Report", [Section("Report", rows())], times=False)
    assert not any(f">{name}<" in without for name in TIMES)


def test_the_share_of_blocks_that_the_drafter_read_is_a_column() -> None:
    sparse = [{**row, "drafter_density": 0.125} if row["scorer"] == "tail" else row for row in rows()]
    body = study_page("Report", [Section("Report", sparse)]).partition('<table class="sorts"')[2]
    lines = [re.findall(r'data-value="(.*?)">(.*?)</td>', row) for row in re.findall(r"<tr><td.*?</tr>", body)]
    by_strategy = {line[0][0]: line[HEADS.index("blocks read")] for line in lines}
    assert by_strategy["tail"] == ("0.125", "12.5%")
    assert by_strategy["random"] == by_strategy["full prefill"] == ("", "")


def test_what_rests_on_one_example_says_so() -> None:
    single = [row for row in rows() if row["example"].endswith("-0")]
    page = study_page("Report", [Section("Report", single)])
    assert "14 of them have one example (n = 1)" in text(page)
    assert "one example" in text(page.partition('<table class="sorts"')[2])
    one = [row for row in single if row["tokens_asked"] == 1024]
    assert 'class="interval"' not in study_page("Report", [Section("Report", one)])
    assert "0 of them" not in text(study_page("Report", [Section("Report", rows())]))


@pytest.mark.parametrize("field", ["task", "example"])
def test_text_of_rows_is_only_text(field: str) -> None:
    hostile: list[dict[str, Any]] = [{**row, field: f"{row[field]}{HOSTILE}"} for row in rows()]
    page = study_page(HOSTILE, [Section(HOSTILE, hostile, HOSTILE)], [(HOSTILE, HOSTILE)])
    seen = Read(page)
    assert not {name for name, _ in seen.tags} & {"img", "iframe", "link"}
    assert [name for name, _ in seen.tags].count("script") == 1


def test_rows_none_of_which_ran_make_a_page() -> None:
    lost = [{**row, "status": "budget"} for row in rows()]
    assert "No example could be run." in text(study_page("Report", [Section("Report", lost)]))


def test_perplexity_is_drawn_as_what_it_costs() -> None:
    cell = {"task": HOSTILE, "tokens_asked": 2048, "n": 8, "not_run": 0, "nll": 2.0, "kl": 0.1, "agreement": 0.9}
    lines = [
        {**cell, "cell": -1, "scorer": "full", "selector": "full", "keep_ratio": 1.0, "perplexity": 7.39,
         "nll_change": 0.0, "nll_change_low": 0.0, "nll_change_high": 0.0},
        {**cell, "cell": 0, "scorer": "tail", "selector": "top_chunks", "keep_ratio": 0.1, "perplexity": 8.1,
         "nll_change": 0.25, "nll_change_low": 0.125, "nll_change_high": 0.375},
        {**cell, "cell": 1, "scorer": "random", "selector": "top_chunks", "keep_ratio": 0.1, "n": 0, "not_run": 8},
    ]  # fmt: skip
    page = lines_page(HOSTILE, lines, PREDICTED, HOSTILE)
    [plot] = forests(page)
    assert 'x1="62.50" x2="87.50"' in plot, "of a scale from -0.5 to 0.5"
    assert "+0.250 (+0.125 to +0.375)" in text(plot)
    assert "not run" in text(plot)
    assert re.findall(r'<tr class="(\w+)">', plot) == ["full", "scorer", "control"]
    assert not {name for name, _ in Read(page).tags} & {"img", "iframe"}
