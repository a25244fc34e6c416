"""`sp plan`: what it calls runnable loads and fits, what it refuses does not, and it proposes what helps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hollow_files import FEW, write_hollow
from plan_calls import call
from test_refusals import later_drafts, refused_files
from tiny_models import KEYS, rewritten, write_tiny

from sp.commands.plan import read_gpu
from sp.errors import ModelError, PromptError, SpError
from sp.gguf import GGUFFile
from sp.models import Arithmetic, ModelConfig, load_model
from sp.models.cache.cache import Cache
from sp.models.families.llama import FACTORS
from sp.models.file.file_type import FILE_TYPES
from sp.ops.rope import LinearScaling
from sp.planning.gpus import ANSWER, GPUS, KEEP, REPORTED_LENGTHS, best, find_gpu, memory_modes, need, room
from sp.planning.inspect import inspect_file
from sp.planning.plan import COMMON, USUAL, make_plan, plan_file
from sp.planning.subject import read_subject, shape_subject
from sp.session import RunOptions, embedded
from sp.session.decision import check_memory, check_scoring


@pytest.fixture(scope="module")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Files of named shapes without weights, each written once."""
    folder = tmp_path_factory.mktemp("hollow")

    @cache
    def write(shape: str, file_type: str, text_tokens: int | None = FEW) -> Path:
        return write_hollow(folder / f"{shape}-{file_type}-{text_tokens}.gguf", shape, file_type, text_tokens)

    return write


LARGE = [("qwen3.6-27b", "q4_k_m"), ("llama-3.1-70b", "q4_k_m"), ("llama-3.1-8b", "bf16")]


def stand_in(path: Path, config: ModelConfig, nbytes: int) -> Any:
    """What checks of memory look at of a loaded model."""
    return SimpleNamespace(path=path, model=SimpleNamespace(config=config, nbytes=nbytes, arithmetic=Arithmetic()))


@pytest.mark.parametrize(("shape", "file_type"), LARGE)
def test_what_fits_is_not_refused_by_the_budget_when_it_is_run(
    shape: str, file_type: str, tmp_path: Path, hollow: Callable[[str, str], Path]
) -> None:
    """The plan's bytes are those that loading and running are checked against, and the bounds of work on top."""
    plan = plan_file(hollow(shape, file_type))
    config, weights = plan.sizes or pytest.fail("no sizes")
    assert plan.drafter is not None
    tried = 0
    target: Any = stand_in(tmp_path, config, weights)
    drafter: Any = stand_in(tmp_path, plan.drafter.config, plan.drafter.weights)
    for gpu in GPUS:
        for tokens in REPORTED_LENGTHS:
            way = best(list(memory_modes(config, weights, plan.drafter, tokens)), gpu)
            prompt = tokens - ANSWER
            options = RunOptions(max_new_tokens=ANSWER, kv=way.kv if way else "q4_0", keep_ratio=KEEP)  # type: ignore[arg-type]
            if way is not None:
                check_memory(target, int(KEEP * prompt), options, room(gpu))
                check_scoring(drafter, prompt, options.scorer, room(gpu))
                tried += 1
            elif weights > room(gpu):
                with pytest.raises(PromptError, match="and the budget is"):
                    check_memory(target, int(KEEP * prompt), options, room(gpu))
    assert tried >= 3


def test_memory_is_weights_and_cache_as_they_are_reserved(tmp_path: Path) -> None:
    """Of a tiny model, whose cache can be made here, for every type of cache."""
    path = write_hollow(tmp_path / "m.gguf", "tiny-qwen35", "q8_0")
    plan = plan_file(path, tokens=4096)
    config, weights = plan.sizes or pytest.fail("no sizes")
    rows = [row for row in plan.as_dict()["memory"] if row["kv"] is not None]
    kinds = "f16", "q8_0", "5bit", "4bit", "q4_0"
    assert tuple(dict.fromkeys(row["kv"] for row in rows)) == kinds
    assert {(row["kv"], row["tokens"]) for row in rows} == {(kv, n) for kv in kinds for n in {*REPORTED_LENGTHS, 4096}}
    for row in rows:
        held = weights + Cache(config, row["tokens"], row["kv"]).nbytes
        assert row["full"] == need(config, weights, None, row["tokens"] - ANSWER, row["kv"]).together
        assert held < row["full"] < held + (2 << 30)


@pytest.mark.parametrize("arch", KEYS)
def test_tiny_models_are_told_to_run_as_they_do(arch: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch)
    with_words = inspect_file(path)
    assert load_model(path).config.layers
    stops = [line for line in with_words["warnings"] if "tokenizer" not in line and "template" not in line]
    assert stops == []


@pytest.mark.parametrize("what", ["more", "shape", "bias"])
def test_a_file_that_does_not_load_does_not_run(what: str, tmp_path: Path) -> None:
    """Tensors are checked as loading checks them, by the header alone."""
    tiny = write_tiny(tmp_path / "m.gguf", "qwen3")
    extras: dict[str, dict[str, Any]] = {
        "more": {"blk.0.odd.weight": np.ones((2, 40), np.float32)},
        "shape": {"blk.1.ffn_up.weight": np.ones((7, 64), np.float32)},
        "bias": {"output_norm.bias": np.ones(64, np.float32)},
    }
    path = rewritten(tiny, tmp_path / "odd.gguf", extras[what])
    with pytest.raises(ModelError) as refused:
        load_model(path)
    assert str(refused.value).removeprefix(f"{path}: ") in inspect_file(path)["warnings"]


def test_refused_files_are_refused_by_the_plan_with_what_to_take(tmp_path: Path) -> None:
    (more := tmp_path / "more").mkdir()
    for what, (path, told, advice) in {**later_drafts(tmp_path), **refused_files(more)}.items():
        if what == "model":
            continue
        plan = plan_file(path)
        assert plan.verdict.runs == "no", what
        assert told in plan.verdict.line, what
        assert advice in plan.verdict.line, what
        assert plan.verdict.gpu is None
        assert list(plan.memory()) == list(plan.gpus()) == []
        if what in ("glm4moe", "granite", "phi3", "clip"):
            assert plan.verdict.instead == "a file of gemma-3-270m as Q4_K_M (0.2 GB)"  # for tiny files the smallest


def test_no_gpu_too_small_is_left_without_advice(hollow: Callable[[str, str], Path]) -> None:
    path = hollow("qwen3.6-27b", "q4_k_m")
    with GGUFFile.open(path) as file:
        subject = read_subject(file)
    on = {gpu: make_plan(subject, None, gpu, REPORTED_LENGTHS[-1]).verdict for gpu in GPUS}
    assert [on[gpu].runs for gpu in GPUS] == ["no" if gpu < 24 else "yes" for gpu in GPUS]
    assert on[16].instead == "the same model as Q3_K (11.1 GiB on the GPU)"
    assert on[12].instead is not None
    assert on[12].instead.startswith("a file of ")
    assert make_plan(subject, None, None, REPORTED_LENGTHS[-1]).verdict == on[24]  # the smallest that does
    longer = plan_file(hollow("llama-3.1-70b", "q4_k_m"), gpu=46, tokens=1 << 20).verdict
    assert longer.runs == "no"
    assert "a prompt of up to 128K" in (longer.instead or "")


def test_advice_holds(tmp_path: Path, hollow: Callable[[str, str], Path]) -> None:
    """The file that is proposed in fewer bits does run where the other did not, and one of more bits does not."""
    plan = plan_file(hollow("llama-3.1-8b", "bf16"), gpu=12)
    assert plan.verdict.runs == "no"
    assert (plan.verdict.instead or "").startswith("the same model as ")
    proposed = (plan.verdict.instead or "").removeprefix("the same model as ").split(" ")[0].lower()
    tried = [name for name in COMMON if (plan.target.weights_as(name) or 0) >= (plan.target.weights_as(proposed) or 0)]
    runs = [
        plan_file(write_hollow(tmp_path / "m.gguf", "llama-3.1-8b", name), gpu=12).verdict.runs != "no"
        for name in tried
    ]
    assert dict(zip(tried, runs, strict=True)) == {name: name == proposed for name in tried}


def test_no_weights_are_read(monkeypatch: pytest.MonkeyPatch, hollow: Callable[[str, str], Path]) -> None:
    read: list[str] = []
    weight = GGUFFile.weight

    def noted(file: GGUFFile, name: str) -> Any:
        read.append(name)
        return weight(file, name)

    monkeypatch.setattr(GGUFFile, "weight", noted)
    assert plan_file(hollow("llama-3.2-1b", "q8_0")).verdict.runs == "yes"
    assert set(read) == {FACTORS}  # a tensor that tells of the configuration
    read.clear()
    assert plan_file(embedded("target"), embedded("drafter")).verdict.runs == "yes"
    assert read == []


def test_common_types_are_types() -> None:
    assert {*COMMON, USUAL} <= set(FILE_TYPES)


def test_a_given_drafter_is_reckoned_with_and_its_vocabulary_compared(
    tmp_path: Path, hollow: Callable[..., Path]
) -> None:
    target, kin = hollow("llama-3.1-8b", "bf16", None), hollow("llama-3.2-1b", "q8_0", None)
    plan = plan_file(target, kin)
    assert plan.vocabulary == "same"
    assert plan_file(target, write_hollow(tmp_path / "o.gguf", "tiny-qwen2", "bf16")).vocabulary == "other"
    proposed = plan_file(target)
    assert proposed.vocabulary == "as large"
    assert plan.drafter is not None
    assert (plan.drafter.name, plan.drafter.config.layers) == (kin.name, 16)
    assert plan.drafter.weights < proposed.drafter.weights  # type: ignore[union-attr]
    assert f"--drafter {kin} " in (plan.command or "")
    with pytest.raises(ModelError, match="a DFlash draft, not a model by itself"):
        plan_file(hollow("llama-3.1-8b", "bf16"), embedded("draft"))


@pytest.mark.parametrize(
    ("shape", "options", "status", "told"),
    [
        ("qwen3.6-27b", [], 0, "runs: yes: 128K tokens on a GPU of 24 GB"),
        ("qwen3.6-27b", ["--gpu", "16g"], 1, "take instead: the same model as Q3_K"),
        ("llama-3.1-70b", ["--gpu", "99g", "--context", "100000"], 0, "runs: yes: 100000 tokens on a GPU of 99 GB"),
        ("llama-3.2-1b", [], 0, "runs: yes, as a drafter: 128K tokens on a GPU of 12 GB"),
    ],
)
def test_the_command_keeps_to_80_columns(
    shape: str,
    options: list[str],
    status: int,
    told: str,
    hollow: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = hollow(shape, "q4_k_m", None if shape == "llama-3.2-1b" else FEW)
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("COLUMNS", "80")
    assert call("plan", path.name, *options, monkeypatch=monkeypatch) == status
    shown = capsys.readouterr().out
    assert told in shown
    lines = [line for line in shown.splitlines() if not line.startswith("sp run")]
    assert max(map(len, lines)) <= 80
    assert "…" not in shown
    assert (shown.splitlines()[-1].startswith("sp run --")) == (status == 0)


def test_json_and_the_verdict_of_inspect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", embedded("target"), "--drafter", embedded("drafter"), "--json", monkeypatch=monkeypatch) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["verdict"]["line"] == "yes: 128K tokens on a GPU of 12 GB"
    assert plan["drafter"]["vocabulary"] == "same"
    assert [row["card"] for row in plan["cards"]] == list(GPUS)
    assert call("inspect", embedded("target"), monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.startswith("runs: yes")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--gpu", "24 apples"], "--gpu takes at least 2 whole GiB"),
        (["--gpu", "1g"], "at least 2"),
        (["--gpu", "24"], "with the unit, such as 24g"),
        (["--gpu", "rtx309"], "did you mean 'rtx3090'"),
        (["--gpu", "²"], "--gpu takes"),
        (["--gpu", "9" * 5000], "--gpu takes"),
        (["--context", "-1"], "--context is a number of tokens"),
        (["--context", "200"], "256 tokens of it are for the answer"),
        (["--context", "1e9"], "--context is a number of tokens"),
        (["--context", "17m"], "up to 16m"),
        (["--drafter", "no.gguf"], "no.gguf"),
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("plan", embedded("target"), *options, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert len(error) < 300


@pytest.mark.parametrize("text", ["3090", "RTX 3090", "rtx-3090", "NVIDIA GeForce RTX 3090"])
def test_a_gpu_by_its_number_is_that_gpu(text: str) -> None:
    assert read_gpu(text) == (24, find_gpu("rtx3090"))


@pytest.mark.parametrize(
    ("scaling", "asked", "beside"),
    [(None, "YaRN x16", "are read with YaRN x16"), (LinearScaling(2.0), *2 * ("--drafter-rope yarn:16",))],
    ids=["by itself", "on demand"],
)
def test_a_drafter_is_judged_within_its_window(scaling: LinearScaling | None, asked: str, beside: str) -> None:
    """What lies beyond takes a scaling of RoPE, which is said of a file by itself and beside a target."""
    small = shape_subject("llama-3.2-1b", "q4_k_m")
    assert small.config is not None
    rope = replace(small.config.rope, scaling=scaling)
    small = replace(small, path="m.gguf", config=replace(small.config, context=8192, rope=rope))
    verdict = make_plan(small, None, None, 1 << 17).verdict_facts()
    assert verdict["line"] == f"yes, as a drafter: 8K tokens, or 128K with {asked}, on a GPU of 12 GB"
    assert (verdict["window"], verdict["beyond"]) == (8192, asked)
    assert make_plan(small, None, None, 8192).verdict.line == "yes, as a drafter: 8K tokens on a GPU of 12 GB"
    heavy = shape_subject("llama-3.1-8b", "q4_k_m")
    notes = make_plan(heavy, small, None, 1 << 17).as_dict()["notes"]
    need = beside if scaling is None else f"need {beside}"
    assert notes == [f"m.gguf has a window of 8K tokens; 128K {need}"]
    assert list(make_plan(heavy, small, None, 8192).notes()) == []


def test_a_plan_of_what_is_no_model_file(tmp_path: Path) -> None:
    (path := tmp_path / "x.gguf").write_text("hello")
    with pytest.raises(SpError, match="is not a GGUF file"):
        plan_file(path)
