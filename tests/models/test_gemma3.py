"""Gemma 3 as its formulas have it: tiny random files against float64, windows and RoPE of both kinds."""

from __future__ import annotations

from pathlib import Path

import gemma3_reference
import numpy as np
import pytest

from sp.errors import ConfigError, ModelError, PromptError
from sp.gguf import GGUFFile, GGUFWriter
from sp.models import decode_step, load_model, prefill, prefill_layer_major
from sp.models.families.base import find_architecture, read_config, shard_config
from sp.models.file.metadata_keys import Keys
from sp.models.run.tree import TreeReader
from sp.models.synthetic.shapes import find_shape
from sp.ops.rope import Rope, rope
from sp.planning.inspect import inspect_file
from sp.quant import F32
from sp.scoring.attention.attention import unrotated_queries

HIDDEN, FFN, HEADS, KV_HEADS, DIM, VOCAB, WINDOW, N = 96, 64, 4, 2, 32, 200, 37, 130


def write(path: Path, layers: int, **more: object) -> Path:
    """A random file, as converters write them: without base and period of the layers with a window."""
    rng = np.random.default_rng(layers)
    keys = {
        "block_count": layers, "context_length": 4096, "embedding_length": HIDDEN, "feed_forward_length": FFN,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": DIM,
        "attention.value_length": DIM, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
        "attention.sliding_window": WINDOW,
    }  # fmt: skip
    named = {f"gemma3.{key}": value for key, value in (keys | more).items() if value is not None}
    writer = GGUFWriter(path, {"general.architecture": "gemma3"} | named)

    def add(name: str, *shape: int) -> None:
        size = 1.3 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.2
        value = (size * rng.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)
        writer.add(f"{name}.weight", shape, F32, F32.encode(value))

    add("token_embd", VOCAB, HIDDEN)
    add("output_norm", HIDDEN)
    for i in range(layers):
        for name, *shape in (
            ("attn_q", HEADS * DIM, HIDDEN), ("attn_k", KV_HEADS * DIM, HIDDEN), ("attn_v", KV_HEADS * DIM, HIDDEN),
            ("attn_output", HIDDEN, HEADS * DIM), ("attn_q_norm", DIM), ("attn_k_norm", DIM), ("attn_norm", HIDDEN),
            ("post_attention_norm", HIDDEN), ("ffn_norm", HIDDEN), ("post_ffw_norm", HIDDEN),
            ("ffn_gate", FFN, HIDDEN), ("ffn_up", FFN, HIDDEN), ("ffn_down", HIDDEN, FFN),
        ):  # fmt: skip
            add(f"blk.{i}.{name}", *shape)
    return writer.write()


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("layers", [7, 62])
def test_logits_are_those_of_float64(layers: int, gaps: bool, tmp_path: Path) -> None:
    """62 layers are a 27B, whose queries have another scale."""
    path, rng = write(tmp_path / "gemma.gguf", layers), np.random.default_rng(2)
    ids = rng.integers(0, VOCAB, N)
    positions = np.cumsum(rng.integers(1, 9, N)) if gaps else np.arange(N)
    wanted = gemma3_reference.logits(path, ids, positions, 2)
    model = load_model(path)
    for walk in (prefill, prefill_layer_major):
        cache = model.new_cache(N, "f32")
        before = walk(model, ids[:-1], positions[:-1], cache)
        assert apart(before, wanted[0]) < 1e-5
        assert apart(decode_step(model, ids[-1], positions[-1], cache), wanted[1]) < 1e-5


def test_scaling_of_rope_leaves_the_windows_alone(tmp_path: Path) -> None:
    scaled = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    config = read_config(GGUFFile.open(write(tmp_path / "gemma.gguf", 7, **scaled)))
    spec = find_architecture("gemma3").spec
    assert [spec(config, layer).window for layer in range(7)] == [*[WINDOW] * 5, None, WINDOW]
    assert spec(config, 5).rope is None
    assert config.rope.scaling is not None
    assert spec(config, 0).rope.scaling is None
    assert spec(config, 0).rope.base == 1e4


@pytest.mark.parametrize("layer", [0, 5])
def test_scorers_take_back_the_rope_of_the_layer(layer: int, tmp_path: Path) -> None:
    model, rng = load_model(write(tmp_path / "gemma.gguf", 7)), np.random.default_rng(1)
    plain, positions = rng.standard_normal((9, HEADS, DIM)).astype(np.float32), np.arange(5, 50, 5)
    turned = rope(plain, positions, Rope(1e6 if layer == 5 else 1e4, DIM))
    assert np.abs(unrotated_queries(turned, positions, model, layer) - plain).max() < 1e-5
    assert np.abs(unrotated_queries(turned, positions, model, 5 - layer) - plain).max() > 0.1


def test_a_tree_wider_than_a_window_is_refused(tmp_path: Path) -> None:
    model = load_model(write(tmp_path / "gemma.gguf", 7))
    reader, nodes = TreeReader(model, model.new_cache(99), (), most=64), WINDOW + 1
    with pytest.raises(ConfigError, match=f"window of {WINDOW}, less than the {nodes} nodes"):
        reader.read_tree(np.arange(nodes), np.arange(nodes) - 1, np.arange(nodes))


def test_branches_of_a_tree_are_chains_and_what_is_kept_goes_on(tmp_path: Path) -> None:
    """Windows are of positions, and siblings have one: each branch is as if it stood alone. Then one is kept."""
    model, rng = load_model(write(tmp_path / "gemma.gguf", 7)), np.random.default_rng(3)
    context, prompt = np.cumsum(rng.integers(1, 4, 60)), rng.integers(0, 90, 60)
    parents, tokens = np.array([-1, 0, 0, 1, 2, 3, 3]), rng.integers(0, 90, 7)
    paths = [[0, 1, 3, 5], [0, 1, 3, 6], [0, 2, 4]]
    depth = np.array([0, 1, 1, 2, 2, 3, 3])
    cache = model.new_cache(99, "f32")
    prefill(model, prompt, context, cache)
    reader = TreeReader(model, cache, (), most=8)
    found = reader.read_tree(tokens, parents, context[-1] + 1 + depth)
    for path in paths:
        alone = model.new_cache(99, "f32")
        prefill(model, prompt, context, alone)
        for node in path:
            want = decode_step(model, int(tokens[node]), int(context[-1] + 1 + depth[node]), alone)
            np.testing.assert_allclose(found.logits[node], want, atol=1e-4 * np.abs(want).max())
    reader.commit_path(np.array(paths[1]))
    alone = model.new_cache(99, "f32")
    kept = np.concatenate([prompt, tokens[paths[1]]]), np.concatenate([context, context[-1] + 1 + np.arange(4)])
    prefill(model, *kept, alone)
    for more in range(30):  # past a window
        at = int(context[-1]) + 5 + more
        want, got = (decode_step(model, more, at, each) for each in (alone, cache))
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_layers_with_a_window_keep_what_it_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are written again, and nothing that is said changes: chunks, steps, a tree and what is kept of it."""
    monkeypatch.setattr("sp.models.cache.cache.AT_ONCE", 256)
    model, rng = load_model(write(tmp_path / "gemma.gguf", 7)), np.random.default_rng(5)
    ids, positions = rng.integers(0, VOCAB, 1500), np.cumsum(rng.integers(1, 3, 1500))
    whole, once = (model.new_cache(1600, "f32", once=once) for once in (False, True))
    want, got = (prefill(model, ids, positions, cache) for cache in (whole, once))
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
    assert whole.pages_in_use == 7 * 12
    assert once.pages_in_use == 12 + 6 * 4
    assert once.nbytes < whole.nbytes / 2
    tokens, parents = rng.integers(0, VOCAB, 4), np.array([-1, 0, 0, 2])
    after = positions[-1] + 1 + np.array([0, 1, 1, 2])
    trees = []
    for cache in (whole, once):
        reader = TreeReader(model, cache, (), most=4)
        trees.append(reader.read_tree(tokens, parents, after).logits)
        reader.commit_path(np.array([0, 2, 3]))
    np.testing.assert_allclose(trees[1], trees[0], atol=1e-4 * np.abs(trees[0]).max())
    for more in range(60):
        at = int(positions[-1]) + 4 + more
        want, got = (decode_step(model, more, at, cache) for cache in (whole, once))
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_a_prompt_layer_by_layer_does_not_fit_what_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sp.models.cache.cache.AT_ONCE", 64)
    model, ids = load_model(write(tmp_path / "gemma.gguf", 7)), np.arange(90)
    with pytest.raises(PromptError, match="stores all 90 tokens of a layer, and windowed layers of this cache take 64"):
        prefill_layer_major(model, ids, ids, model.new_cache(90, once=True))


def test_a_pattern_of_another_length_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "gemma.gguf", 7, **{"attention.sliding_window_pattern": [True, False]})
    assert inspect_file(path)  # what it can still tell
    with pytest.raises(ModelError, match="sliding_window_pattern"):
        load_model(path)


@pytest.mark.parametrize("name", ["gemma-2-9b", "gemma-3-27b", "gemma-4-31b", "muse-glimmer-30b"])
def test_norms_behind_are_not_shared(name: str) -> None:
    with pytest.raises(ConfigError, match="share layers with post-norms"):
        shard_config(find_shape(name).config, 2)
    shard_config(find_shape(name).config, 1)


def test_inspect_tells_of_the_windows(tmp_path: Path) -> None:
    found = inspect_file(write(tmp_path / "gemma.gguf", 7))["family"]["windows"]
    assert found == {"tokens": WINDOW, "layers": 6, "rope_base": 1e4}


def test_keys_come_back(tmp_path: Path) -> None:
    file = GGUFFile.open(write(tmp_path / "gemma.gguf", 7, **{"attention.sliding_window_pattern": 3}))
    config, record = read_config(file), find_architecture("gemma3")
    assert config.windows == (WINDOW, WINDOW, None, WINDOW, WINDOW, None, WINDOW)
    keys = Keys("gemma3", record.keys(config), "again")
    assert record.config(keys, file) == config


@pytest.mark.parametrize(("key", "value"), [("attention.sliding_window", None), ("final_logit_softcapping", 30.0)])
def test_what_is_not_known_is_refused(key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=key):
        load_model(write(tmp_path / "gemma.gguf", 7, **{key: value}))
