"""Muse Glimmer's layers without RoPE, its norms and its logits; and what takes RoPE back where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import rewritten

from sp.errors import ConfigError, ModelError
from sp.gguf import GGUFFile
from sp.models import RopeScaling, describe_window, load_model, needed_scaling
from sp.models.families.base import find_architecture, read_config
from sp.models.file.metadata_keys import Keys
from sp.models.shards.load_shards import load_shards
from sp.ops.attention.attention_heads import unrotate
from sp.ops.norms import rms_norm
from sp.ops.rope import Rope, rope
from sp.parallel.host import HostGroup
from sp.planning.inspect import inspect_file
from sp.scoring.attention.attention import unrotated_keys, unrotated_queries

FIXTURE = Path(__file__).parents[1] / "fixtures" / "parity-muse-glimmer.gguf"
GLOBAL, LOCAL = 3, 0


def test_keys_come_back() -> None:
    file = GGUFFile.open(FIXTURE)
    config, record = read_config(file), find_architecture("muse-glimmer")
    assert config.windows == (24, 24, 24, None) * 2
    keys = record.keys(config)
    assert keys["muse-glimmer.attention.sliding_window_pattern"] == 4
    assert record.config(Keys("muse-glimmer", keys, "again"), file) == config
    uneven = replace(config, windows=(24, None, 24, 24, None, 24, 24, None))
    assert record.config(Keys("muse-glimmer", record.keys(uneven), "again"), file) == uneven


def test_only_layers_with_a_window_are_turned() -> None:
    config, spec = load_model(FIXTURE).config, find_architecture("muse-glimmer").spec
    assert [config.rope_of(layer).dim for layer in range(4)] == [32, 32, 32, 0]
    assert spec(config, LOCAL).rope == config.local_rope == Rope(5e5, 32, "interleaved")
    assert spec(config, GLOBAL).rope is None


def test_rope_of_no_values_leaves_heads_as_they_are() -> None:
    x, positions, none = np.ones((3, 2, 4), np.float32), np.array([1, 5, 900]), Rope(1e4, 0)
    np.testing.assert_array_equal(rope(x, positions, none), x)
    np.testing.assert_array_equal(unrotate(x, positions, none), x)


@pytest.mark.parametrize("layer", [LOCAL, GLOBAL])
def test_scorers_take_back_what_the_layer_turned(layer: int) -> None:
    """Of one token at two places they are the same once RoPE is taken back, in a layer without it as well."""
    model, seen = load_model(FIXTURE), list[np.ndarray]()
    for positions in (np.array([7]), np.array([1900])):
        cache, x = model.new_cache(1, "f32"), model.embed(np.array([5]))

        def look(index: int, q: np.ndarray, cache: object, positions: np.ndarray = positions) -> None:
            keys = unrotated_keys(cache.stored(index), positions, model, index)  # type: ignore[attr-defined]
            seen.extend([unrotated_queries(q, positions, model, index), keys.keys(), q])

        model.layer(layer, x, positions, cache, on_attention=look)
    (q, k, turned), (other_q, other_k, other_turned) = seen[:3], seen[3:]
    np.testing.assert_allclose(q, other_q, atol=1e-4)
    np.testing.assert_allclose(k, other_k, atol=1e-4)
    assert (np.abs(turned - other_turned).max() > 0.1) == (layer == LOCAL)


def test_embeddings_are_normed_but_for_drafts() -> None:
    model, ids = load_model(FIXTURE), np.array([3, 50])
    plain = model.embed(ids, normed=False)
    np.testing.assert_allclose(model.embed(ids), rms_norm(plain, np.ones(48, np.float32), model.config.eps), rtol=1e-6)
    assert np.abs(np.square(model.embed(ids)).mean(axis=1) - 1).max() < 1e-3


def test_norms_behind_have_their_own_eps() -> None:
    block = load_model(FIXTURE).weights.blocks[0]
    (*_, first), (*_, second) = block.steps()
    assert first.post_norm[1] == second.post_norm[1] == 1e-8  # type: ignore[attr-defined]
    assert block.eps == pytest.approx(1e-5)


def test_logits_stay_within_their_bound() -> None:
    model = load_model(FIXTURE)
    x = 100 * np.random.default_rng(0).standard_normal((4, 48)).astype(np.float32)
    large = replace(model.weights, output_norm=100 * model.weights.output_norm)
    model.weights = large
    logits = model.head(x)
    assert 5.9 < np.abs(logits).max() <= 6
    assert np.isfinite(logits).all()


def test_gates_are_multiplied_by_apart() -> None:
    """So that files may hold them and queries in formats of their own."""
    reads = load_model(FIXTURE).weights.blocks[0].steps()[0][0].reads()
    assert [one.name for one in (reads or [])[:2]] == ["blk.0.attn_q.weight", "blk.0.attn_gate.weight"]


def test_scaling_of_rope_is_refused_as_nothing_would_be_scaled(tmp_path: Path) -> None:
    config = load_model(FIXTURE).config
    assert needed_scaling(config, 2 * config.context) is None
    assert describe_window(config).endswith("extrapolated, because its layers with full attention have no RoPE")
    with pytest.raises(ConfigError, match="to muse-glimmer, whose layers with full attention have no RoPE"):
        RopeScaling("yarn", 4.0).applied(config)
    keys = {"muse-glimmer.rope.scaling.type": "linear", "muse-glimmer.rope.scaling.factor": 2.0}
    path = rewritten(FIXTURE, tmp_path / "scaled.gguf", {}, **keys)
    with pytest.raises(ModelError, match=r"rope\.scaling\.type sets a scaling, which sp does not support here"):
        load_model(path)


def test_inspect_says_where_rope_is() -> None:
    found = inspect_file(FIXTURE)["family"]
    assert found["rope"]["dim"] == 0
    assert found["windows"] == {"tokens": 24, "layers": 6, "rope_base": 5e5}


def test_gpus_cannot_share_it_yet() -> None:
    with pytest.raises(ConfigError, match="post-norms"):
        load_shards(FIXTURE, HostGroup(2))
