"""`sp bench model` on the CPU: what is timed, what is printed, what is refused; and the roofline of records."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke
from dry_walk import walked

from sp import cli
from sp.bench.model import SKIPPED, Timing, Trial, describe, run_tests
from sp.bench.record import is_current, newest
from sp.errors import ConfigError
from sp.models import load_model, prefill
from sp.models.shards.load_shards import load_shards
from sp.parallel.host import HostGroup
from sp.scoring.sparse import Sparse
from sp.session.loaded import embedded
from sp.studies.plots.roofline import draw, points, roof

CPU = ("--device", "cpu")
FACTS = {"model": "m", "shape": "tiny-qwen3", "type": "q8_0"}


@pytest.fixture(scope="module")
def model():
    return load_model(embedded("drafter"))


def test_names_are_those_of_llama_bench() -> None:
    assert [t.name for t in (Trial(512), Trial(0, 64), Trial(4096, 64))] == ["pp512", "tg64", "tg64@d4096"]
    assert Trial(512, sparse=Sparse("density:0.05")).name == "pp512 sparse 0.05"
    assert [t.tokens for t in (Trial(512), Trial(4096, 64))] == [512, 64]


def test_every_test_has_its_samples(model) -> None:
    ticks: list[str] = []
    tests = [Trial(70), Trial(0, 5), Trial(30, 4)]
    timings = list(run_tests(model, tests, 3, chunk=32, progress=ticks.append))
    assert [t.test for t in timings] == tests
    assert ticks == [t.name for t in tests for _ in range(3)]
    for timing in timings:
        assert len(timing.seconds) == len(timing.rates) == 3
        assert min(timing.seconds) > 0
        assert timing.peak_bytes == 0


def test_a_sparse_prefill_tells_its_density(model) -> None:
    (timing,) = run_tests(model, [Trial(2000, sparse=Sparse("density:0.1"))], 1)
    assert len(timing.densities) == model.config.layers - 1
    assert 0.1 < max(timing.densities) < 1
    entry = describe(timing, FACTS, "numpy", "f16")
    assert entry["config"]["asked_density"] == 0.1
    assert entry["metrics"]["density"] == np.mean(timing.densities)


def test_only_counted_tokens_are_timed(model, monkeypatch) -> None:
    import sp.bench.model as bench

    clock = iter([10.0, 14.0])
    made: list[int] = []

    def slow(model, logits, position, cache, *, limit, decoder):
        for number in range(limit):
            made.append(number)
            yield number

    monkeypatch.setattr(bench, "generate", slow)
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    (timing,) = run_tests(model, [Trial(0, 8)], 1)
    assert len(made) == 8 + SKIPPED
    assert timing.seconds == (4.0,)
    assert timing.rates == [2.0]


def test_gpus_that_share_a_model(monkeypatch) -> None:
    shards, tests, drawn = load_shards(embedded("target"), HostGroup(2)), [Trial(70), Trial(30, 4)], []

    def noted(model, ids, *rest, **options):
        drawn.append((model.shard.rank, ids.tobytes()))
        return prefill(model, ids, *rest, **options)

    monkeypatch.setattr("sp.bench.model.prefill", noted)
    timings = list(run_tests(shards.models[0], tests, 2, together=shards.run))
    assert [(t.test, t.gpus, len(t.seconds)) for t in timings] == [(test, 2, 2) for test in tests]
    assert [ids for rank, ids in drawn if rank == 0] == [ids for rank, ids in drawn if rank == 1]
    assert len({ids for _, ids in drawn}) == 5  # three prefills with the warm-up, two prompts of decoding
    entries = [describe(timing, FACTS, "portable", "f16") for timing in timings]
    assert [(entry["bench"], entry["config"]["cards"]) for entry in entries] == [("prefill", 2), ("decode", 2)]


GPUS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import dry_nccl
dry_nccl.install(2)
from sp import cli
for arguments in json.loads(sys.argv[2]):
    sys.argv = ["sp", "bench", "model", "--device", "cuda", *arguments]
    try:
        cli.main()
    except SystemExit as stop:
        assert not stop.code, stop
    print("END")
"""


def test_the_command_shares_a_model() -> None:
    random, asked = ("--synthetic", "tiny-qwen35", "--type", "q8_0"), ("-p", "64,300", "-n", "3", "-r", "2")
    calls = (
        (*random, *asked, "--gpus", "2", "-o", "csv"),
        (*random, "-p", "300", "-n", "0", "-o", "csv"),
        (str(embedded("target")), *asked, "--gpus", "2"),
    )
    shared, whole, printed, _ = walked(GPUS, json.dumps(calls)).split("END\n")
    rows = list(csv.DictReader(io.StringIO(shared)))
    assert [(row["test"], row["cards"]) for row in rows] == [("pp64", "2"), ("pp300", "2"), ("tg3", "2")]
    (alone,) = csv.DictReader(io.StringIO(whole))
    assert 0.5 < float(rows[0]["weights_gb"]) / float(alone["weights_gb"]) < 0.7  # an embedding on each GPU
    assert "on 2 GPUs" in " ".join(printed.split())
    assert "loaded 0.0" in printed


def test_a_machine_without_a_gpu_has_records_too(tmp_path: Path) -> None:
    """Found by a newcomer: --record wrote nothing on the CPU, and said nothing."""
    shown = invoke("bench", "model", embedded("drafter"), "-p", 64, "-n", 2, "-r", 1, *CPU, "--record", tmp_path)
    assert shown.exit_code == 0, shown
    assert invoke("bench", "drafter", "-p", 64, "-r", 1, *CPU, "--record", tmp_path).exit_code == 0
    (machine,) = tmp_path.iterdir()
    found = {path.stem: newest(path) for path in machine.glob("*.jsonl")}
    assert sorted(found) == ["decode", "drafter", "load", "prefill"]
    for (record,), path in ((rows, name) for name, rows in found.items()):
        assert record["gpu"] is None, path
        assert record["cpu"], path
        assert record["kernels"] == [], path
        assert record["config"].get("path", "numpy") == "numpy", path
        assert is_current(record), path


@pytest.mark.parametrize("words", [("--model", "x.gguf"), ("--model=x.gguf",), ("--file", "x.gguf"), ("-m", "x.gguf")])
def test_an_option_for_the_file_is_told_where_the_file_stands(words: tuple[str, ...]) -> None:
    done = invoke("bench", "model", *words)
    flag = words[0].partition("=")[0]
    assert str(done.exception) == (
        f"sp bench model has no option {flag}: the file is given by itself, as in sp bench model FILE"
    )
    assert "as in sp inspect FILE" in str(invoke("inspect", *words).exception)
    assert "by itself" not in str(invoke("run", "--model", "x.gguf").exception)


def test_metrics_and_records() -> None:
    timing = Timing(Trial(100), (1.0, 2.0, 4.0), 7, ("a.cu",))
    metrics = timing.metrics()
    assert metrics["tok_s"] == 50
    assert metrics["tok_s_mean"] == pytest.approx(np.mean([100, 50, 25]))
    assert metrics["tok_s_sd"] == pytest.approx(np.std([100, 50, 25], ddof=1))
    found = describe(timing, FACTS, "portable", "f16")
    assert found["bench"] == "prefill"
    how = {"kv": "f16", "path": "portable", "math": "bf16", "cards": 1, "engine": "sp"}
    assert found["config"] == FACTS | how | {"prompt_tokens": 100}
    assert found["samples"] == [100, 50, 25]
    decode = describe(Timing(Trial(9, 64), (1.0,), 0), FACTS, "sm_90a", "q4_0")
    assert decode["bench"] == "decode"
    assert decode["config"]["context"] == 9
    assert decode["metrics"]["tok_s_sd"] == 0


@pytest.fixture
def sp(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `sp bench` prints."""

    def called(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["sp", "bench", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        return capsys.readouterr().out

    return called


def test_the_command_prints_each_form(sp) -> None:
    common = ("model", str(embedded("drafter")), "--device", "cpu", "-p", "64", "-n", "3", "-r", "2")
    lines = sp(*common, "-o", "md").splitlines()
    assert len(lines) == 4
    assert "| pp64 |" in lines[2]
    assert "| tg3 |" in lines[3]
    assert " ± " in lines[2]
    rows = list(csv.DictReader(io.StringIO(sp(*common, "-o", "csv"))))
    assert [row["test"] for row in rows] == ["pp64", "tg3"]
    report = json.loads(sp(*common, "--json"))
    assert [len(test["samples"]) for test in report["tests"]] == [2, 2]
    assert report["file_bytes"] == embedded("drafter").stat().st_size
    program = Path(sys.executable).with_name("sp")  # as it is installed
    printed = subprocess.run([program, "bench", *common], capture_output=True, text=True, check=False).stdout
    assert "pp64" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model",), "either a GGUF file, or --synthetic"),
        (("model", "x.gguf", "--synthetic", "tiny-qwen3"), "either"),
        (("model", "x.gguf", "-p", "12,x"), "whole numbers"),
        (("model", "x.gguf", "-p", "-4"), "such as 512,8k, not '-4'"),
        (("model", "x.gguf", "-p", "0", "-n", "0"), "nothing to time"),
        (("model", "x.gguf", "--path", "fast"), "--path is 'fast'"),
        (("model", "x.gguf", "-o", "xml"), "--output is 'xml'"),
        (("model", "x.gguf", "--device", "tpu"), "--device is 'tpu'"),
        (("model", "--synthetic", "tiny-qwen3", "--device", "cpu"), "sp synth"),
        (("model", "nowhere.gguf", "--device", "cpu"), "no such file"),
        (("model", str(embedded("target")), "--device", "cpu", "--gpus", "2"), "--gpus needs GPUs"),
        (("model", "x.gguf", "--gpus", "2", "--kernels"), "--kernels needs a single GPU"),
        (("roofline", "nowhere"), "no record"),
    ],
)
def test_mistakes_are_one_line(arguments, message, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["sp", "bench", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def record(bench: str, path: str, tflops: float, gb_s: float, **config: object) -> dict:
    return {
        "bench": bench,
        "config": {"path": path, **config},
        "metrics": {"tflops": tflops, "gb_s": gb_s},
        "gpu": "Card",
        "kernels": [],
        "kernel_hash": "another",
    }


def test_roofline_takes_the_newest_current_records(tmp_path, monkeypatch) -> None:
    import sp.studies.plots.roofline as roofline

    monkeypatch.setattr(roofline, "is_current", lambda entry: entry["kernel_hash"] == "now")
    now = {"kernel_hash": "now"}
    entries = [
        record("matmul", "portable", 100, 1000, m=1) | now,
        record("matmul", "portable", 200, 1000, m=1) | now,
        record("matmul", "portable", 900, 1000, m=2),
        record("matmul", "cublas", 700, 500),
        record("memory", "portable", 0, 4000) | now,
    ]
    for entry in entries:
        with (tmp_path / f"{entry['bench']}.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")
    found = points(tmp_path)
    assert sorted(point.tflops for point in found) == [0, 200, 700]
    assert found[0].intensity == pytest.approx(1e3 * found[0].tflops / found[0].gb_s)
    assert roof(found) == (4000, 700, 0)
    picture = draw(found, tmp_path / "roofline.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_folder_of_copies_alone_has_no_roofline(tmp_path, monkeypatch) -> None:
    import sp.studies.plots.roofline as roofline

    monkeypatch.setattr(roofline, "is_current", lambda entry: True)
    (tmp_path / "memory.jsonl").write_text(json.dumps(record("memory", "portable", 0, 4000)) + "\n")
    with pytest.raises(ConfigError, match="no record"):
        points(tmp_path)
