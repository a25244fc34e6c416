"""`sp bench llama-cpp` with programs that behave like llama-bench of several versions, and badly."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke

from sp.bench.llama_cpp import bench_command, best_peer, describe_peer, parse
from sp.bench.record import file_facts
from sp.cli import main
from sp.errors import ConfigError
from sp.models.synthetic.synthetic import write_synthetic
from sp.session.loaded import embedded

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
    return invoke(["bench", "llama-cpp", *given])


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
    assert made["prefill"]["config"]["engine"] == "llama.cpp"
    assert made["prefill"]["config"]["prompt_tokens"] == 1024
    assert made["prefill"]["metrics"]["tok_s"] == 2048.0
    assert made["prefill"]["samples"] == [1024 / 0.4, 1024 / 0.5, 1024 / 0.9]
    assert made["decode"]["config"]["model"] == "model.gguf"
    assert "-b" not in given


def test_every_setting_of_a_grid_is_recorded_and_the_best_is_named(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    program = fake(
        "def values(flag):\n    return [int(n) for n in sys.argv[sys.argv.index(flag) + 1].split(',')]\n"
        "tests = [{'n_prompt': p, 'n_gen': 0, 'n_batch': b, 'n_ubatch': u, 'samples_ns': [int(1e9 * p / (1000 + u))]}\n"
        "         for p in values('-p') for b in values('-b') for u in values('-ub') if u <= b]\n"
        "print(json.dumps(tests))"
    )
    given = ("-p", "8k,32k", "-n", "0", "-b", "2048,8192", "-ub", "512,4096", "--record", str(tmp_path / "results"))
    done = run(program, *given, "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["tests"]
    assert [(row["test"], row["batch"], row["ubatch"]) for row in rows if row["best"]] == [
        ("pp8192", 8192, 4096),
        ("pp32768", 8192, 4096),
    ]
    (file,) = tmp_path.glob("results/*/prefill.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(records) == len({json.dumps(record["config"]) for record in records}) == 2 * 3
    grid = [(point["batch"], point["ubatch"], round(point["tok_s"])) for point in records[0]["metrics"]["grid"]]
    assert grid == [(2048, 512, 1512), (8192, 512, 1512), (8192, 4096, 5096)]
    best = best_peer(records, 32768)
    assert best is not None
    assert best["config"]["ubatch"] == 4096
    assert best_peer(records, 512) is None
    shown = run(program, *given[:-2], "-o", "md").stdout.splitlines()
    assert [line.count("*") for line in shown[2:]] == [0, 0, 1, 0, 0, 1]


def test_the_file_is_called_by_its_shape_and_type(tmp_path: Path) -> None:
    assert file_facts(embedded("target"))["type"] is not None
    assert file_facts(embedded("target"))["model"] == "target.gguf"
    write_synthetic(tmp_path / "m.gguf", "tiny-qwen35", "q4_k_m")
    assert file_facts(tmp_path / "m.gguf") == {"model": "m.gguf", "shape": "tiny-qwen35", "type": "q4_k_m"}
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert file_facts(tmp_path / "broken.gguf") == {"model": "broken.gguf", "shape": None, "type": None}


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
        ("pass", "usage: cat [file]", "is not llama-bench"),
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
        (tmp_path / "llama-bench", "none.gguf", "pass a GGUF file"),
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
    found = describe_peer(test, {"model": "m.gguf", "shape": None, "type": None})
    assert found["metrics"]["tok_s"] == 2048.0
    assert found["config"]["build"] == "unknown"
