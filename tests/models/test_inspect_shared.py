"""Plans of a target that several GPUs share: what each holds is what is loaded, and how the answer is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import invoke
from dry_walk import walked

from sp.errors import ConfigError
from sp.gguf import GGUFFile
from sp.models.synthetic.synthetic import write_synthetic
from sp.planning.gpus import need, room
from sp.planning.plan import make_plan
from sp.planning.subject import read_subject, shape_subject

LOADED = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_nccl
dry_nccl.install(2)
from sp.models.shards.load_shards import load_shards
from sp.parallel.nccl import NcclGroup
group = NcclGroup((0, 1))
for path in sys.argv[2:]:
    print(max(model.nbytes for model in load_shards(path, group, device="cuda").models))
"""
PLAN = ["plan", "--synthetic-target", "llama-3.1-70b", "-p", "32k"]


def test_each_gpu_holds_what_is_loaded_there(tmp_path: Path) -> None:
    """Tied heads and others, hybrids and experts; the first GPU's part of the vocabulary is the larger one."""
    cases = [("tiny-llama", "q8_0"), ("tiny-qwen35", "bf16"), ("tiny-qwen3", "q8_0"), ("tiny-qwen3moe", "q8_0")]
    paths = [write_synthetic(tmp_path / f"{shape}.gguf", shape, file_type) for shape, file_type in cases]
    for path, held in zip(paths, map(int, walked(LOADED, *map(str, paths)).split()), strict=True):
        with GGUFFile.open(path) as file:
            two, one = read_subject(file, 2), read_subject(file)
        assert two.weights == held, path.name
        assert one.weights is not None
        assert held < one.weights
        assert (two.gpus, two.stacks, two.parameters) == (2, (), one.parameters)


def test_a_plan_needs_of_each_gpu_what_its_share_needs() -> None:
    """By the formula of one GPU, for a model with half of the heads, columns and keys."""
    whole, half = shape_subject("qwen3.6-27b", "q4_k_m"), shape_subject("qwen3.6-27b", "q4_k_m", 2)
    assert half.config is not None
    assert half.weights is not None
    assert whole.weights is not None
    assert 0.5 * whole.weights < half.weights < 0.54 * whole.weights  # every GPU has the table of embeddings
    plan = make_plan(half, None, 16, 131072)
    rows = {(row["kv"], row["tokens"]): row for row in plan.memory()}
    assert rows["f16", 131072]["full"] == need(half.config, half.weights, None, 131072 - 256, "f16").together
    assert all(row["by_turns"] is None for row in rows.values()), "nothing waits in host memory there"
    assert plan.verdict.runs in ("yes", "with")
    assert not any("--vram" in option for option in plan.verdict.options)
    assert "each of 2 GPUs of 16 GB" in plan.verdict.line
    assert make_plan(whole, None, 16, 131072).verdict.line != plan.verdict.line


def test_more_gpus_are_proposed_where_nothing_else_is() -> None:
    plan = make_plan(shape_subject("llama-3.1-70b", "q4_k_m", 2), None, 12, 131072)
    assert plan.verdict.runs == "no"
    assert plan.verdict.instead == "more GPUs"
    assert plan.verdict.why is not None
    assert "on each of 2 GPUs" in plan.verdict.why


def test_it_is_told_of_each_gpu_and_by_the_command() -> None:
    told = invoke([*PLAN, "--gpu", "48g", "--gpus", "2"])
    assert told.exit_code == 0, told.output
    assert max(map(len, told.output.splitlines())) <= 80
    assert "32K tokens on each of 2 GPUs of 48 GB" in told.output
    assert "20.05 GiB on each of 2 GPUs" in told.output
    found = json.loads(invoke([*PLAN, "--gpu", "48g", "--gpus", "2", "--json"]).output)
    assert found["shared_by"] == 2
    assert found["memory"][0]["together"] < room(48)
    alone = json.loads(invoke([*PLAN, "--gpu", "48g", "--json"]).output)
    assert alone["shared_by"] == 1


def test_a_command_for_a_file_names_the_gpus(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "tiny-llama", "q8_0")
    told = invoke(["plan", str(path), "--gpu", "24g", "--gpus", "2", "-p", "1k", "--json"])
    assert json.loads(told.output)["command"].endswith("--gpus 2")
    more = invoke(["plan", str(path), "--gpus", "4", "--target-gpus", "2", "-p", "1k", "--json"])
    assert json.loads(more.output)["command"].endswith("--gpus 4 --target-gpus 2")


@pytest.mark.parametrize(
    ("shape", "gpus", "said"),
    [
        ("qwen3.6-27b", 8, "1 or 2 or 4 can: --target-gpus says how many share the target"),
        ("qwen3-30b-a3b", 2, "2 GPUs cannot share its columns in Q6_K, which has blocks of 256"),
    ],
)
def test_what_cannot_be_shared_is_a_line(shape: str, gpus: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as told:
        shape_subject(shape, "q4_k_m", gpus)
    assert "\n" not in str(told.value)
