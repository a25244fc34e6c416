"""`sp plan` and `sp inspect` of mixtures: what they call runnable is what loading makes room for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hollow_files import write_hollow
from rich.console import Console

from sp.models import Arithmetic, ModelConfig
from sp.planning.gpus import ANSWER, GPUS, KEEP, REPORTED_LENGTHS, best, memory_modes, room
from sp.planning.inspect import inspect_file
from sp.planning.memory import cold_layers
from sp.planning.plan import plan_file
from sp.planning.tables import render_plan
from sp.session import RunOptions
from sp.session.decision import check_memory, check_scoring

SHAPES = ("qwen3.6-35b-a3b", "qwen3-30b-a3b")


@pytest.fixture(scope="module", params=SHAPES)
def path(request, tmp_path_factory) -> Path:
    return write_hollow(tmp_path_factory.mktemp("m") / "m.gguf", request.param, "q4_k_m")


def test_a_small_gpu_runs_it_with_experts_on_the_host(path) -> None:
    for gpu in (12, 16):
        plan = plan_file(path, gpu=gpu)
        assert plan.verdict.runs == "with"
        assert f"--vram {gpu - 1}g" in plan.verdict.options
        told = plan.as_dict()["experts"]
        assert told["line"].startswith(f"experts of {told['layers']} of ")
        assert told["device_bytes"] < room(gpu) < (plan.target.weights or 0)
    large = plan_file(path, gpu=80)
    assert large.verdict.runs == "yes"
    assert large.as_dict()["experts"] is None


def stand_in(path: Path, config: ModelConfig, nbytes: int) -> Any:
    """What checks of memory look at of a loaded model."""
    return SimpleNamespace(path=path, model=SimpleNamespace(config=config, nbytes=nbytes, arithmetic=Arithmetic()))


def test_what_fits_is_not_refused_by_the_budget_when_it_is_run(path, tmp_path: Path) -> None:
    plan = plan_file(path)
    config, weights = plan.sizes or pytest.fail("no sizes")
    drafter, stacks = plan.drafter or pytest.fail("no drafter"), plan.target.stacks
    reader: Any = stand_in(tmp_path, drafter.config, drafter.weights)
    tried = 0
    for gpu in GPUS:
        held = cold_layers(config, weights, stacks, room(gpu))
        target: Any = stand_in(tmp_path, config, held.device)
        for tokens in REPORTED_LENGTHS:
            for scores, keep in ((drafter, KEEP), (None, 1.0)):
                way = best(list(memory_modes(config, weights, scores, tokens, stacks=stacks)), gpu)
                if way is None:
                    continue
                options = RunOptions(max_new_tokens=ANSWER, kv=way.kv, keep_ratio=keep)  # type: ignore[arg-type]
                check_memory(target, int(keep * (tokens - ANSWER)), options, room(gpu))
                check_scoring(reader, tokens - ANSWER, options.scorer, room(gpu))
                tried += 1
    assert tried >= 3 * len(GPUS)


def test_tables_tell_of_it_within_80_columns(path) -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(render_plan(plan_file(path.parent / "m.gguf", gpu=12).as_dict() | {"path": "m.gguf"}))
    text = console.export_text()
    assert "layers wait in host memory, " in text
    assert "GB over the bus" in text
    assert "by turns, experts on the host" in text
    assert max(map(len, text.splitlines())) <= 80


def test_inspect_says_what_a_small_gpu_reads(path) -> None:
    rows = inspect_file(path)["cards"]["rows"]
    [small] = [row for row in rows if row["card"] == 12 and row["kv"] == "f16"]
    assert small["full"] is None
    assert small["full_by_turns"] == 32768
    assert all(found["together"] is None and found["by_turns"] for found in small["drafters"].values())
