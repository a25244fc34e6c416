"""`sp report --pages`: what records say goes between the marks of pages and folders, all of them or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_headline import record, rows

from sp import cli
from sp.bench.record import reads_all
from sp.errors import ConfigError
from sp.kernels.hashing import kernel_hash
from sp.studies.pages.report import write_pages
from sp.studies.tables.headline import NOTHING, first_result
from sp.studies.tables.page import PARTS, fill
from sp.studies.tables.speed_table import MODEL, OURS, whole_models

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


def test_figures_of_older_kernels_are_marked_and_say_when_they_were_measured() -> None:
    part = next(part for part in PARTS if part.make is whole_models)
    sources = ["rms_norm.cu"]
    config = OURS | {"path": "sm_90a", "prompt_tokens": 8192}
    of_today = {
        "kernels": sources,
        "kernel_hash": kernel_hash(sources),
        "commit": "1234567",
        "date": "2026-11-28T01:02",
    }
    old = {"kernels": sources, "kernel_hash": "0", "commit": "abcdef012+", "date": "2026-11-20T01:02"}
    gone = {"kernels": ["gone.cu"], "kernel_hash": "0", "commit": "fedcba9", "date": "2026-11-22T01:02"}
    peer = MODEL | {"engine": "llama.cpp", "prompt_tokens": 8192, "batch": None, "ubatch": None, "build": "abc"}
    speeds = [
        (config, 9000.0, of_today),
        (config | {"prompt_tokens": 32768}, 8000.0, old),
        (config | {"prompt_tokens": 131072}, 7000.0, gone),
        (peer, 1000.0, {"kernels": [], "kernel_hash": "0"}),
    ]
    records = [
        {"bench": "prefill", "config": keys, "metrics": {"tok_s": rate}, "samples": [rate]} | facts
        for keys, rate, facts in speeds
    ]
    page = fill(f"{part.begin}\n{part.end}", records)
    found = [[cell.strip() for cell in line.split("|")[2:4]] for line in page.splitlines() if line.startswith("| pre")]
    assert found == [["9,000", "1,000"], ["8,000 †", ""], ["7,000 †", ""]]
    assert page.count("\n† ") == 1
    assert "† Measured 2026-11-20 to 2026-11-22 (commits abcdef0, fedcba9);" in page
    assert "†" not in fill(f"{part.begin}\n{part.end}", records[:1])


def test_nothing_is_written_unless_all_can_be(tmp_path: Path) -> None:
    good, bad, binary = tmp_path / "good.md", tmp_path / "bad.md", tmp_path / "binary.md"
    good.write_text(PAGE)
    bad.write_text(f"{PART.begin}\n")
    binary.write_bytes(b"\xff\xfe")
    (tmp_path / "empty").mkdir()
    for page, why in (
        (bad, "once each"),
        (binary, "not UTF-8 text"),
        (tmp_path / "missing.md", "cannot read"),
        (tmp_path / "empty", "no page below"),
    ):
        with pytest.raises(ConfigError, match=why):
            write_pages([RECORDS], [good, page])
        assert good.read_text() == PAGE


@pytest.mark.parametrize(
    "rule", [{"asked_density": 0.05}, {"asked_sparse": "skip:0.05"}, {"asked_sparse": "blocks:64"}]
)
def test_a_prefill_by_a_sparse_rule_is_in_no_row_of_dense_ones(rule: dict[str, object]) -> None:
    config = {**OURS, "prompt_tokens": 131072, "path": "sm_90a"}
    facts = {"bench": "prefill", "samples": [1], "kernels": [], "kernel_hash": kernel_hash([])}
    dense, other = (
        {**facts, "config": keys, "metrics": {"tok_s": rate}}
        for keys, rate in ((config, 1000.0), (config | rule, 9999.0))
    )
    assert "| 1,000 |" in whole_models([dense, other])
    assert "9,999" not in whole_models([dense, other])
    assert [reads_all(each["config"]) for each in (dense, other)] == [True, False]
