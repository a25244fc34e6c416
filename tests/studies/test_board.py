"""The leaderboard's entries: what is compared with what, what is never mixed, and how each is made anew."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from board_records import NEW, OLD, row, rows, write_sweep

from sp import cli
from sp.errors import ConfigError
from sp.evals.summary import paired_difference, wilson
from sp.session.loaded import embedded
from sp.studies.board.entries import Board, BoardEntry, command_of, read_board
from sp.studies.board.html import commands, matrices
from sp.studies.sweep.provenance import files_sha256


def one(board: Board, **wanted: object) -> BoardEntry:
    [found] = [each for each in board.entries if all(getattr(each, key) == value for key, value in wanted.items())]
    return found


def test_an_entry_is_what_its_rows_say(tmp_path: Path) -> None:
    listed = [
        *rows("full", "1111111110"), *rows("tail queries=24", "11110000-0"), *rows("oracle", "1111111100"),
        *rows("target_attention", "1111000000"), *rows("random", "0000000001"),
    ]  # fmt: skip
    board = read_board([write_sweep(tmp_path / "a.jsonl", [listed])])
    assert [(each.kind, each.scorer) for each in board.entries] == [
        ("full", "full prefill"), ("scorer", "tail queries=24"), ("oracle", "target_attention"), ("oracle", "oracle"),
        ("control", "random"),
    ]  # fmt: skip
    tail = one(board, scorer="tail queries=24")
    assert (tail.n, tail.not_run, tail.accuracy, tail.evidence) == (9, 1, 4 / 9, 4 / 9)
    assert (tail.low, tail.high) == wilson(4, 9)
    mine, full, oracle = [1, 1, 1, 1, 0, 0, 0, 0, 0], [1] * 8 + [0], [1] * 8 + [0]
    assert tail.against_full == paired_difference(mine, full)
    assert tail.oracle == "oracle"
    assert tail.against_oracle == paired_difference(mine, oracle)
    whole = one(board, kind="full")
    assert (whole.keep, whole.against_full, whole.against_oracle) == (None, None, None)
    assert board.facts == {
        "sweep": "made-up", "machine": "a <fast> one, 2 cores", "commit": "1234567", "date": "2026-11-22",
        "selector": "top_chunks",
    }  # fmt: skip


def test_an_example_that_was_measured_twice_counts_once_and_the_later_stands(tmp_path: Path) -> None:
    runs = [[*rows("full", "11"), *rows("tail", "00")], [*rows("full", "11"), *rows("tail", "11")]]
    board = read_board([write_sweep(tmp_path / "a.jsonl", runs)])
    assert [(each.kind, each.n, each.accuracy) for each in board.entries] == [("full", 2, 1.0), ("scorer", 2, 1.0)]


def test_pairs_with_the_same_names_are_never_mixed(tmp_path: Path) -> None:
    paths = [
        write_sweep(tmp_path / "old.jsonl", [[*rows("full", "11"), *rows("oracle", "11"), *rows("tail", "11")]]),
        write_sweep(tmp_path / "new.jsonl", [[*rows("full", "00"), *rows("tail", "00")]], NEW),
    ]
    board = read_board(paths)
    assert len(board.pairs) == 2
    shares = {(each.pair, each.kind): each.accuracy for each in board.entries}
    old, new = "target.gguf (aaaaaaaaaaaa) with drafter.gguf (bbbbbbbbbbbb)", "target.gguf (cccccccccccc)"
    assert shares[old, "scorer"] == 1.0
    [other] = [pair for pair in board.pairs if pair.startswith(new)]
    assert shares[other, "scorer"] == 0.0
    assert one(board, pair=other, kind="scorer").against_oracle is None, "the oracle was the other pair's"
    assert [matrix.pair for pair in board.pairs for matrix in matrices(board, pair)] == [old, other]


def test_weights_that_never_saw_the_task_are_one_scorer_and_others_are_told(tmp_path: Path) -> None:
    files = {f"w/probe-without-{task}.safetensors": digit * 64 for task, digit in (("needle", "1"), ("vt", "2"))}

    def probe(task: str, label: str) -> list[dict[str, object]]:
        return rows(f"probe weights=w/probe-without-{task}.safetensors", "11", task=label)

    listed = [probe("needle", "needle"), probe("vt", "vt shots=0"), probe("vt", "needle")]
    full = [*rows("full", "11"), *rows("full", "11", task="vt shots=0")]
    board = read_board([write_sweep(tmp_path / "a.jsonl", [full, *listed], files=files)])
    found = {(each.task, each.scorer, each.trained, each.weights) for each in board.entries if each.kind != "full"}
    slot = "probe weights=w/probe-without-{task}.safetensors"
    assert found == {
        ("needle", slot, "this task left out", "11111111"),
        ("vt shots=0", slot, "this task left out", "22222222"),
        ("needle", "probe weights=w/probe-without-vt.safetensors", "only vt left out", "22222222"),
    }
    [matrix] = matrices(board, next(iter(board.pairs)))
    line = next(line for line in matrix.lines if line.scorer == slot)
    assert set(line.entries) == {"needle", "vt shots=0"}
    [command] = commands(board, line)
    assert shlex.split(command)[:5] == ["sp", "eval", "tasks", "-t", "needle,vt[shots=0]"]
    assert "probe[weights=w/probe-without-{task}.safetensors]" in shlex.split(command)
    again = write_sweep(tmp_path / "b.jsonl", [probe("needle", "needle")], files=dict.fromkeys(files, "3" * 64))
    retrained = read_board([tmp_path / "a.jsonl", again])
    assert {each.weights for each in retrained.entries if each.scorer == slot} == {"11111111", "22222222", "33333333"}
    [matrix] = matrices(retrained, next(iter(board.pairs)))
    assert sum(line.scorer == slot for line in matrix.lines) == 2, "neither hides the other"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, []),
        ({"selector": "sentence neighbours=0 sink=4"}, ["--selector", "sentence[neighbours=0 sink=4]"]),
        ({"seed": 3, "kv": "q4_0", "rotate": True}, ["--kv", "q4_0", "--seed", "3"]),
        ({"kv": "q4_0", "rotate": False}, ["--kv", "q4_0", "--no-rotate"]),
        ({"rotate": True}, ["--rotate"]),
        ({"positions": "contiguous"}, ["--positions", "contiguous"]),
        ({"thinking": "on", "task": "vt thinking=on"}, ["--thinking", "on"]),
    ],
)
def test_commands_say_what_differs(given: dict[str, object], words: list[str]) -> None:
    told = row("tail", 0, 1) | given
    said = shlex.split(command_of(told, [str(told["task"])], 100, OLD))
    assert [word for word in words if word not in said] == []
    assert said[4] in ("needle", "vt")
    assert said[-4:] == ["--target", "target.gguf", "--drafter", "drafter.gguf"], "it is not the embedded pair"


def test_commands_repeat_positions_whatever_the_windows_of_the_target() -> None:
    """Of a target that is not embedded it is not known whether `auto` would be original."""
    command = command_of(row("tail", 0, 1), ["needle"], 9, OLD)
    assert "--positions original" in command
    embedded_pair = {"target": {"sha256": files_sha256([embedded("target")]), "file": "target.gguf"}}
    assert "--positions" not in command_of(row("tail", 0, 1), ["needle"], 9, embedded_pair)
    assert "--positions contiguous" in command_of(
        row("tail", 0, 1) | {"positions": "contiguous"}, ["needle"], 9, embedded_pair
    )


@pytest.mark.parametrize(
    "given", [{"decode": "dflash"}, {"mapping": "text_rejoin"}, {"scorer": "layer_subset layers=(1, 2)"}]
)
def test_what_the_command_line_cannot_say_is_left_to_the_sweep(given: dict[str, object]) -> None:
    told = row("tail", 0, 1) | given
    assert command_of(told, ["needle"], 9, {}, "study") == "sp sweep study.yaml --only 'needle/8192/*'"
    assert command_of(told, ["needle"], 9, {}) == ""


def test_a_command_makes_its_entry_anew(sweep_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["tasks.examples=1", "cells.keep_ratio=0.4", "cells.scorer=tail"]
    run(monkeypatch, "sp", "sweep", str(sweep_file), *(word for one in few for word in ("--set", one)))
    board = read_board([tmp_path / "out"])
    entry = one(board, scorer="tail", keep=0.4)
    command = shlex.split(entry.command)
    for role in ("target", "drafter"):  # records have names of files, not their folders
        place = command.index(f"--{role}") + 1
        [path] = [
            word
            for word in sweep_file.read_text().replace(",", " ").replace("}", " ").split()
            if command[place] in word
        ]
        command[place] = path
    out = tmp_path / "again.jsonl"
    run(monkeypatch, *command, "--device", "cpu", "--out", str(out))
    again = read_board([out])
    found = one(again, scorer="tail", keep=0.4)
    assert (found.pair, found.task, found.n, found.accuracy) == (entry.pair, entry.task, 1, entry.accuracy)
    assert found.row["answer"] == entry.row["answer"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", list(words))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code in (0, None)


def test_nothing_to_show_is_told(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "a.jsonl", [])
    with pytest.raises(ConfigError, match="there is no finished run"):
        read_board([path])


def test_rows_of_evals_say_their_options_and_files_of_unknown_models_stay_apart(tmp_path: Path) -> None:
    def plain(name: str, models: object, **more: object) -> Path:
        lines = [*rows("full", "11", **more), *rows("tail", "10", **more)]
        for line in lines:
            del line["kind"], line["schema"]
        told = {"models": models} if models else {}
        (tmp_path / name).write_text("".join(json.dumps({**line, **told}) + "\n" for line in lines))
        return tmp_path / name

    known = read_board([plain("a.jsonl", OLD), plain("b.jsonl", OLD, options="filler=noise")])
    assert len(known.pairs) == 1
    assert {entry.task for entry in known.entries} == {"needle", "needle filler=noise"}
    assert "'needle[filler=noise]'" in one(known, task="needle filler=noise", scorer="tail").command
    unknown = read_board([plain("c.jsonl", None), plain("d.jsonl", None)])
    assert sorted(unknown.pairs) == [f"models unknown ({tmp_path}/{name}.jsonl)" for name in "cd"]
