"""Result files: whole runs or nothing, repaired where a process was killed, refused where they are something else."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sp.errors import ConfigError
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
        ('{"bench":"ttft"}\n', "line 1: no result of sp sweep"),
        ("[]\n", "line 1: no result of sp sweep"),
        ("hello\n", "line 1: not JSON"),
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


def sweep(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sp.cli", "sweep", *map(str, arguments)]


def test_kill_9_in_the_middle_loses_nothing_finished(sweep_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "rows.jsonl"
    process = subprocess.Popen(sweep(sweep_file), stdout=subprocess.DEVNULL, env={**os.environ, "SP_COMMIT": "one"})
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
    resumed = {**os.environ, "SP_COMMIT": "two"}
    again = subprocess.run([*sweep(sweep_file), "--json"], capture_output=True, text=True, check=False, env=resumed)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["already_done"] == len(finished)
    assert "runs done at one stand" in again.stderr
    assert path.read_bytes().startswith(before)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    closed = [line["run"] for line in lines if line["kind"] == "run"]
    assert len(closed) == len(set(closed)) == 3
    cells = [(line["run"], line["example"], line["cell"]) for line in lines if line["kind"] == "row"]
    assert len(cells) == len(set(cells)) == 3 * 2 * 6
    assert not make_plan(load_sweep(sweep_file)).left


def test_duckdb_reads_the_files_as_the_docstring_says(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    fill(tmp_path / "rows-1of2.jsonl", "a")
    fill(tmp_path / "rows-2of2.jsonl", "b")
    query = f"""SELECT cell, count(*) AS n, avg(correct) AS accuracy
                FROM read_json_auto('{tmp_path}/*.jsonl', union_by_name = true)
                WHERE kind = 'row' GROUP BY ALL ORDER BY ALL"""
    assert duckdb.sql(query).fetchall() == [(0, 2, 1.0), (1, 2, 1.0), (2, 2, 1.0)]
