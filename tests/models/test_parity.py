"""Logits equal those of `transformers` on the same weights; `tests/fixtures/make_parity.py` made the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import rewritten

from sp.gguf import GGUFFile
from sp.models import decode_step, load_model, prefill, prefill_layer_major

FIXTURES = Path(__file__).parents[1] / "fixtures"
CASES = [
    "qwen3",
    "qwen35",
    "llama",
    "llama-3",
    "llama-linear",
    "llama-yarn",
    "qwen2",
    "qwen2-yarn",
    "qwen3moe",
    "qwen3moe-plain",
    "qwen35moe",
    "gemma3",
    "mistral3",
    "qwen3next",
    "muse-glimmer",
    "gemma2",
    "gemma2-large",
    "gpt-oss",
    "gemma4",
]
TOLERANCE = 1e-4  # of the largest logit in the row


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest error over the largest magnitude of its row."""
    return float((np.abs(found - expected).max(-1) / np.abs(expected).max(-1)).max())


@pytest.fixture(params=CASES)
def path(request):
    """A file of the maker."""
    return FIXTURES / f"parity-{request.param}.gguf"


@pytest.fixture
def case(path):
    """(model, expected arrays) of one file."""
    return load_model(path), np.load(path.with_suffix(".npz"))


def rms(found: np.ndarray, expected: np.ndarray) -> float:
    """Size of the error over the size of what was expected."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def all_logits(model, ids, positions, cache) -> np.ndarray:
    """Logits of every token in one pass."""
    x = model.embed(ids)
    for layer in range(model.config.layers):
        x = model.layer(layer, x, positions, cache)
    return model.head(x)


def test_prefill_of_every_row(case) -> None:
    model, expected = case
    n = int(expected["prompt"])
    found = all_logits(model, expected["ids"][:n], np.arange(n), model.new_cache(n, "f32"))
    assert relative(found, expected["logits"]) < TOLERANCE
    assert rms(found, expected["logits"]) < TOLERANCE


@pytest.mark.parametrize("walk", [prefill, prefill_layer_major])
@pytest.mark.parametrize("chunk", [13, 512])
def test_prefill_then_eight_decode_steps(case, walk, chunk) -> None:
    model, expected = case
    ids, n = expected["ids"], int(expected["prompt"])
    cache = model.new_cache(len(ids), "f32")
    assert relative(walk(model, ids[:n], np.arange(n), cache, chunk=chunk), expected["logits"][-1]) < TOLERANCE
    decoded = [decode_step(model, int(ids[t]), t, cache) for t in range(n, len(ids))]
    assert len(decoded) == 8
    assert relative(np.stack(decoded), expected["decoded"]) < TOLERANCE


def test_positions_with_gaps(case) -> None:
    model, expected = case
    n = int(expected["prompt"])
    ids, positions = expected["ids"][:n], expected["gapped"]
    found = all_logits(model, ids, positions, model.new_cache(n, "f32"))
    assert relative(found, expected["gapped_logits"]) < TOLERANCE
    assert relative(found, expected["logits"]) > 100 * TOLERANCE, "positions must matter for this test to mean much"


def last_logits(path: Path, expected) -> np.ndarray:
    """Logits after the prompt of a fixture."""
    n = int(expected["prompt"])
    model = load_model(path)
    return prefill(model, expected["ids"][:n], np.arange(n), model.new_cache(n, "f32"))


@pytest.mark.parametrize("arch", ["qwen3", "qwen35", "llama-3"])
def test_fused_qkv_and_explicit_output_change_nothing(arch, tmp_path) -> None:
    source = FIXTURES / f"parity-{arch}.gguf"
    expected = np.load(source.with_suffix(".npz"))
    changes: dict[str, np.ndarray | None] = {}
    with GGUFFile.open(source) as file:
        for name in file.tensors:
            if name.endswith("attn_q.weight"):
                blk = name.removesuffix("attn_q.weight")
                parts = [f"{blk}attn_{part}.weight" for part in "qkv"]
                changes |= dict.fromkeys(parts)
                changes[f"{blk}attn_qkv.weight"] = np.concatenate([file.weight(p).dense() for p in parts])
        if "output.weight" not in file.tensors:
            changes["output.weight"] = file.weight("token_embd.weight").dense().copy()
    assert any(v is not None for v in changes.values())
    found = last_logits(rewritten(source, tmp_path / "fused.gguf", changes), expected)
    assert relative(found, expected["logits"][-1]) < TOLERANCE


def test_multi_token_prediction_block_is_skipped(tmp_path) -> None:
    source = FIXTURES / "parity-qwen35.gguf"
    expected = np.load(source.with_suffix(".npz"))
    extra = {
        "blk.5.attn_norm.weight": np.ones(64, np.float32),
        "blk.5.nextn.eh_proj.weight": np.ones((64, 128), np.float32),
    }
    keys = {"qwen35.block_count": 6, "qwen35.nextn_predict_layers": 1}
    path = rewritten(source, tmp_path / "mtp.gguf", extra, **keys)
    assert load_model(path).config.layers == 5
    assert relative(last_logits(path, expected), expected["logits"][-1]) < TOLERANCE


def test_explicit_layer_kinds_and_per_layer_arrays_read_the_same(tmp_path) -> None:
    source = FIXTURES / "parity-qwen35.gguf"
    expected = np.load(source.with_suffix(".npz"))
    keys = {
        "qwen35.full_attention_interval": None,
        "qwen35.attention.recurrent_layers": [True, True, True, False, True],
        "qwen35.attention.head_count": [0, 0, 0, 4, 0],
        "qwen35.attention.head_count_kv": [0, 0, 0, 2, 0],
        "qwen35.feed_forward_length": [80] * 5,
    }
    found = last_logits(rewritten(source, tmp_path / "arrays.gguf", {}, **keys), expected)
    assert relative(found, expected["logits"][-1]) < TOLERANCE
