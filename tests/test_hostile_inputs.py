"""YAML and JSON that nobody should have written: one line with file and line number, and no more work than a limit."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_runs
import pytest
from fuzz_texts import read_whole, try_many
from input_cases import ASKED, CASES, CLOSING, HEAD, PLAN, RULER, SWEEP, SWEPT, Case

from sp import cli
from sp.errors import ConfigError
from sp.evals.formats.records import FORMATS, recognise
from sp.json_lines import parse_json, parse_object, read_jsonl
from sp.named import MOST_BYTES, read_value
from sp.scoring.attention.heads import HeadMap
from sp.session.measured import read_break_evens
from sp.studies.board.entries import read_board
from sp.studies.pages.report import write_report
from sp.studies.sweep.sweep import load_sweep
from sp.studies.training import load_plan


def test_mutations_are_read_or_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = try_many(160, 1)
    assert not found.faults, str(found)
    assert found.read > 10
    assert found.refused > 50


def test_damaged_runs_are_drawn_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = fuzz_runs.try_many(40, 0)
    assert not found.faults, str(found)
    assert min(found.read, found.refused) > 5


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_mutated_is_read_when_it_is_whole(tmp_path: Path, case: Case) -> None:
    read_whole(case, tmp_path / case.file)


def put(path: Path, *values: Any) -> Path:
    """JSON lines, as ASCII; texts as they are."""
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in values))
    return path


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(9)
)
HUNDRED = f"[{', '.join(map(str, range(100)))}]"
FOUR = f"grid: {{keep_ratio: {HUNDRED}, seed: {HUNDRED}, scorer.queries: {HUNDRED}, scorer.pool: {HUNDRED}}}"
WRONG = [
    ("seed: [0, 1]", "seed: &r [*r]", r"line 10: an alias contains itself, or is nested more than 32 deep"),
    ("full: true", "full: &r {a: *r}", r"line 2: an alias contains itself"),
    ("full: true", LAUGHS, r"line \d+: aliases expand to more than 20,000 values"),
    ("task.seed: 1", "task.seed: !!timestamp 2001-01-01", r"line 6: !!timestamp is not supported"),
    ("task.seed: 1", "task.seed: 2001-01-01", r"line 6: .* must be int, not '2001-01-01'"),
    ("task.seed: 1", "task.seed: !!int abc", r"line 6: abc cannot be read as int"),
    ("task.seed: 1", "task.seed: 1:30", r"line 6: .* must be int, not '1:30'"),
    ("task.seed: 1", "task.seed: " + "9" * 6000, r"line 6: 9{79}… cannot be read as int"),
    ("task.seed: 1", "task.seed: 99999999999999999999", r"line 6: 9{20} is beyond the range of numbers"),
    ("task.seed: 1", "task.seed: .inf", r"line 6: .inf is beyond the range of numbers"),
    ("task.seed: 1", "task.seed: !!bool 7", r"line 6: 7 cannot be read as bool"),
    ("task.seed: 1", '"\\ud800": 1', r"line 6: half a surrogate pair"),
    ("task.seed: 1", '"\\U00110000": 1', r"line 6: not YAML"),
    ("task.seed: 1", "x\x01: 1", r"line 6: not YAML \(a character that is not allowed\)"),
    ("task.seed: 1", "? [a]\n    : 1", r"line 6: a list or mapping stands where a text or a number is expected"),
    ("name: x", "%YAML 1." + "9" * 6000 + "\n---\nname: x", r"line 1: not YAML"),
    ("name: x", "name: " + "[" * 5000, r"line 1: not YAML \(nested more than 32 deep\)"),
    ("name: x", f"name: [{'1,' * 30_000}]", r"line 1: not YAML \(more than 20,000 values\)"),
    ("name: x", "name: " + "x" * MOST_BYTES, r"x.yaml has more than 256 KiB"),
    ("examples: 20", "examples: 1000000000", r"line 7: examples must be at most 1,000,000, not 1000000000"),
    ("examples: 20", "examples: 1e9", r"line 7: examples must be int, not '1e9'"),
    ("examples: 20\n    per_run: 5", "examples: 900000\n    per_run: 1", r"more than 100,000 runs"),
    (
        "grid: {scorer: [tail, {name: tail, queries: 24}, random], keep_ratio: [0.1, 0.25]",
        FOUR[:-1],
        "than 2,000 cells",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG, ids=[new[:20] for _, new, _ in WRONG])
def test_a_sweep_file_is_counted_before_it_is_built(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SWEEP
    path = tmp_path / "x.yaml"
    path.write_text(SWEEP.replace(old, new, 1))
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=message) as told:
        load_sweep(path)
    assert time.perf_counter() - start < 4
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 300


def test_a_sweep_within_the_limits_is_as_it_was(tmp_path: Path) -> None:
    """By hand: 2 tasks x 2 lengths x 20 examples in blocks of 5; 2 x (3 x 2 x 2) cells and 2 more."""
    path = tmp_path / "x.yaml"
    path.write_text(SWEEP)
    runs = load_sweep(path).runs
    assert len(runs) == 2 * 2 * 4
    assert len(runs[0].cells) == 2 * 3 * 2 * 2 + 2
    assert read_value("{a: &x [0.1, 1e3, 1.5e+3], b: *x, c: ~, d: on}", "x") == {
        "a": [0.1, "1e3", 1500.0], "b": [0.1, "1e3", 1500.0], "c": None, "d": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"), [("n: 4", "n: &r [*r]"), ("n: 4", "n: !!int x"), ("n: 4", "n: 0b"), ("n: 4", "n: 4e9")]
)
def test_a_training_file_likewise(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(PLAN.replace(old, new))
    with pytest.raises(ConfigError, match=r"^x\.yaml, line 4: "):
        load_plan(path)


ROW = ASKED[1]
HALF = '{"bench": "ttft", "gpu": "\\ud800"}'
DEEP = '{"bench": ' + "[" * 500 + "]" * 500 + "}"
LONG = '{"bench": "ttft", "config": {"prompt_tokens": ' + "9" * 6000 + "}}"


def report(path: Path) -> object:
    """`sp report` of one file."""
    return write_report([path], path.parent / "out")


def ruler(path: Path) -> object:
    """What `sp eval file` reads of a file before models are loaded."""
    return FORMATS.build(recognise(path), {"path": str(path)}).check(9)  # type: ignore[func-returns-value]


def evens(path: Path) -> object:
    """Break-evens of a file of records."""
    return read_break_evens(path, "t", "d", "m", None)


LINES: list[tuple[Callable[[Path], object], tuple[Any, ...], str]] = [
    (ruler, (RULER | {"input": "\ud800\nx"},), "line 1: input has half a surrogate pair at character 0"),
    (ruler, (RULER, RULER | {"outputs": 3}), "line 2: needs `input`"),
    (ruler, (RULER, DEEP), "line 2: nested more than 64 deep"),
    (ruler, (RULER, LONG), "line 2: not a readable JSON object"),
    (evens, (HALF,), "line 1: half a surrogate pair"),
    (evens, (DEEP,), "line 1: nested more than 64 deep"),
    (evens, ('{"bench": ' + "[" * 10**5,), "line 1: nested too deeply"),
    (evens, (LONG,), "line 1: not a readable JSON object"),
    (evens, ({"bench": "ttft"},), "line 1: config must be an object, not missing"),
    (evens, ({"bench": "ttft", "config": {}, "metrics": {}, "samples": []},), "line 1: cpu must be a text"),
    (report, (HEAD, ROW | {"schema": 1, "kind": "row", "run": "a", "cell": "0"}, CLOSING), "line 2: cell must be a wh"),
    (report, (*SWEPT[:-1], CLOSING | {"session": "t"}), "line 14: the session of this run has no line before it"),
    (report, (*SWEPT[:-1], CLOSING | {"models": {"target": {"file": 3}}}), "line 14: models: target: file must be a t"),
    (report, (ROW, ROW | {"correct": 2}), "line 2: correct must be 0 or 1, not a number"),
    (report, (ROW, {name: value for name, value in ROW.items() if name != "keep_ratio"}), "line 2: keep_ratio must be"),
    (report, (ROW, ASKED[0] | {"keep_ratio": 0.5}), "line 2: cell -1 is the full prefill"),
    (report, (ROW, ROW | {"ttft_s": "fast"}), "line 2: ttft_s must be a number of at least 0, not another text"),
    (report, (ROW, ROW | {"depth": 7}), "line 2: depth must be a number from 0 to 1, not another number"),
    (report, ({"bench": "ttft", "config": {"keep_ratio": []}},), "record 1: metrics must be an object, not missing"),
    (report, ({"bench": "verify", "config": {}, "metrics": {}, "samples": [], "gpu": "x"},), "record 1: config: model"),
    (lambda path: read_board([path]), (ROW, ROW | {"scorer": ["tail"]}), "line 2: scorer must be a text"),
    (lambda path: read_board([path]), (ROW, ROW | {"models": {"target": {}}}), "line 2: models: target: file must be"),
    (HeadMap.load, ('{"schema": "sp-head-map/1"}',), "model must be a text .* make a map of heads with sp heads"),
    (HeadMap.load, ({"schema": "sp-head-map/1", "model": "m", "made": {}, "scores": {"0": []}},), "scores: 0 must be"),
    (
        HeadMap.load,
        ({"schema": "sp-head-map/1", "model": "m", "made": {}, "scores": {"-1": [1]}},),
        "from layer numbers to lists",
    ),
]


@pytest.mark.parametrize(("read", "lines", "message"), LINES, ids=[message[:24] for _, _, message in LINES])
def test_a_bad_record_is_named_by_file_and_line(
    tmp_path: Path, read: Callable[[Path], object], lines: tuple[Any, ...], message: str
) -> None:
    path = put(tmp_path / "x.jsonl", *lines)
    with pytest.raises(ConfigError, match=message) as told:
        read(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)
    assert len(str(told.value).replace(str(path), "")) < 300


def test_json_is_read_as_python_reads_it_but_for_what_is_refused(tmp_path: Path) -> None:
    value = {"a": [1, -2.5, 1 << 62, "\U0001f600\u2028", None, True, {}], "b": {"": 1e300}}
    assert parse_object(json.dumps(value).encode(), "x") == value
    assert parse_json(b"[NaN, -Infinity]", "x") == [None, None]
    nested = json.loads("[" * 64 + "]" * 64)
    assert parse_json(json.dumps(nested).encode(), "x") == nested
    with pytest.raises(ConfigError, match="x: nested more than 64 deep"):
        parse_json(json.dumps([nested]).encode(), "x")
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xe2\x80\xa8"}\n\n')
    assert list(read_jsonl(path)) == [{"a": 1}, {"a": "\u2028"}]
    path.write_bytes(b'{"a": 1}\n\n{"a": 2}\n')
    with pytest.raises(ConfigError, match="line 2: not a JSON object"):
        list(read_jsonl(path))


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("x.yaml", SWEEP.replace("seed: 1", "seed: !!int abc"), ["sweep", "--dry-run"]),
        ("x.jsonl", DEEP + "\n", ["report"]),
        ("x.jsonl", json.dumps({"kind": "row", "schema": 1}) + "\n[" * 3 + "\n", ["eval", "board", "-o", "page.md"]),
        ("x.jsonl", '{"input": "\\ud800", "outputs": []}\n', ["eval", "file"]),
    ],
)
def test_commands_end_with_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    monkeypatch.setattr(sys, "argv", ["sp", *command, name])
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = capsys.readouterr()
    assert end.value.code == 2
    assert told.err.startswith("sp: ")
    assert told.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_what_may_be_missing_or_null_is_no_fault(tmp_path: Path) -> None:
    head = {name: value for name, value in HEAD.items() if name != "commit"}
    path = put(tmp_path / "x.jsonl", head, *SWEPT[1:])
    assert read_board([path]).facts["commit"] == "None"
    config = {"target": "t", "drafter": "d", "vram": None, "prompt_tokens": 1000, "keep_ratio": 0.1}
    times = {"ttft_s": 1.0, "full_ttft_s": 2.0, "full_runs": None}
    path = put(
        path,
        {"bench": "ttft", "config": config, "metrics": times, "samples": [1, 2], "gpu": None, "cpu": "m", "cores": 2},
    )
    (even,) = read_break_evens(path, "t", "d", "m-2core", None)
    assert (even.tokens, even.samples) == (1000, 1)
