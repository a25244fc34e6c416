"""llama and qwen2: what their files say besides tensors, and what is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from parity import fixture, last_logits
from tiny_models import rewritten

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models import load_model, read_config
from sp.models.families.llama import FACTORS, FrequencyFactors, llama3_factors
from sp.planning.inspect import inspect_file


def complaint(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_factors_are_those_of_transformers() -> None:
    with GGUFFile.open(fixture("llama-3")) as file:
        theirs = file.weight(FACTORS).dense()
    ours = np.array(llama3_factors(5e5, 16, 8.0, 256).by)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert 1 < np.sort(np.unique(ours.round(3)))[1] < 8, "one lies between"


@pytest.mark.parametrize("name", ["llama-3", "llama"])
def test_what_makes_llama_matters(name, tmp_path) -> None:
    path = fixture(name)
    assert last_logits(path, name) < 1e-4
    with GGUFFile.open(path) as file:
        dropped = [one for one in file.tensors if one == FACTORS or one.endswith("_q.bias")]
        zeros = {one: np.ones_like(file.weight(one).dense()) * (one == FACTORS) for one in dropped}
        q = file.weight("blk.0.attn_q.weight").dense()
    assert last_logits(rewritten(path, tmp_path / "m.gguf", zeros), name) > 1e-2
    heads = q.reshape(4, -1, 2, q.shape[1]).swapaxes(1, 2).reshape(q.shape)
    assert last_logits(rewritten(path, tmp_path / "m.gguf", {"blk.0.attn_q.weight": heads}), name) > 1e-2


def test_what_older_files_leave_out(tmp_path) -> None:
    """The base of RoPE, its width, and the kv heads of a model without groups."""
    absent = {"llama.rope.freq_base": None, "llama.rope.dimension_count": None}
    path = rewritten(fixture("llama"), tmp_path / "m.gguf", {}, **absent)
    assert last_logits(path, "llama") < 1e-4
    config = load_model(path).config
    assert (config.rope.base, config.rope.dim, config.rope.pairing) == (1e4, 8, "interleaved")


def test_neutral_values_are_let_pass(tmp_path) -> None:
    keys = {"expert_count": 0, "attention.sliding_window": 0, "logit_scale": 1.0, "attention.scale": 8**-0.5}
    path = rewritten(fixture("llama"), tmp_path / "m.gguf", {}, **{f"llama.{key}": keys[key] for key in keys})
    assert last_logits(path, "llama") < 1e-4
    path = rewritten(path, tmp_path / "n.gguf", {}, **{"llama.attention.sliding_window": 1 << 20})
    assert last_logits(path, "llama") < 1e-4


REFUSED = [
    ("expert_count", 8),
    ("attention.sliding_window", 4096),
    ("attention.scale", 0.5),
    ("attention.causal", False),
    ("logit_scale", 0.25),
    ("embedding_scale", 12.0),
    ("residual_scale", 0.2),
    ("final_logit_softcapping", 30.0),
    ("attn_logit_softcapping", 50.0),
    ("attention.clamp_kqv", 8.0),
    ("logit_scale", "one"),
    ("logit_scale", [1.0, 2.0]),
    ("logit_scale", float("nan")),
]


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_what_would_change_the_formulas_is_refused(name, key, value, tmp_path) -> None:
    if (name, key) == ("qwen3", "attention.sliding_window"):
        value = 1000
    path = rewritten(fixture(name), tmp_path / "m.gguf", {}, **{f"{name}.{key}": value})
    assert f"{name}.{key}" in complaint(path)
    assert any(f"{name}.{key}" in warning for warning in inspect_file(path)["warnings"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.ones(7, np.float32), "has shape (7,); the metadata asks for (8,)"),
        (np.ones((2, 4), np.float32), "has shape (2, 4); the metadata asks for (8,)"),
        (np.array([1, 1, 1, 0, 1, 1, 1, 1], np.float32), "not positive"),
        (np.full(8, np.nan, np.float32), "not positive"),
        (np.full(8, -1, np.float32), "not positive"),
    ],
)
def test_damaged_factors_are_named(values, words, tmp_path) -> None:
    message = complaint(rewritten(fixture("llama-3"), tmp_path / "m.gguf", {FACTORS: values}))
    assert FACTORS in message
    assert words in message


def test_two_scalings_at_once_are_refused(tmp_path) -> None:
    keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    message = complaint(rewritten(fixture("llama-3"), tmp_path / "m.gguf", {}, **keys))
    assert "llama.rope.scaling.type" in message
    assert FACTORS in message


@pytest.mark.parametrize(
    ("name", "dropped", "words"),
    [
        ("qwen2", "blk.1.attn_k.bias", "blk.1.attn_k.bias is missing"),
        ("llama", "blk.1.attn_v.bias", "blk.1.attn_v.bias is missing"),
        ("llama", "blk.1.attn_q.bias", "not part of llama, the first is blk.1.attn_k.bias"),
    ],
)
def test_half_a_set_of_biases_is_no_model(name, dropped, words, tmp_path) -> None:
    assert words in complaint(rewritten(fixture(name), tmp_path / "m.gguf", {dropped: None}))


def test_numbers_of_both() -> None:
    with GGUFFile.open(fixture("llama-3")) as file:
        llama = read_config(file)
    assert isinstance(llama.rope.scaling, FrequencyFactors)
    assert (llama.head_dim, llama.hidden, llama.heads, llama.rope.base) == (16, 32, 4, 5e5)
    with GGUFFile.open(fixture("qwen2")) as file:
        qwen2 = read_config(file)
    assert (qwen2.head_dim, qwen2.rope) == (8, replace(qwen2.rope, base=1e6, pairing="halves", scaling=None))
