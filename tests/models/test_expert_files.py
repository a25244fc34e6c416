"""Files of mixtures of experts: what of their keys and tensors counts, and what is refused in one line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from parity import fixture, last_logits
from tiny_models import rewritten

from sp import cli
from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models import ExpertConfig, load_model, read_config
from sp.models.network.cost import active_params, prefill_cost
from sp.models.synthetic.shapes import find_shape, tensor_plan
from sp.models.synthetic.synthetic import write_synthetic
from sp.planning.inspect import inspect_file


def changed(name: str, folder: Path, change: str, by: float = 0.0) -> Path:
    """A copy in which every tensor of a name's end is multiplied."""
    with GGUFFile.open(fixture(name)) as file:
        values = {one: file.weight(one).dense() * np.float32(by) for one in file.tensors if one.endswith(change)}
    assert values
    return rewritten(fixture(name), folder / "m.gguf", values)


def complaint(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_configurations() -> None:
    with GGUFFile.open(fixture("qwen35moe")) as file:
        assert read_config(file).experts == ExpertConfig(7, 4, 16, shared=40)
        assert "qwen35moe.feed_forward_length" not in file.metadata
        assert "blk.4.ffn_gate_up_exps.weight" in file.tensors, "one layer is fused"
    with GGUFFile.open(fixture("qwen3moe-plain")) as file:
        assert read_config(file).experts == ExpertConfig(7, 3, 16, normalised=False)
        assert read_config(file).ffn == (48, 48)


def test_inspect_tells_of_experts(tmp_path, capsys, monkeypatch) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "tiny-qwen35moe", "q4_k_m")
    monkeypatch.setattr("sys.argv", ["sp", "inspect", str(path)])
    with contextlib.suppress(SystemExit):
        cli.main()
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("runs: yes, as a drafter")
    assert "experts 4 of 16 for a token, 256 wide and a shared one of 256; 6.6 M parameters" in shown


def test_what_a_gpu_would_hold_otherwise_is_told_of_experts_too(tmp_path) -> None:
    """Stacks are tall: only the router, of a row an expert, is narrow enough to keep every bit as three matrices."""
    info = inspect_file(write_synthetic(tmp_path / "m.gguf", "tiny-qwen3moe", "f32"))
    [split] = [one for one in info["repacked"] if one["target"] == "3 x BF16"]
    [plain] = [one for one in info["repacked"] if one["target"] == "BF16"]
    assert plain["tensors"] >= 12
    assert plain["source_bytes"] > 12 * 4 * 8 * 256 * 256
    assert split["tensors"] >= 4


@pytest.mark.parametrize("part", ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ffn_down_shexp.weight"])
def test_every_part_matters(part, tmp_path) -> None:
    assert last_logits(fixture("qwen35moe"), "qwen35moe") < 1e-4
    assert last_logits(changed("qwen35moe", tmp_path, part), "qwen35moe") > 1e-2


def test_whether_weights_add_up_to_one_is_as_the_file_says(tmp_path) -> None:
    said = {"qwen3moe.expert_weights_norm": True}
    assert last_logits(rewritten(fixture("qwen3moe"), tmp_path / "a.gguf", {}, **said), "qwen3moe") < 1e-4
    assert last_logits(rewritten(fixture("qwen3moe-plain"), tmp_path / "b.gguf", {}, **said), "qwen3moe-plain") > 1e-2


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("expert_count", None, "expert_count is missing"),
        ("expert_count", 0, "must lie in 1.."),
        ("expert_count", 1 << 30, "must lie in 1.."),
        ("expert_used_count", 8, "is 8 of 7 experts"),
        ("expert_used_count", 0, "must lie in 1.."),
        ("expert_feed_forward_length", None, "expert_feed_forward_length is missing"),
        ("expert_feed_forward_length", 17, "the metadata asks for (7, 34, 64)"),
        ("expert_shared_feed_forward_length", None, "expert_shared_feed_forward_length is missing"),
        ("expert_weights_norm", "perhaps", "true or false"),
        ("expert_gating_func", 2, "expert_gating_func is 2"),
        ("expert_weights_scale", 2.5, "expert_weights_scale is 2.5"),
        ("expert_group_count", 8, "expert_group_count is 8"),
        ("leading_dense_block_count", 1, "leading_dense_block_count is 1"),
        ("moe_every_n_layers", 2, "moe_every_n_layers is 2"),
    ],
)
def test_what_makes_no_sense_is_refused(key, value, words, tmp_path) -> None:
    message = complaint(rewritten(fixture("qwen35moe"), tmp_path / "m.gguf", {}, **{f"qwen35moe.{key}": value}))
    assert words in message or (key == "expert_feed_forward_length" and "the metadata asks for (7, 17, 64)" in message)


def test_files_of_today_and_those_that_say_nothing_more_than_usual(tmp_path) -> None:
    said = {"expert_gating_func": 1, "expert_weights_scale": 1.0, "expert_group_count": 1, "expert_weights_norm": True}
    path = rewritten(fixture("qwen35moe"), tmp_path / "m.gguf", {}, **{f"qwen35moe.{key}": said[key] for key in said})
    assert last_logits(path, "qwen35moe") < 1e-4


def test_a_missing_tensor_of_experts_is_named(tmp_path) -> None:
    for dropped in ("blk.0.ffn_up_exps.weight", "blk.1.ffn_gate_inp_shexp.weight", "blk.4.ffn_down_exps.weight"):
        message = complaint(rewritten(fixture("qwen35moe"), tmp_path / "m.gguf", {dropped: None}))
        assert f"{dropped} is missing" in message
    extra = {"blk.0.exp_probs_b.bias": np.ones(7, np.float32)}
    assert "blk.0.exp_probs_b.bias" in complaint(rewritten(fixture("qwen35moe"), tmp_path / "m.gguf", extra))


@pytest.mark.parametrize(
    ("name", "total", "active", "file_gb"),
    [("qwen3.6-35b-a3b", 34.66e9, 2.95e9, 21.2e9), ("qwen3-30b-a3b", 30.53e9, 3.03e9, 18.6e9)],
)
def test_published_sizes(name, total, active, file_gb) -> None:
    """About 3 B of 35 and of 30 are active, the head among them; a Q4_K_M file is as large as those people have."""
    shape = find_shape(name)
    assert sum(tensor.size for tensor in shape.tensors()) == pytest.approx(total, rel=0.01)
    params = active_params(shape.config)
    assert params + shape.config.vocab * shape.config.hidden == pytest.approx(active, rel=0.03)
    assert prefill_cost(shape.config, 1000).weights == pytest.approx(2000 * params)
    plan = tensor_plan(name, "q4_k_m")
    assert sum(fmt.nbytes(size) for _, size, fmt in plan) == pytest.approx(file_gb, rel=0.03)
