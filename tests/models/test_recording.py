"""What building a model on a store without weights notes is what its files hold."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import KEYS, random_tensors, write_tiny

from sp.gguf import GGUFFile
from sp.models import load_model, read_config
from sp.models.file.weights import RecordingStore, WeightStore
from sp.models.network.weights import ModelWeights, model_tensors


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_notes_are_what_files_hold(arch, tmp_path) -> None:
    held = {name: value.shape for name, value in random_tensors(arch, KEYS[arch], 0).items()}
    with GGUFFile.open(write_tiny(tmp_path / "m.gguf", arch)) as file:
        config = read_config(file)
        noted = model_tensors(config, file.tensors)
    assert {tensor.name: tensor.shape for tensor in noted} == held
    assert sum(tensor.size for tensor in noted) == sum(int(np.prod(shape)) for shape in held.values())
    for tensor in noted:
        expected = "vector" if len(tensor.shape) == 1 else "table" if "conv1d" in tensor.name else "matrix"
        assert tensor.kind == expected, tensor
    assert [tensor.name for tensor in noted if tensor.optional] == (["output.weight"] if arch == "qwen35" else [])


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_files_have_the_order_of_the_parts(arch, tmp_path) -> None:
    config = load_model(write_tiny(tmp_path / "m.gguf", arch)).config
    names = [tensor.name for tensor in model_tensors(config, ("output.weight",))]
    assert (names[0], names[-2:]) == ("token_embd.weight", ["output_norm.weight", "output.weight"])
    block = [name.removeprefix("blk.2.") for name in names if name.startswith("blk.2.")]  # one that attends
    norm = "post_attention_norm" if arch == "qwen35" else "ffn_norm"
    parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output"]
    assert block == [f"{part}.weight" for part in (*parts, norm, "ffn_gate", "ffn_up", "ffn_down")]


def test_what_may_be_chosen_is_noted_as_optional(tmp_path) -> None:
    config = load_model(write_tiny(tmp_path / "m.gguf", "qwen3")).config
    fused = {"blk.1.attn_qkv.weight"}
    noted = {tensor.name: tensor for tensor in model_tensors(config, fused)}
    assert "blk.1.attn_q.weight" not in noted
    assert noted["blk.1.attn_qkv.weight"].optional
    assert noted["blk.1.attn_qkv.weight"].shape == ((6 + 2 + 2) * 64, 40)
    assert "blk.0.attn_q.weight" in noted


def test_a_model_is_built_by_the_same_calls(tmp_path, monkeypatch) -> None:
    """Names and shapes, in order: what a file is asked for when it is loaded."""
    asked: list[tuple[str, tuple[int, ...]]] = []
    take = WeightStore._take
    monkeypatch.setattr(WeightStore, "_take", lambda self, *what: asked.append(what) or take(self, *what))
    config = load_model(write_tiny(tmp_path / "m.gguf", "qwen35")).config
    store = RecordingStore(config, ("output.weight",))
    ModelWeights.build(store)
    assert asked == [(tensor.name, tensor.shape) for tensor in store.tensors.values()]
