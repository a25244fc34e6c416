"""Qwen3-Next's order of rows: heads that are repeated, GPUs that share them, and keys that come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_models import rewritten

from sp.gguf import GGUFFile
from sp.models import load_model, prefill
from sp.models.families.base import find_architecture, read_config
from sp.models.families.qwen3next import _mixed, _split
from sp.models.file.metadata_keys import Keys
from sp.models.layer.delta import GatedDelta
from sp.models.layer.shard_spec import ShardSpec
from sp.models.shards.load_shards import shard_weights

FIXTURE = Path(__file__).parents[1] / "fixtures" / "parity-qwen3next.gguf"


def mixer(layer: int) -> GatedDelta:
    found = load_model(FIXTURE).weights.blocks[layer].mixer
    assert isinstance(found, GatedDelta)
    return found


def test_keys_come_back() -> None:
    file = GGUFFile.open(FIXTURE)
    config, record = read_config(file), find_architecture("qwen3next")
    assert config.delta is not None
    assert (config.delta.key_heads, config.delta.value_heads, config.delta.copies) == (8, 8, 2)
    keys = record.keys(config)
    assert keys["qwen3next.ssm.group_count"] == 4
    assert record.config(Keys("qwen3next", keys, "again"), file) == config


def test_rows_of_every_part_are_taken_once() -> None:
    c = mixer(0).sizes
    qkv, z = _mixed(c)
    beta, alpha = _split(c, 2, 1)
    d, keys = c.head_dim, c.key_heads // c.copies
    assert sorted({*qkv, *z}) == list(range(2 * keys * d + 2 * c.value_dim))
    assert sorted([*beta, *alpha]) == list(range(2 * c.value_heads))
    assert [len(set(part)) for part in (qkv, z)] == [(2 * keys + c.value_heads) * d, c.value_dim]


def test_gpus_share_repeated_heads() -> None:
    model = load_model(FIXTURE)
    whole, halves = mixer(1), [shard_weights(model.weights, ShardSpec(rank, 2)).blocks[1].mixer for rank in range(2)]
    d, (first, second) = whole.sizes.head_dim, halves
    assert first.sizes.key_heads == first.sizes.value_heads == 4
    q = whole.qkv.dense()[: 8 * d]
    np.testing.assert_array_equal(np.concatenate([half.qkv.dense()[: 4 * d] for half in (first, second)]), q)


def test_layers_listed_by_hand_read_the_same(tmp_path: Path) -> None:
    expected = np.load(FIXTURE.with_suffix(".npz"))
    n, keys = int(expected["prompt"]), {"qwen3next.full_attention_interval": None}
    keys["qwen3next.attention.recurrent_layers"] = [True, True, True, False, True]
    model = load_model(rewritten(FIXTURE, tmp_path / "listed.gguf", {}, **keys))
    found = prefill(model, expected["ids"][:n], np.arange(n), model.new_cache(n, "f32"))
    assert np.abs(found - expected["logits"][-1]).max() < 1e-4 * np.abs(expected["logits"][-1]).max()
