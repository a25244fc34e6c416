"""Reports of rows whose counts are known: figures against the formulas, pictures written, bad paths named."""

from __future__ import annotations

import csv
import json
import re
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from matplotlib.figure import Figure
from study_rows import RIGHT, N, rows

from sp.errors import ConfigError
from sp.scoring.base import SCORERS, ModelFreeScorer, register_scorer
from sp.studies.figures import looks
from sp.studies.pages.report import write_report
from sp.studies.plots.pareto import depth_rows, heat
from sp.studies.sweep.cells import Table, kind_of
from sp.studies.sweep.comparable import provenance
from sp.studies.sweep.store import Store, read_results, session_line
from sp.studies.tables.report_tables import cells_csv


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    models = {"target": {"file": "t.gguf", "sha256": "0123456789abcdef", "template_sha256": None}}
    with Store(folder / "rows.jsonl", session_line("demo", "abc123", "cpu")) as store:
        store.add("a", rows(), seconds=1.0, config={"cells": []}, models=models)
    return folder


@pytest.fixture
def no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of needles are left empty: they take most of a report's time, and one test draws them."""
    monkeypatch.setattr("sp.studies.pages.study_page.needle_figure", lambda *_, **__: Figure())


def wilson(k: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    middle, half = k / n + z * z / (2 * n), z * sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def test_the_page_says_what_the_rows_say(results: Path, tmp_path: Path) -> None:
    page = write_report([results], tmp_path / "out")
    text = page.read_text()
    for figure in re.findall(r"\]\((\S+\.png)\)", text):
        assert (tmp_path / "out" / figure).read_bytes().startswith(b"\x89PNG")
    for file in ("pareto_kept.png", "pareto_ttft.png", "stages.png", "map_needle_0.05_1.png", "cells.csv"):
        assert file in text
    low, high = wilson(30, 40)
    table = text.split("## Right answers by keep ratio")[1].split("###")[0]
    assert f"75.0 ({100 * low:.1f} to {100 * high:.1f}) | 90.0 " in table
    names = re.findall(r"^\| ([a-z_ ]+) \|", table, flags=re.MULTILINE)
    assert names == ["strategy", "full prefill", "tail", "random", "oracle"]
    against = text.split("### Against the full prefill")[1]
    assert re.search(r"\| tail \| -20\.0 \(-3\d\.\d to -\d\.\d\) \| -5\.0 ", against)
    assert "| oracle | +0.0 (+0.0 to +0.0) |" in against
    far = text.split("### Distance to the oracle\n")[1].split("###")[0]
    assert re.search(r"\| tail \| -20\.0 \(-3\d\.\d to -\d\.\d\) \| -5\.0 ", far)
    assert "| full prefill |  |  | 40 |" in far
    assert text.count("### Distance to the oracle, keep ratio 0.05\n") == 1
    assert "t.gguf (sha256 0123456789ab)" in text
    assert "abc123" in text
    assert "1 budget" in text
    assert "| tail | 0.0512 (20.0x) | 0.205 (20.0x) | 20 |" in text


DRAFTING: dict[str, Any] = {"attention": "flashprefill", "alpha": 0.1, "density": None}
ATTENTION: list[tuple[list[Any], str]] = [
    ([{"name": "tail", **DRAFTING, "attention": "dense"}, {"name": "random"}], "dense"),
    ([{"name": "tail", **DRAFTING}], "alpha 0.1"),
    ([{"name": "tail", **DRAFTING, "density": 0.05}], "density 0.05"),
    ([{"name": "tail", **DRAFTING, "blocks": "sqrt:64"}], "blocks sqrt:64"),
    ([{"name": "tail", **DRAFTING, "attention": "auto"}], "auto (alpha 0.1 from 16,384 tokens on)"),
    ([{"name": "tail", **DRAFTING}, {"name": "b", **DRAFTING, "attention": "dense"}], "alpha 0.1 (tail), dense (b)"),
    ([{"name": "random"}, 3, {"name": "own", "attention": [], "alpha": {}}], "alpha {}"),
    ([{"name": "random"}], ""),
]


@pytest.mark.parametrize(("scorers", "told"), ATTENTION)
def test_how_sparsely_the_drafter_reads_is_among_the_sources(tmp_path: Path, scorers: list[Any], told: str) -> None:
    with Store(tmp_path / "rows.jsonl", session_line("demo", "abc123", "cpu")) as store:
        store.add("a", rows(), seconds=1.0, config={"cells": [{"scorer": scorer} for scorer in scorers]}, models={})
    results = read_results([tmp_path / "rows.jsonl"]).checked()
    assert dict(provenance(results)).get("attention while scoring", "") == told


@pytest.mark.usefixtures("no_maps")
@pytest.mark.parametrize("picture", ["pdf", "svg"])
def test_pictures_for_papers(results: Path, tmp_path: Path, picture: Literal["pdf", "svg"]) -> None:
    text = write_report([results], tmp_path / "out", picture=picture).read_text()
    shown = "[Right answers over time](pareto_ttft.pdf)" if picture == "pdf" else "](pareto_ttft.svg)"
    assert shown in text
    assert ("!" in text) == (picture == "svg")
    written = {path.suffix for path in (tmp_path / "out").iterdir() if path.name[0] != "."}
    assert written == {".md", ".html", ".csv", f".{picture}"}


@pytest.mark.usefixtures("no_maps")
def test_times_can_be_left_out(results: Path, tmp_path: Path) -> None:
    page = write_report([results], tmp_path / "out", times=False)
    text = page.read_text()
    assert "Times are omitted" in text
    assert "Time to the first token" not in text
    assert {path.name for path in page.parent.iterdir() if path.name[0] != "."} == {
        "report.md",
        *re.findall(r"\]\((\S+)\)", text),
    }
    assert "pareto_ttft.png" not in text
    assert "stages.png" not in text
    assert "ttft" not in (page.parent / "cells.csv").read_text()


def test_cells_csv_counts() -> None:
    lines = list(csv.DictReader(cells_csv(Table.of(rows())).splitlines()))
    assert len(lines) == 2 * len(RIGHT)
    for line in lines:
        scorer = "full" if line["strategy"] == "full prefill" else line["strategy"]
        right = RIGHT[scorer, float(line["keep_ratio"])]
        assert (int(line["n"]), int(line["correct"])) == (N, right)
        assert [float(line["low"]), float(line["high"])] == pytest.approx(wilson(right, N), abs=1e-5)
        assert float(line["accuracy_given_kept"]) == 1
        assert line["against_oracle"] == ("" if scorer == "full" else f"{(right - 19) / N:.6g}")


def test_oracles_stand_apart_and_each_pair_has_its_own() -> None:
    """Two pairs read the same examples; the oracle of the second is worse, and one of them is no control."""
    other = [
        {**row, "pair": "b", "correct": int(row["correct"] and row["example"][-1] != "0")} for row in rows()
        if row["scorer"] in ("tail", "oracle")
    ]  # fmt: skip
    reading = [
        {**row, "scorer": "leave_one_out among=8", "cell": 8, "correct": 0} for row in rows() if row["cell"] == 0
    ]
    table = Table.of([*rows(), *other, *reading])
    assert table.strategies() == [
        "full prefill", "tail", "tail + b", "random", "oracle", "oracle + b", "leave_one_out among=8"
    ]  # fmt: skip
    groups = table.groups("tokens_asked", "keep_ratio")
    far = {name: groups[name, 1024, 0.05].distance() for name in table.strategies() if (name, 1024, 0.05) in groups}
    assert far["tail"][0] == pytest.approx((15 - 19) / N)
    assert far["tail + b"][0] == pytest.approx((13 - 17) / N)
    assert far["leave_one_out among=8"][0] == pytest.approx(-19 / N)
    assert groups["full prefill", 1024, 1.0].distance() is None
    found = looks(table.strategies())
    assert found["leave_one_out among=8"].line == found["oracle"].line == found["random"].line != found["tail"].line


def test_a_scorer_of_ones_own_is_a_strategy_and_no_control() -> None:
    class Mine(ModelFreeScorer):
        """Reads no model, as the controls do."""

    register_scorer("mine_of_reports")(Mine)
    try:
        own = [{**row, "scorer": "mine_of_reports"} for row in rows() if row["scorer"] == "random"]
        table = Table.of([*rows(), *own])
        assert table.strategies() == ["full prefill", "mine_of_reports", "tail", "random", "oracle"]
        assert [kind_of(name) for name in ("mine_of_reports", "random")] == ["scorer", "control"]
        found = looks(table.strategies())
        assert found["mine_of_reports"].line == "-" != found["random"].line
    finally:
        SCORERS._classes.pop("mine_of_reports")


def test_one_pair_goes_unnamed() -> None:
    """Its files stand in the page's head; a path in every row would say nothing."""
    one = [{**row, "pair": "/models/a.gguf+/models/b.gguf"} for row in rows()]
    assert Table.of(one).strategies() == Table.of(rows()).strategies()
    two = [*one, *({**row, "pair": "/models/a.gguf+/models/c.gguf"} for row in rows() if row["scorer"] == "tail")]
    assert {"tail + a.gguf+b.gguf", "tail + a.gguf+c.gguf"} <= set(Table.of(two).strategies())


def test_needle_maps_are_means_by_depth_and_length() -> None:
    table = Table.of(rows())
    mine = [row for row in table.rows if row["strategy"] == "tail" and row["keep_ratio"] == 0.05]
    names, edges = depth_rows([row["depth"] for row in mine])
    assert names[0] == "0"
    assert len(names) == N
    values, count = heat(mine, "correct", [1024, 4096], edges)
    assert (count == 1).all()
    expected = np.repeat(np.arange(N)[:, None] < RIGHT["tail", 0.05], 2, axis=1)
    assert (values == expected).all()
    names, edges = depth_rows([0.05, 0.07, 0.5, 1.0, *np.linspace(0.1, 0.9, 30)])
    assert len(names) == 10
    two = [{"depth": depth, "tokens_asked": 8, "x": x} for depth, x in ((1.0, 0.25), (0.95, 0.75))]
    values, count = heat(two, "x", [8], edges)
    assert values[-1, 0] == 0.5
    assert count.sum() == 2
    assert np.isnan(values[0, 0])


@pytest.mark.usefixtures("no_maps")
def test_parts_with_other_cells_are_told_apart(results: Path, tmp_path: Path) -> None:
    models: dict[str, Any] = {}
    with Store(results / "more.jsonl", session_line("demo", "abc123", "cpu")) as store:
        half = [row for row in rows() if row["tokens_asked"] == 1024]
        store.add("b", half, seconds=1.0, config={"cells": [1]}, models=models, part="Short prompts")
    text = write_report([results], tmp_path / "out").read_text()
    first, second = text.split("\n# ")[1:]
    assert first.startswith("Short prompts\n") or second.startswith("Short prompts\n")
    short = first if first.startswith("Short") else second
    assert "| tail | 75.0 (53.1 to 88.8) | 90.0 (69.9 to 97.2) | 20 |" in short
    assert "map_needle" not in short
    assert len(list((tmp_path / "out").glob("*cells.csv"))) == 2


@pytest.mark.usefixtures("no_maps")
def test_rows_of_sp_eval_make_a_report_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "needle_rank": None}) + "\n" for row in rows()))
    text = write_report([path], tmp_path / "out").read_text()
    assert "| random | 5.0 (" in text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.jsonl", '{"schema":9,"kind":"row"}\n', "schema 9, but this version of sp reads schema 1"),
        ("rows.jsonl", "hello\n", "line 1: not a result of sp sweep, sp eval or sp chat, nor a record"),
        ("rows.jsonl", '{"bench":"matmul","config":{},"metrics":{}}\n', "nothing for a report"),
        ("other.txt", None, "is not a file or folder"),
    ],
)
def test_bad_paths_are_named_and_nothing_is_written(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        write_report([tmp_path / name], tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_and_an_unfinished_sweep_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no results"):
        write_report([tmp_path], tmp_path / "out")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"schema": 1, "kind": "row", "run": "a"}) + "\n")
    with pytest.raises(ConfigError, match="no finished run"):
        write_report([tmp_path], tmp_path / "out")
