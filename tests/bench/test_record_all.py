"""Measuring everything anew: what is planned, what is passed over, what fits, and what is taken over."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sp.bench import record
from sp.bench.record import measured_files

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "nvidia-h200"
MACHINE = {"gpu": "Card", "driver": "1", "nvrtc": "1", "cupy": "1"}
WITH_OTHERS = {"ttft_memory"}
"""Written by the commands of another benchmark."""
RETIRED = {"eight_bit_large", "flashprefill_quality", "matmul_alone"}
BY_HAND = {"real_drafter", "kv_quality", "skip_softmax", "evidence", "front_text"}
"""Of real files, which are sent along: experiments/real/speed.py, skip_softmax.py and evidence.py,
experiments/kv_quality.py and front_text.py."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import record_all

    return record_all


def test_all_committed_records_of_the_gpu_are_in_the_plan(module: ModuleType) -> None:
    items = module.plan(FOLDER)
    planned = {want.bench for item in items for want in item.wants}
    there = {path.stem for path in measured_files(FOLDER)}
    assert there - planned == WITH_OTHERS | RETIRED | BY_HAND
    assert [item.name for item in items][:3] == ["build", "tune", "headline"]
    assert len({item.name for item in items}) == len(items)
    assert all(item.seconds <= 240 for item in items)
    assert module.peer("", "") == []
    assert module.peer("llama-bench", "m.gguf")[0].wants[0].keys == {"engine": "llama.cpp"}


def test_several_gpus_have_items_of_their_own(module: ModuleType) -> None:
    """Records that two H100 left are what the items of two GPUs want, but for lengths that were not run."""
    from record_plan import several

    assert several(1) == []
    items, folder = several(2), ROOT / "results" / "nvidia-h100-80gb-hbm3"
    assert all(item.alone and "2" in item.command for item in items if item.name != "cards, tests")
    assert module.plan(FOLDER, items)[2 : 2 + len(items)] == items
    found = {}
    for item in items:
        for want in item.wants:
            rows = (folder / f"{want.bench}.jsonl").read_text().splitlines()
            configs = [json.loads(row)["config"] for row in rows]
            hits = [c for c in configs if all(c.get(key) == value for key, value in want.keys.items())]
            found.setdefault(item.name, []).append(len(hits) >= want.count)
    missing = {name for name, hits in found.items() if not all(hits)}
    assert missing <= {"cards, first token of a million", "cards, prefill and decode"}  # not run, not at all lengths


def test_every_test_file_is_run_once_and_those_current_are_not(module: ModuleType, tmp_path: Path) -> None:
    import record_plan

    names = [name for item in record_plan.tests(tmp_path) for name in item.command if name.startswith("tests/gpu")]
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "gpu").rglob("test_*.py"))
    assert names == files


@pytest.fixture
def steps(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two quick items that append records `a` and `b`, and a folder of results."""
    monkeypatch.setattr(record, "environment", lambda: MACHINE)
    results = tmp_path / "results"

    def item(name: str, seconds: float, **more: object) -> object:
        made = record.make_record(name, {"n": 1}, {}, [], [])
        code = f"import pathlib; p = pathlib.Path(r'{{results}}') / 'card' / '{name}.jsonl'"
        code += "; p.parent.mkdir(parents=True, exist_ok=True)"
        text = json.dumps(json.dumps(made) + "\n").replace("{", "{{").replace("}", "}}")
        code += f"; f = p.open('a'); f.write({text})"
        from record_plan import Want

        return module.Item(name, (sys.executable, "-c", code), seconds, (Want(name),), **more)

    return results, [item("a", 5), item("b", 5)]


def run(module: ModuleType, results: Path, items: list, seconds: float, new: Path | None = None, gpus: int = 1) -> dict:
    return dict(module.run_all(module.Run(results, "card", seconds, new), items, gpus))


def test_what_is_current_is_passed_over_and_new_lines_are_copied_and_taken(module, steps, tmp_path) -> None:
    results, items = steps
    said = run(module, results, items[:1], 60)
    assert said["a"].startswith("ended,"), said
    said = run(module, results, items, 60, tmp_path / "new", gpus=2)
    assert said["a"] == "is current"
    assert said["b"].startswith("ended,")
    copied = list((tmp_path / "new").rglob("*.jsonl"))
    assert [path.relative_to(tmp_path / "new").as_posix() for path in copied] == ["results/card/b.jsonl"]
    elsewhere = tmp_path / "elsewhere"
    assert len(module.take(tmp_path / "new", elsewhere)) == 1
    assert (elsewhere / "card" / "b.jsonl").read_bytes() == (results / "card" / "b.jsonl").read_bytes()
    assert module.take(tmp_path / "new", elsewhere) == []


def test_nothing_is_begun_that_does_not_fit_and_failures_are_told(module, steps, capsys) -> None:
    results, items = steps
    said = run(module, results, [module.Item("long", ("none",), 100), *items[:1]], 20)
    assert said["long"].startswith("left: 100 s do not fit")
    assert said["a"].startswith("ended,")
    slow = module.Item("slow", (sys.executable, "-c", "import time; print('so far', flush=True); time.sleep(60)"), 0.1)
    broken = module.Item("broken", (sys.executable, "-c", "raise SystemExit('no card')"), 0.1)
    empty = module.Item("empty", (sys.executable, "-c", ""), 0.1, (items[1].wants[0],))
    said = run(module, results, [broken, empty, slow], 2)
    assert said["broken"].startswith("failed with 1")
    assert "no card" in said["broken"]
    assert said["empty"].startswith("ended, but not all")
    assert said["slow"].startswith("ended by the time")
    assert "so far" in said["slow"]
