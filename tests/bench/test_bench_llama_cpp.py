"""`sp bench llama-cpp` with programs that behave like llama-bench of several versions, and badly."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sp.bench.llama_cpp import bench_command, describe_peer, parse
from sp.cli import app, main
from sp.errors import ConfigError

OLD = "  -p, --n-prompt <n>\n  -fa, --flash-attn <0|1>   (default: 0)\n"
NEW = "  -p, --n-prompt <n>\n  -fa, --flash-attn <on|off|auto>   (default: auto)\n"
PP = {"build_commit": "abc", "backends": "CUDA", "type_k": "f16", "n_prompt": 1024, "n_gen": 0, "n_depth": 0,
      "avg_ns": 5e8, "avg_ts": 2048.0, "samples_ns": [400000000, 500000000, 900000000]}  # fmt: skip
TG = {"build_commit": "abc", "backends": "CUDA", "n_prompt": 0, "n_gen": 64, "avg_ns": 800000000, "avg_ts": 80.0}


@pytest.fixture
def fake(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Makes a program that answers --help, notes its arguments, and then does as it is told."""

    def make(body: str, usage: str = OLD) -> Path:
        program = tmp_path / "llama-bench"
        program.write_text(
            f"#!{sys.executable}\nimport json, sys, time\nfrom pathlib import Path\n"
            f"if '--help' in sys.argv:\n    print({usage!r})\n    sys.exit(0)\n"
            f"Path({str(tmp_path / 'arguments')!r}).write_text(json.dumps(sys.argv[1:]))\n{body}\n"
        )
        program.chmod(0o755)
        (tmp_path / "model.gguf").write_bytes(b"GGUF")
        return program

    return make


def run(program: Path, *arguments: str):  # type: ignore[no-untyped-def]
    given = ["--llama-bench", str(program), "-m", str(program.parent / "model.gguf"), *arguments]
    return CliRunner().invoke(app, ["bench", "llama-cpp", *given])


def test_its_tests_become_rows_and_records(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    program = fake(f"print('load_model: [cuda]')\nprint('[\\n  ' + json.dumps({PP!r}) + ',')\n"
                   f"print(json.dumps({TG!r}) + ']\\ndone')")  # fmt: skip
    done = run(program, "-p", "1k", "-n", "64", "-r", "3", "--record", str(tmp_path / "results"), "--json")
    assert done.exit_code == 0, done.output
    prompt, decode = json.loads(done.stdout)["tests"]
    assert (prompt["test"], prompt["seconds"], prompt["tok_s"], prompt["runs"]) == ("pp1024", 0.5, 2048.0, 3)
    assert (decode["test"], decode["tok_s"], decode["runs"]) == ("tg64", 80.0, 1)
    given = json.loads((tmp_path / "arguments").read_text())
    assert given[given.index("-p") + 1] == "1024"
    assert given[given.index("-fa") + 1] == "1"
    made = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("results/*/*.jsonl")}
    assert made["ttft"]["config"]["engine"] == "llama.cpp"
    assert made["ttft"]["metrics"]["ttft_s"] == 0.5
    assert made["ttft"]["samples"] == [0.4, 0.5, 0.9]
    assert made["decode"]["config"]["model"] == "model.gguf"


def test_a_later_version_is_given_words(fake) -> None:  # type: ignore[no-untyped-def]
    command = bench_command(fake("", NEW), Path("m.gguf"), [512], [], 5, "q8_0")
    assert command[command.index("-fa") + 1] == "on"
    assert command[command.index("-n") + 1] == "0"
    assert command[command.index("-ctk") + 1] == "q8_0"


@pytest.mark.parametrize(
    ("body", "usage", "said"),
    [
        ("print('ggml: out of memory', file=sys.stderr); sys.exit(3)", OLD, "status 3: ggml: out of memory"),
        ("print('| model | t/s |')", OLD, "no list of tests in JSON, but: | model | t/s |"),
        ("pass", OLD, "but: nothing"),
        ("print('[1, 2')", OLD, "no list of tests"),
        (f"print(json.dumps([{ {**PP, 'samples_ns': [], 'avg_ns': 0}!r}]))", OLD, "without one size"),
        (f"print(json.dumps([{ {**PP, 'n_gen': 8}!r}]))", OLD, "without one size"),
        (f"print(json.dumps([{ {**PP, 'samples_ns': ['x']}!r}]))", OLD, "without one size"),
        ("time.sleep(60)", OLD, "did not end within 1 s"),
        ("pass", "usage: cat [file]", "is no llama-bench"),
    ],
)
def test_what_goes_wrong_is_one_line(fake, body: str, usage: str, said: str) -> None:  # type: ignore[no-untyped-def]
    done = run(fake(body, usage), "--timeout", "1")
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)


def test_missing_programs_and_files_are_named(
    fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    fake("pass")
    for program, model, said in (
        (tmp_path / "none", "model.gguf", "cannot run"),
        (tmp_path, "model.gguf", "cannot run"),
        (tmp_path / "llama-bench", "none.gguf", "name a GGUF file"),
    ):
        argv = ["sp", "bench", "llama-cpp", "--llama-bench", str(program), "-m", str(tmp_path / model)]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr().err
        assert ended.value.code == 2
        assert said in shown
        assert shown.count("\n") == 1
    os.chmod(tmp_path / "llama-bench", 0o644)
    with pytest.raises(ConfigError, match="Permission denied"):
        bench_command(tmp_path / "llama-bench", Path("m"), [1], [], 1, "f16")


def test_versions_that_print_less_are_read_too() -> None:
    bare: dict[str, Any] = {"n_prompt": 512, "n_gen": 0, "avg_ns": 250000000}
    (test,) = parse(json.dumps([bare]), "llama-bench")
    found = describe_peer(test, "m.gguf")
    assert found["metrics"]["ttft_s"] == 0.25
    assert found["config"]["build"] == "unknown"
