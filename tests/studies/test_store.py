"""Result files: whole runs or nothing, repaired where a process was killed, refused where they are something else."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sp import cli
from sp.errors import ConfigError
from sp.studies.sweep import store
from sp.studies.sweep.conduct import make_plan
from sp.studies.sweep.store import Store, read_results, result_files, session_line
from sp.studies.sweep.sweep import load_sweep

MODELS = {"target": {"file": "t.gguf", "sha256": "aa", "template_sha256": None}}
TORN = b'{"schema":1,"kind":"row","run":"c","cell":0,"ans'


def fill(path: Path, *runs: str) -> None:
    with Store(path, session_line("s", "abc", "cpu")) as store:
        for run in runs:
            rows = [{"cell": cell, "correct": 1, "ttft_s": 0.123456} for cell in range(3)]
            store.add(run, rows, seconds=1.5, config={"keep_ratio": 0.123456}, models=MODELS)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    fill(path, "a", "b")
    found = read_results([path])
    assert list(found.runs) == ["a", "b"]
    assert [row["cell"] for row in found.all_rows()] == [0, 1, 2] * 2
    assert found.rows["a"][0] == {
        "schema": 1, "kind": "row", "run": "a", "cell": 0, "correct": 1, "ttft_s": 0.1235,
    }  # fmt: skip
    assert found.runs["a"]["config"] == {"keep_ratio": 0.123456}
    session = found.sessions[found.runs["b"]["session"]]
    assert {"commit", "date", "gpu", "cpu", "driver", "numpy"} <= set(session)
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_results([packed]).rows == found.rows
    assert result_files(tmp_path) == [packed, path]


@pytest.mark.parametrize("cut", [1, 20, 60, 200, 400])
def test_a_file_cut_off_anywhere_loses_the_unfinished_run_and_nothing_else(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl"
    fill(path, "a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert list(read_results([path]).runs) == ["a"]
    fill(path, "b")
    found = read_results([path])
    assert list(found.runs) == ["a", "b"]
    assert [len(rows) for rows in found.rows.values()] == [3, 3]
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()].count("row") == 6


def test_failures_are_kept_until_the_run_is_done(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with Store(path, session_line("s", None, "cpu")) as store:
        store.fail("a", "needle/1/0", "too long")
    assert read_results([path]).failed["a"]["error"] == "too long"
    fill(path, "a")
    assert not read_results([path]).failed


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with Store(path, session_line("s", None, "cpu")), pytest.raises(ConfigError, match="another sp sweep"):
        Store(path, session_line("s", None, "cpu"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema":2,"kind":"row"}\n', "line 1: schema 2, but this version of sp reads schema 1"),
        ('{"bench":"ttft"}\n', "line 1: not a result of sp sweep"),
        ("[]\n", "line 1: not a JSON object; name a file that sp sweep wrote"),
        ("hello\n", "line 1: not a JSON object"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_results([path])
    with pytest.raises(ConfigError, match=message):
        Store(path, session_line("s", None, "cpu"))
    assert path.read_text() == text


@pytest.mark.slow
def test_kill_9_in_the_middle_loses_nothing_finished(
    sweep_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / "rows.jsonl"
    command = [sys.executable, "-m", "sp.cli", "sweep", str(sweep_file)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "SP_COMMIT": "one"})
    deadline = time.monotonic() + 120
    while not (path.exists() and b'"kind":"run"' in path.read_bytes()):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = path.read_bytes()
    finished = set(read_results([path]).runs)
    assert 1 <= len(finished) < 3
    with path.open("ab") as file:
        file.write(TORN)
    monkeypatch.setenv("SP_COMMIT", "two")
    monkeypatch.setattr("sys.argv", ["sp", "sweep", str(sweep_file), "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    again = capsys.readouterr()
    assert not stop.value.code, again.err
    assert json.loads(again.out)["already_done"] == len(finished)
    assert "runs of other commits are reused" in again.err
    assert path.read_bytes().startswith(before)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    closed = [line["run"] for line in lines if line["kind"] == "run"]
    assert len(closed) == len(set(closed)) == 3
    cells = [(line["run"], line["example"], line["cell"]) for line in lines if line["kind"] == "row"]
    assert len(cells) == len(set(cells)) == 3 * 2 * 6
    assert not make_plan(load_sweep(sweep_file)).remaining


def documented_query(folder: Path) -> str:
    """What the module's docstring tells people to ask, of the files in a folder."""
    assert store.__doc__ is not None
    (found,) = re.findall(r'duckdb -c "(.*?)"', store.__doc__, re.DOTALL)
    return str(found).replace("sp-sweep/quickstart", str(folder))


def measured(path: Path, *runs: str) -> None:
    """Runs of three examples in two cells; of keep ratio 0.1 one in three is right, of 0.2 all."""
    with Store(path, session_line("s", "abc", "cpu")) as file:
        for run in runs:
            rows = [
                {
                    "task": "needle", "example": f"{run}-{i}", "cell": cell, "scorer": "tail", "keep_ratio": keep,
                    "status": "ok", "correct": int(i == 0 or cell == 1),
                }
                for i in range(3)
                for cell, keep in enumerate((0.1, 0.2))
            ]  # fmt: skip
            file.add(run, rows, seconds=1.0, config={}, models=MODELS)


def test_duckdb_counts_a_run_of_two_shards_once_and_none_that_was_cut_off(tmp_path: Path) -> None:
    """By hand: runs a, b, c of three examples each; b is in both files, d was cut off, and its last line torn."""
    duckdb = pytest.importorskip("duckdb")
    measured(tmp_path / "rows-1of2.jsonl", "a", "b")
    measured(tmp_path / "rows-2of2.jsonl", "b", "c", "d")
    path = tmp_path / "rows-2of2.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'"correct"', 0, whole.rindex(b'"kind":"run"'))])
    found = duckdb.sql(documented_query(tmp_path)).fetchall()
    assert found == [("needle", "tail", 0.1, 9, 3 / 9), ("needle", "tail", 0.2, 9, 1.0)]
    ours = read_results(result_files(tmp_path))
    assert sorted(ours.runs) == ["a", "b", "c"]
    assert sum(row["cell"] == 0 for row in ours.all_rows()) == 9


def test_a_packed_file_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LONGEST_LINE", 1 << 16)
    path = tmp_path / "rows.jsonl.gz"
    fill(tmp_path / "rows.jsonl", "a")
    session = (tmp_path / "rows.jsonl").read_bytes().partition(b"\n")[0] + b"\n"
    for raw in (session + (session * 3000) * 3, b" " * (1 << 20)):
        path.write_bytes(gzip.compress(raw, 9))
        with pytest.raises(ConfigError, match=r"rows\.jsonl\.gz: a line has more than"):
            read_results([path])
    path.write_bytes(gzip.compress(session)[:10] + b"\xff" * 50)
    with pytest.raises(ConfigError, match=r"cannot read .*rows\.jsonl\.gz"):
        read_results([path])
