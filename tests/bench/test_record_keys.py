"""Two benchmarks never write the same key: by the code that makes records, and by the committed ones."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sp.bench import decode, llama_cpp, model
from sp.bench.cases import FAMILIES, run_cases
from sp.bench.decode import DecodeTiming
from sp.bench.record import key_of, measured_files, prune, read, running, superseded
from sp.errors import ConfigError

ROOT = Path(__file__).parents[2]
MAKERS = [
    *(ROOT / "sp" / "bench").rglob("*.py"),
    *(ROOT / "sp" / "commands").rglob("*.py"),
    *(ROOT / "experiments").rglob("*.py"),
    *(ROOT / "tests" / "benchmarks").glob("*.py"),
    ROOT / "tests" / "gpu" / "conftest.py",
]
KEEP = {"make_record", "keep", "keep_record", "measure"}
SHARED = {
    "attention": ("path", "sm_90a and the libraries beside it", "portable"),
    "attention_chunk": ("path", "sm_90a", "portable"),
    "prefill": ("engine", "sp", "llama.cpp"),
    "decode": ("engine and draft", "sp", "sp with a draft", "llama.cpp"),
    "load": ("mode", "first", "repeated"),
    "kv_quality": ("engine", "sp", "llama.cpp"),
}
"""Benchmarks that more than one file writes: what tells them apart, and the values."""
RETIRED = {
    "block_budget",
    "eight_bit_answers",
    "eight_bit_attention",
    "eight_bit_kept",
    "eight_bit_large",
    "eight_bits",
    "flashprefill_quality",
    "matmul_alone",
    "needed_pages",
    "ray_speedup",
    "sample_ttft",
    "serve_mixed",
    "serve_one_string",
    "sweep_overhead",
}
"""Written by code that is gone; records stay."""
BY_KERNEL = {"dispatch"}
"""Metrics are named after the kernels that were timed, of which there may be more each time."""
FACTS = {"model": "m", "shape": "s", "type": "t"}


def named(node: ast.AST) -> Iterator[str]:
    """Names of benchmarks that a statement gives to what makes records."""
    found: list[ast.AST] = []
    if isinstance(node, ast.Call):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        found = [k.value for k in node.keywords if k.arg == "bench"] if function in {*KEEP, "append"} else []
        found += node.args[:2] if function in KEEP else []  # lists have a method append, too
    elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "bench":
        found = [node.value]
    elif isinstance(node, ast.Dict):
        found = [v for k, v in zip(node.keys, node.values, strict=True) if getattr(k, "value", None) == "bench"]
    for part in found:
        choices = [part.body, part.orelse] if isinstance(part, ast.IfExp) else [part]
        yield from (c.value for c in choices if isinstance(c, ast.Constant) and isinstance(c.value, str))


@pytest.fixture(scope="module")
def makers() -> dict[str, set[str]]:
    """Files that write a benchmark's records, by its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in MAKERS:
        for node in ast.walk(ast.parse(path.read_text())):
            for name in named(node):
                found[name].add(path.relative_to(ROOT).as_posix())
    with pytest.raises(ConfigError):
        next(run_cases("no such family"))  # fills the registry
    for family in FAMILIES:
        found[family].add(f"the family {family} of sp kernels bench")
    return found


def test_a_benchmark_has_one_maker_or_says_what_tells_them_apart(makers) -> None:
    shared = {name: sorted(files) for name, files in makers.items() if len(files) > 1}
    assert shared.keys() == SHARED.keys(), shared
    assert {
        "matmul",
        "project",
        "paged_attention",
        "flashprefill_layer",
        "ttft",
        "verify",
        "gpu_tests",
    } <= makers.keys()


def test_committed_records_are_of_benchmarks_there_are(makers) -> None:
    for path in (ROOT / "results").glob("*/*.jsonl"):
        benches = {record.get("bench", path.stem) for record in read(path)}
        assert benches <= makers.keys() | RETIRED, path
        assert benches == {path.stem}


def test_of_each_key_the_newest_alone_is_committed() -> None:
    over = [path for path in measured_files(ROOT / "results") if superseded(path)]
    assert over == [], "run: python experiments/record_all.py --prune"


def test_the_last_line_of_a_key_stays_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "card" / "load.jsonl"
    file.parent.mkdir()
    line = '{{"bench": "load", "config": {{"n": {}}},  "metrics": {{}}, "kernel_hash": "", "date": "{}"}}'
    file.write_text("".join(line.format(n, date) + "\n" for n, date in ((1, "a"), (2, "a"), (1, "b"))))
    assert prune(tmp_path) == {file: 1}
    assert file.read_text().splitlines() == [line.format(1, "b"), line.format(2, "a")]
    assert prune(tmp_path) == {}


def test_no_key_has_records_of_two_kinds() -> None:
    """Whoever times something else also tells something else of it: at one commit a key has one set of metrics."""
    for path in (ROOT / "results").glob("*/*.jsonl"):
        kinds = defaultdict(set)
        for record in read(path) if path.stem not in BY_KERNEL else ():
            kinds[record.get("commit"), key_of(record)].add(tuple(sorted(record.get("metrics", ()))))
        assert [key for key, kind in kinds.items() if len(kind) > 1] == [], path


def test_kernel_records_say_how_they_were_timed() -> None:
    for path in (ROOT / "results" / "nvidia-h200").glob("*.jsonl"):
        for record in read(path):
            if {"ms", "us"} & record.get("metrics", {}).keys() and path.stem != "verify":
                assert record["config"].get("mode") in ("graph", "queued", "eager", "burst"), (path, record["config"])
                assert record["config"].get("path"), (path, record["config"])


def test_whole_models_are_told_apart() -> None:
    timing = model.Timing(model.Trial(0, 64), (1.0,), 0)
    ours = model.describe(timing, FACTS, "sm_90a", "f16")["config"]
    test = {"n_prompt": 0, "n_gen": 64, "seconds": [1.0]}
    theirs = llama_cpp.describe_peer(test, FACTS)["config"]
    common = {**FACTS, "kv": "f16", "context": 0, **running("sm_90a"), "engine": "sp"}
    loaded = SimpleNamespace(path=Path("m"), model=SimpleNamespace(device="cpu"))
    draft = SimpleNamespace(path=Path("d"), block_size=16)
    answered = decode.TimedAnswer("", (1, 2), (1,), (0.1,))
    drafted = decode.describe(DecodeTiming(("greedy", 0), (answered,), (answered,)), loaded, draft, common)["config"]
    keys = [json.dumps(config, sort_keys=True) for config in (ours, theirs, drafted)]
    assert len(set(keys)) == 3
    assert (ours["engine"], theirs["engine"], drafted["engine"]) == ("sp", "llama.cpp", "sp")
    assert "draft" in drafted
    assert "draft" not in ours
    for config in (ours, theirs, drafted):
        assert {"model", "shape", "type", "kv", "path", "math", "cards", "engine", "context", "method"} <= config.keys()
    rounds = decode.RoundTiming(16, 8, dict.fromkeys(decode.PARTS, (1.0,)), 1.0, ())
    assert decode.describe_round(rounds, loaded, draft, common)["config"].items() >= (FACTS | {"nodes": 16}).items()
