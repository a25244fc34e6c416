"""Whether a task discriminates: five bars, each told by name where it is missed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from board_records import rows, write_sweep

from sp import cli
from sp.errors import ConfigError
from sp.studies.board.entries import read_board
from sp.studies.board.verdict import Verdict, bars, chosen_tasks

GOOD = {"full": 0.9, "oracle": 0.9, "random": 0.1, "lexical": 0.1, "bm25": 0.1}


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    path = write_sweep(tmp_path_factory.mktemp("v") / "a.jsonl", [rows("full", "1")])
    return read_board([path]).entries[0]


@pytest.mark.parametrize(
    ("changed", "keep", "fails"),
    [
        ({}, 0.05, ()),
        ({"full": 0.89}, 0.05, ("full",)),
        ({"oracle": 0.89}, 0.05, ("oracle",)),
        ({"lexical": 0.11}, 0.05, ("lexical",)),
        ({"bm25": 0.11}, 0.05, ("bm25",)),
        ({"random": 0.11}, 0.05, ("random",)),
        ({"random": 0.15}, 0.1, ()),
        ({"lexical": 0.15}, 0.1, ("lexical",)),
        ({"full": None}, 0.05, ("full",)),
        ({"bm25": None}, 0.05, ("bm25",)),
        ({"full": 0.5, "oracle": 0.5, "random": 0.5, "lexical": 0.5, "bm25": 0.5}, 0.05, tuple(GOOD)),
    ],
)
def test_bars(entry, changed: dict[str, float | None], keep: float, fails: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    shares = GOOD | changed
    found = Verdict("t", 8192, keep, {name: dataclasses.replace(entry, accuracy=one) for name, one in shares.items()})
    assert found.fails == fails
    assert found.discriminating == (not fails)


def test_what_was_not_run_is_no_pass() -> None:
    assert Verdict("t", 8192, 0.05, {}).fails == tuple(bar.scorer for bar in bars(0.05))


@pytest.mark.parametrize(("forced", "keep", "crowded"), [(59, 0.05, True), (51, 0.05, False), (59, 0.1, False)])
def test_a_budget_full_of_what_must_stay_is_told(entry, forced: int, keep: float, crowded: bool) -> None:  # type: ignore[no-untyped-def]
    """Half of 0.05 of 2,048 tokens is 51.2; the full prefill has no such rows to count."""
    read = dataclasses.replace(entry, keep=keep, row={**entry.row, "forced_tokens": forced})
    whole = dataclasses.replace(entry, keep=None, row={**entry.row, "forced_tokens": 999})
    found = Verdict("t", 2048, keep, {"full": whole, "oracle": read})
    assert (found.forced, found.crowded, found.measured) == (forced, crowded, True)


def test_nothing_read_is_no_verdict(entry, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    from sp.commands.eval.tasks import show_verdicts

    none = {"full": dataclasses.replace(entry, accuracy=None)}
    show_verdicts([Verdict("t", 8192, 0.05, none)], 4, 0.05)
    shown = capsys.readouterr().out
    assert "not measured" in shown
    assert "not: full" not in shown
    assert not Verdict("t", 8192, 0.05, none).measured


def test_the_suite_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from sp.evals import TASKS

    needle = TASKS.build("needle")
    assert chosen_tasks([needle], 3) == [needle]
    monkeypatch.setattr("sp.studies.board.verdict.SUITE", "none such")
    with pytest.raises(ConfigError, match="no task of the suite none such"):
        chosen_tasks([], 3)
    monkeypatch.setattr("sp.studies.board.verdict.SUITE", "ruler")
    assert {type(one).suite for one in chosen_tasks([], 3)} == {"ruler"}
    assert all(getattr(one, "seed", 3) == 3 for one in chosen_tasks([], 3))


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "eval", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command_resumes(
    retriever_target: Path,
    retriever_drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "rows.jsonl"
    models = ["--target", retriever_target, "--drafter", retriever_drafter, "--device", "cpu"]
    common = ["discriminates", *models, "-t", "needle[value=word]", "-p", 300, "--keep-ratio", 0.3, "--out", out]
    assert call(monkeypatch, *common, "-n", 1, "--json") == 0
    first = capsys.readouterr()
    assert "1 of 1 runs remain; about" in first.err
    [found] = json.loads(first.out)["results"]
    assert (found["task"], found["tokens"], found["n"]) == ("needle value=word", 300, 1)
    assert [found[bar.scorer]["n"] for bar in bars(0.3)] == [1] * 5
    assert found["fails"] == [bar.scorer for bar in bars(0.3) if not bar.met(found[bar.scorer]["accuracy"])]
    written = out.read_bytes()
    assert call(monkeypatch, *common, "-n", 1) == 0
    shown = capsys.readouterr()
    assert "left" not in shown.err
    assert max(map(len, shown.out.splitlines())) <= 80
    assert ("discriminating" in shown.out.splitlines()[1]) == found["discriminating"]
    kept = [line for line in out.read_bytes().splitlines() if b'"kind":"session"' not in line]
    assert kept == [line for line in written.splitlines() if b'"kind":"session"' not in line]
    board = tmp_path / "board.md"
    assert call(monkeypatch, "board", out, "-o", board, "--html", tmp_path / "board.html") == 0
    assert "5 entries in" in capsys.readouterr().out
    assert "needle value=word" in board.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["discriminates", "-t", "nedle"], "did you mean 'needle'"),
        (["discriminates", "-t", "needle", "--keep-ratio", "0.1,0.2"], "--keep-ratio takes one share, e.g."),
        (["discriminates", "-t", "needle", "--selector", "top_chunks,sentence"], "--selector takes one selector"),
        (
            ["discriminates", "--selector", "top_chunks[sink=4,tail=0]"],
            "NAME=VALUE, separated by spaces, not 'sink=4,",
        ),
        (["discriminates", "-t", "needle", "--device", "gpu"], "--device is 'gpu'"),
        (["discriminates", "-t", "needle", "--devices", "x"], "--devices takes numbers of GPUs"),
        (["discriminates", "-t", "needle", "--out", "/dev/null/rows.jsonl"], "cannot write below /dev/null"),
        (["discriminates", "-t", "needle", "-p", "9999999"], "do not fit"),
        (["board", "/nowhere/rows.jsonl", "-o", "x.md"], "/nowhere/rows.jsonl is not a file or folder"),
        (["board", "README.md"], "nothing would be written"),
        (["board", "README.md", "-o", "/dev/null/x.md"], "cannot write below /dev/null"),
        (["board", "README.md", "-o", "sp"], "sp is a folder; give --out the name of a file"),
        (["tasks"], "no task is named"),
        (["tasks", "-t", "nedle"], "did you mean 'needle'"),
        (["tasks", "-t", "needle[dept=0.5]"], "did you mean 'depth'"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert call(monkeypatch, *arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert not Path("x.md").exists()


@pytest.mark.parametrize(
    ("against", "told"),
    [
        ("lookahead", "--against: these records have no row of scorer lookahead, only of tail"),
        ("tail,random", "--against takes one scorer, not 'tail,random'"),
    ],
)
def test_what_cannot_be_held_against_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], against: str, told: str
) -> None:
    path = write_sweep(tmp_path / "a.jsonl", [[*rows("full", "11"), *rows("tail", "10")]])
    assert call(monkeypatch, "board", path, "-o", tmp_path / "x.md", "--against", against) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "x.md").exists()
    assert call(monkeypatch, "board", path, "-o", tmp_path / "x.md") == 0, "the usual reference may be missing"


@pytest.mark.parametrize("lasting", [True, False])
def test_an_interrupt_says_what_stands(monkeypatch: pytest.MonkeyPatch, capsys, lasting: bool) -> None:  # type: ignore[no-untyped-def]
    from types import SimpleNamespace

    from rich.console import Console

    from sp.commands.sweep import do_runs

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sp.studies.sweep.conduct.carry_out", stop)
    plan = SimpleNamespace(remaining=[], sweep=SimpleNamespace(name="s"), path=Path("out/rows.jsonl"))
    with pytest.raises(KeyboardInterrupt):
        do_runs(plan, None, Console(stderr=True), lasting=lasting)  # type: ignore[arg-type]
    error = capsys.readouterr().err
    assert ("out/rows.jsonl; the same command resumes" in error) == lasting
    assert ("pass --out FILE to save runs" in error) != lasting
