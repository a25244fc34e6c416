"""Gemma 4's keys and what follows from them: heads of two sizes, values that keys make, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_calls import call
from tiny_models import rewritten

from sp.errors import ConfigError, ModelError
from sp.gguf import GGUFFile
from sp.models import SessionCache, decode_step, load_model, prefill, prefill_layer_major
from sp.models.config import HeadSizes, ModelConfig
from sp.models.families.base import find_architecture, read_config
from sp.models.families.gemma4 import UNTURNED
from sp.models.file.metadata_keys import Keys
from sp.models.layer.shard_spec import ShardSpec
from sp.models.network.cost import prefill_cost
from sp.models.run.context_parallel import read_context_parallel
from sp.models.run.hooks import Hooks
from sp.models.run.tree import TreeReader
from sp.models.synthetic.shapes import find_shape
from sp.parallel.host import HostGroup
from sp.planning.inspect import inspect_file
from sp.planning.memory import kv_bytes, widest
from sp.scoring import SCORERS, ScoreRequest
from sp.scoring.attention.attention import scaled_queries

SMALL = Path(__file__).parents[1] / "fixtures" / "parity-gemma4.gguf"
NEAR, WIDE = HeadSizes(4, 2, 16), HeadSizes(4, 1, 32, own_values=False)


def small() -> ModelConfig:
    return read_config(GGUFFile.open(SMALL))


def test_keys_come_back() -> None:
    config, record = small(), find_architecture("gemma4")
    assert [config.heads_of(layer) for layer in range(7)] == [NEAR, NEAR, WIDE, NEAR, NEAR, NEAR, WIDE]
    assert config.windows == (24, 24, None, 24, 24, 24, None)
    assert (config.local_rope.base, config.local_rope.dim, config.rope.base, config.rope.dim) == (1e4, 16, 1e6, 32)
    assert config.rope.scaling.by == (1.0,) * 4 + (UNTURNED,) * 12
    assert (config.final_softcap, config.output_scales) == (60, True)
    assert record.config(Keys("gemma4", record.keys(config), "again"), GGUFFile.open(SMALL)) == config


def test_layers_take_the_tensors_of_their_own_heads() -> None:
    model = load_model(SMALL)
    near, wide = (model.weights.blocks[layer] for layer in (1, 2))
    assert (near.mixer.q.shape, near.mixer.k.shape, near.mixer.v.shape) == ((64, 48), (32, 48), (32, 48))
    assert (wide.mixer.q.shape, wide.mixer.k.shape, wide.mixer.v) == ((128, 48), (32, 48), None)
    assert wide.output_scale.shape == (1,)
    assert wide.output_scale[0] != near.output_scale[0]


def test_without_scales_layers_leave_what_they_make(tmp_path: Path) -> None:
    names = [f"blk.{layer}.layer_output_scale.weight" for layer in range(7)]
    ones = {name: np.ones(1, np.float32) for name in names}
    found = []
    for changes in (ones, dict.fromkeys(names)):
        model = load_model(rewritten(SMALL, tmp_path / f"{len(found)}.gguf", changes))
        found.append(prefill(model, np.arange(9), np.arange(9), model.new_cache(9, "f32")))
    assert model.weights.blocks[0].output_scale is None
    np.testing.assert_array_equal(*found)


def test_values_of_their_own_are_taken_where_files_have_them(tmp_path: Path) -> None:
    file, changes = GGUFFile.open(SMALL), {}
    for layer in (2, 6):
        changes[f"blk.{layer}.attn_v.weight"] = file.weight(f"blk.{layer}.attn_k.weight").dense().copy()
    twice, once = load_model(rewritten(SMALL, tmp_path / "m.gguf", changes)), load_model(SMALL)
    assert twice.config.heads_of(2).own_values
    how = np.arange(40), np.arange(0, 120, 3)
    found, wanted = (prefill(model, *how, model.new_cache(40, "f32")) for model in (twice, once))
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def test_pages_of_both_sizes_are_counted_apart() -> None:
    model, n = load_model(SMALL), 300
    cache = model.new_cache(n, "f16")
    prefill(model, np.arange(n) % 97, np.arange(n), cache)
    assert (cache.pages_in_use, cache.peak_pages) == (7 * 3, 7 * 3)
    assert cache.stored(1).k.shape[2:] == (2, 32)
    assert cache.stored(2).k.shape[2:] == (1, 64)
    assert cache.nbytes == cache.peak_nbytes == kv_bytes(model.config, n, "f16")
    once = model.new_cache(n, "f16", layers=1)
    prefill_layer_major(model, np.arange(n) % 97, np.arange(n), once, keep_kv=False)
    assert (once.pages_in_use, once.peak_pages) == (0, 2 * 3)  # at once a layer of either size


def test_a_trail_goes_back_is_parked_and_forked() -> None:
    model, rng = load_model(SMALL), np.random.default_rng(0)
    ids = rng.integers(0, 97, 200)
    trail = SessionCache(model.config, "f32")

    def read(trail: SessionCache, start: int, stop: int) -> Any:
        with trail.reading(stop - start) as cache:
            return prefill(model, ids[start:stop], np.arange(start, stop), cache)

    wanted = read(trail, 0, 200)
    assert trail.rewind_to(150) == 150
    other = trail.fork(140)
    assert trail.park()
    np.testing.assert_allclose(read(trail, 150, 200), wanted, atol=1e-3)
    np.testing.assert_allclose(read(other, 140, 200), wanted, atol=1e-3)


def test_what_is_kept_of_a_tree_goes_on() -> None:
    model, prompt = load_model(SMALL), np.arange(50)
    cache, alone = model.new_cache(99, "f32"), model.new_cache(99, "f32")
    prefill(model, prompt, prompt, cache)
    reader = TreeReader(model, cache, (), most=8)
    tokens, parents, depth = np.array([7, 8, 9, 10]), np.array([-1, 0, 0, 2]), np.array([0, 1, 1, 2])
    reader.read_tree(tokens, parents, 50 + depth)
    reader.commit_path(np.array([0, 2, 3]))
    prefill(model, np.append(prompt, [7, 9, 10]), np.arange(53), alone)
    found, wanted = (decode_step(model, 11, 53, one) for one in (cache, alone))
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def test_published_shapes() -> None:
    large, middle = find_shape("gemma-4-31b").config, find_shape("gemma-4-12b").config
    assert [layer for layer in range(60) if large.windows[layer] is None] == [*range(5, 60, 6)]
    assert large.heads_of(5) == HeadSizes(32, 4, 512, own_values=False)
    assert middle.heads_of(47) == HeadSizes(16, 1, 512, own_values=False)
    sizes = [sum(one.size for one in find_shape(f"gemma-4-{size}").tensors()) / 1e9 for size in ("31b", "12b")]
    assert sizes == pytest.approx([30.7, 11.9], abs=0.05)
    assert widest(large) == (16384, 4096)
    near, wide = 50 * 32 * 256, 10 * 32 * 512
    assert prefill_cost(large, 1000).attention == 4.0 * (near + wide) * 1000 * 1001 / 2  # all within a window


def test_gpus_share_kv_heads_of_both_sizes() -> None:
    shared = ShardSpec(0, 2).config(find_shape("gemma-4-31b").config)
    assert shared.heads_of(0) == HeadSizes(16, 8, 256)
    assert shared.heads_of(5) == HeadSizes(16, 2, 512, own_values=False)
    with pytest.raises(ConfigError, match=r"8 kv heads, 1 kv heads of layers without a window.*; 1 can"):
        ShardSpec(0, 2).config(find_shape("gemma-4-12b").config)


def test_several_gpus_do_not_read_it_together() -> None:
    model = load_model(SMALL)
    with pytest.raises(ConfigError, match="heads of one size"):
        read_context_parallel(HostGroup(2), [model, model], np.arange(600), np.arange(600), Hooks(), rows=1)


def test_inspect_tells_of_both_sizes() -> None:
    family = inspect_file(SMALL)["family"]
    assert family["global_heads"] == {"heads": 4, "kv_heads": 1, "head_dim": 32, "own_values": False}
    assert family["windows"] == {"tokens": 24, "layers": 5, "rope_base": 1e4}


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("embedding_length_per_layer_input", 256, "an E-model, with embeddings of every layer"),
        ("attention.shared_kv_layers", 3, "an E-model, with layers that share keys and values"),
        ("expert_count", 128, "whose layers have a dense feed-forward and experts side by side"),
    ],
)
def test_what_is_missing_is_named_in_a_line(
    key: str,
    value: int,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = rewritten(SMALL, tmp_path / "m.gguf", {}, **{f"gemma4.{key}": value})
    with pytest.raises(ModelError, match=f"key gemma4.{key} marks .*{what}.*use a dense model") as error:
        load_model(path)
    assert "\n" not in str(error.value)
    assert call("inspect", path, monkeypatch=monkeypatch) == 2
    assert what in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"gemma4.attention.key_length_swa": None, "gemma4.attention.value_length_swa": 16}, "value_length_swa"),
        ({"gemma4.attention.head_count_kv": [2, 2, 1, 2, 1, 2, 1]}, "head_count_kv is .* in the attention layers"),
        ({"gemma4.attention.head_count": [4, 4, 2, 4, 4, 4, 2]}, "head_count is 4 with a window and 2 without"),
        ({"gemma4.rope.dimension_count_swa": 17}, "dimension_count_swa is 17; it must be even"),
        ({"gemma4.attention.sliding_window": None}, "sliding_window"),
        ({"gemma4.final_logit_softcapping": -1.0}, "final_logit_softcapping"),
    ],
)
def test_senseless_keys_are_named(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=match):
        load_model(rewritten(SMALL, tmp_path / "m.gguf", {}, **change))


def test_a_file_must_tell_which_pairs_are_turned(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"needs tensor rope_freqs\.weight, which is missing"):
        load_model(rewritten(SMALL, tmp_path / "m.gguf", {"rope_freqs.weight": None}))


def test_scorers_weigh_by_the_scale_of_the_layer() -> None:
    """Products of queries and keys, which scorers divide by the root of the head size, are not divided here."""
    model, rng = load_model(SMALL), np.random.default_rng(0)
    for layer, sizes in ((1, NEAR), (2, WIDE)):
        q = rng.standard_normal((3, sizes.heads, sizes.head_dim)).astype(np.float32)
        np.testing.assert_allclose(scaled_queries(q, model, layer), q * sizes.head_dim**0.5, rtol=1e-6)
        half = scaled_queries(q.astype(np.float16), model, layer)
        assert half.dtype == np.float16
    plain = load_model(SMALL.with_name("parity-qwen3.gguf"))
    assert scaled_queries(q, plain, 0) is q


@pytest.mark.parametrize("options", [{}, {"rotary": "none"}])
def test_scorers_ask_the_layers_without_a_window(options: dict[str, Any]) -> None:
    model, n = load_model(SMALL), 80
    mask = np.arange(n) >= 70
    request = ScoreRequest(model, np.arange(n) % 97, np.arange(n), mask, mask)
    found = SCORERS.build("tail", options).score(request)
    assert found.scores.shape == (n,)
    both = SCORERS.build("tail", options | {"layers": [2, 6]}).score(request)
    np.testing.assert_array_equal(found.scores, both.scores)
