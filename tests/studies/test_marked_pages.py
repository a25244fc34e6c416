"""`sp report --pages`: what records say goes between the marks of pages and folders, all of them or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_headline import record, rows

from sp import cli
from sp.errors import ConfigError
from sp.studies.pages.marked_pages import write_pages
from sp.studies.tables.first_result import first_result
from sp.studies.tables.headline import NOTHING
from sp.studies.tables.page import PARTS

PART = next(part for part in PARTS if part.make is first_result)
PAGE = f"before\n{PART.begin}\nold\n{PART.end}\nafter\n"


RECORDS = Path(__file__).parents[2] / "results" / "nvidia-h200" / "ttft.jsonl"


def test_the_longest_prompt_of_the_most_measured_target() -> None:
    found = first_result(
        [
            record(32768, 0.05, 0.5),
            record(131072, 1.0, 14.0),
            record(131072, 0.05, 1.6, density=0.24),
            record(131072, 0.05, 9.9),
            record(131072, 0.05, 1.0),
            record(131072, 0.05, 0.9, vram="23g"),
            record(131072, 0.05, 0.2, scorer="random", drafter=None, density=None),
            record(131072, 0.2, 3.0),
            record(262144, 0.05, None),
            record(262144, 0.05, 2.0, target="other.synthetic"),
        ]
    )
    assert rows(found) == [
        ["131,072 tokens", "first token after (s)", "against our full prefill", "peak memory (GiB)"],
        ["`sp`, full prefill", "14.0", "1.0x", "20.0"],
        ["`sp`, keep 0.05, `tail`, density 0.05", "1.00", "14.0x", "20.0"],
        ["`sp`, keep 0.05, `tail`, density 0.24", "1.60", "8.8x", "20.0"],
    ]
    assert "medians of 3 runs" in found
    assert first_result([record(32768, 0.2, 0.5)]) == NOTHING


def test_pages_and_folders_of_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "docs"
    (folder / "results").mkdir(parents=True)
    first, second, third = tmp_path / "README.md", folder / "results" / "a.md", folder / "b.md"
    for path, text in ((first, PAGE), (second, PAGE), (third, "no marks\n")):
        path.write_text(text)
    monkeypatch.setattr("sys.argv", ["sp", "report", str(RECORDS), "--pages", str(first), "--pages", str(folder)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    said = capsys.readouterr().out
    assert str(first) in said
    assert str(second) in said.replace("\n", "")
    assert str(third) not in said
    for path in (first, second):
        assert path.read_text().startswith(f"before\n{PART.begin}\n| 131,072 tokens |")
        assert path.read_text().endswith(f"{PART.end}\nafter\n")
    assert third.read_text() == "no marks\n"
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "docs"}


def test_nothing_is_written_unless_all_can_be(tmp_path: Path) -> None:
    good, bad, binary = tmp_path / "good.md", tmp_path / "bad.md", tmp_path / "binary.md"
    good.write_text(PAGE)
    bad.write_text(f"{PART.begin}\n")
    binary.write_bytes(b"\xff\xfe")
    (tmp_path / "empty").mkdir()
    for page, why in (
        (bad, "once each"),
        (binary, "no UTF-8 text"),
        (tmp_path / "missing.md", "cannot read"),
        (tmp_path / "empty", "no page below"),
    ):
        with pytest.raises(ConfigError, match=why):
            write_pages([RECORDS], [good, page])
        assert good.read_text() == PAGE
