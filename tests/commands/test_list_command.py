"""`sp list`: every registered name with its options as they are built, and the page of sweep keys as it is written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from sp import cli
from sp.commands.list import Item, items, kinds, registries, text_of
from sp.config import fields_of
from sp.errors import ConfigError
from sp.models.families.base import ARCHITECTURES
from sp.studies.sweep.sweep import CELL_KEYS, PAIR_FIELDS, TASK_KEYS, TOP_FIELDS, load_sweep

ROOT = Path(__file__).parents[2]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr("sys.argv", ["sp", "list", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


@pytest.mark.parametrize("kind", sorted(registries()))
def test_defaults_are_those_that_are_built(kind: str) -> None:
    """Each default, read as YAML, is what the strategy has."""
    registry = registries()[kind]
    found = {item.name: item for item in items(kind)}
    assert list(found) == list(registry)
    checked = 0
    for name, item in found.items():
        needed = [field.name for field in item.fields if field.default is None]
        try:
            built = registry.build(name, dict.fromkeys(needed, "x"))
        except ConfigError:  # a file that is not there, or weights
            continue
        checked += 1
        for field in item.fields:
            has = getattr(built, field.name)
            if field.name not in needed:
                assert yaml.safe_load(str(field.default)) == (list(has) if isinstance(has, tuple) else has)
        assert (item.source, bool(item.description)) == ("built in", True)
    assert checked or kind == "formats", "of files that are not there"


def test_a_plugin_far_away_has_its_path_on_a_line_of_its_own() -> None:
    path = "/tmp/" + "a" * 60 + "/plugin.py"
    text = text_of([Item("mine", "What it is.", source=path)], 80, in_full=False)
    assert text.splitlines() == ["mine", f"  from {path}", "  What it is."]


def test_scorers_say_whether_they_come_with_weights() -> None:
    told = {item.name: item.description for item in items("scorers")}
    assert told["probe"].endswith("With weights for the embedded drafter.")
    for name in ("lines", "cross_attention"):
        assert told[name].endswith("Without weights: sp train scorer makes some.")
    assert "eights" not in told["bm25"]


def test_every_kind_text_of_and_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert call(monkeypatch, "--json") == 0
    counts = json.loads(capsys.readouterr().out)
    assert list(counts) == kinds()
    for kind, count in counts.items():
        assert call(monkeypatch, kind, "--json") == 0
        assert len(json.loads(capsys.readouterr().out)[kind]) == count
        assert call(monkeypatch, kind) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines()), default=0) <= 80
        assert all(item.name in shown for item in items(kind))
    assert counts["families"] == len(ARCHITECTURES)
    assert call(monkeypatch, "scorers", "tail") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "queries=8 " in shown
    assert "of the last prompt tokens" in shown or "Attention of the last" in shown


def test_an_unknown_name_is_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "scorer") == 2
    assert "unknown kind 'scorer'; did you mean 'scorers'" in capsys.readouterr().err
    assert call(monkeypatch, "scorers", "tial") == 2
    assert "unknown scorer 'tial'; did you mean 'tail'" in capsys.readouterr().err


def test_options_that_are_inherited_are_told_once_with_what_they_say() -> None:
    @dataclasses.dataclass
    class Base:
        """Base.

        Parameters
        ----------
        width, height : int
            How wide and how high
            it is.
        """

        width: int = 3
        height: int = 4

    @dataclasses.dataclass
    class Own(Base):
        """Own.

        Parameters
        ----------
        depth : float
            How deep.
        width : int
            Its own width.

        Notes
        -----
        height : no option
            But a note.
        """

        depth: float = 0.5

    Base.__annotations__ = {"width": int, "height": int}
    Own.__annotations__ = {"depth": float}
    assert [(one.assignment, one.type, one.description) for one in fields_of(Own)] == [
        ("width=3", "whole number", "Its own width."),
        ("height=4", "whole number", "How wide and how high it is."),
        ("depth=0.5", "number", "How deep."),
    ]


def test_the_page_of_options_is_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "options", "--md") == 0
    page = capsys.readouterr().out
    assert (ROOT / "docs" / "options.md").read_text() == page, "write it anew: sp list options --md > docs/options.md"


def test_the_page_of_keys_is_as_it_is_written_and_names_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "keys", "--md") == 0
    page = capsys.readouterr().out
    assert (ROOT / "docs" / "sweep-keys.md").read_text() == page, (
        "write it anew: sp list keys --md > docs/sweep-keys.md"
    )
    for key in (*TOP_FIELDS, *PAIR_FIELDS, *TASK_KEYS, *CELL_KEYS):
        assert f"| `{key}{'OPTION' if key.endswith('.') else ''}` |" in page


def test_every_default_of_a_key_may_be_written_out(tmp_path: Path) -> None:
    """A file that says every default is the file that says none of them."""
    top, _, tasks, cells = (
        {field.name: yaml.safe_load(field.default) for field in item.fields if field.default is not None}
        for item in items("keys")[:4]
    )
    asked = {"task": "needle", "tokens": "1k", "examples": 1}
    spelt = {**top, "tasks": {**{k: v for k, v in tasks.items() if v is not None}, **asked}, "cells": cells}
    read = []
    for text in (spelt, {"tasks": asked, "cells": {"scorer": "auto"}}):
        (tmp_path / "same.yaml").write_text(yaml.safe_dump(text))
        read.append(load_sweep(tmp_path / "same.yaml"))
    assert read[0] == read[1]
    assert (read[0].runs[0].tokens, read[0].name) == (1024, "same")
