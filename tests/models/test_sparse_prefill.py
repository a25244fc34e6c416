"""A prompt read sparsely, whole or in chunks after a prefix, over every kind of cache, against dense reading."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import VOCAB, write_tiny

from sp.errors import PromptError
from sp.models import Model, SparseAttention, load_model, prefill, prefill_layer_major, prefill_sparse
from sp.ops.sparse.block_lists import forced
from sp.ops.sparse.block_selector import Streaming
from sp.ops.sparse.flashprefill import FlashPrefill

N = 1100
IDS = np.random.default_rng(0).integers(0, VOCAB, N)
WHERE = np.arange(N)
BARE = FlashPrefill(0.99, sink=1, window=1, last_n=1)  # random weights attend to everything alike


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    """Hybrid and gated, as the target is: attention in two of six layers."""
    return load_model(write_tiny(tmp_path_factory.mktemp("m") / "tiny.gguf", "qwen35"))


def near(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(("kv", "rotate"), [("f32", False), ("f16", True), ("q4_0", False), ("q4_0", True)])
@pytest.mark.parametrize("chunk", [None, 300])
def test_alpha_zero_is_a_dense_prefill(model, kv, rotate, chunk) -> None:
    want = prefill(model, IDS, WHERE, model.new_cache(N, kv, rotate=rotate))
    cache = model.new_cache(N, kv, rotate=rotate)
    got, densities = prefill_sparse(model, IDS, WHERE, cache, FlashPrefill(0.0), chunk=chunk)
    assert densities == (1.0,)  # of the two layers with attention, the last reads for one row
    assert cache.tokens == N
    assert near(got, want) < (2e-2 if kv == "q4_0" else 1e-4)  # rounding decides which 4-bit step a key takes


def test_a_prefix_and_then_chunks_equal_one_reading(model) -> None:
    """Query blocks begin where chunks do, so chunks of whole blocks see what the whole prompt saw."""
    whole, densities = prefill_sparse(model, IDS, WHERE, model.new_cache(N, "f32"), BARE)
    cache = model.new_cache(N, "f32")
    first, _ = prefill_sparse(model, IDS[:256], WHERE[:256], cache, replace(BARE, last_n=0))
    rest, again = prefill_sparse(model, IDS[256:], WHERE[256:], cache, BARE, chunk=256)
    assert first.shape == rest.shape
    assert near(rest, whole) < 1e-4
    assert 0 < densities[0] < 0.8
    assert again[0] < 0.8


def test_only_the_last_chunk_s_last_blocks_read_everything(model) -> None:
    selector = FlashPrefill(1.0, sink=0, window=1, last_n=1)
    _, (density,) = prefill_sparse(model, IDS, WHERE, model.new_cache(N), selector, chunk=384)
    blocks, seen = -(-N // 128), forced(N, N, sink=0, window=1, last_n=1)
    assert seen.sum() / (blocks * (blocks + 1) / 2) <= density < 0.6  # the strongest block besides


def test_rotation_changes_neither_the_choice_nor_the_result(model) -> None:
    found = [
        prefill_sparse(model, IDS, WHERE, model.new_cache(N, "f16", rotate=rotate), BARE) for rotate in (False, True)
    ]
    assert near(found[1][0], found[0][0]) < 1e-2
    np.testing.assert_allclose(found[1][1], found[0][1], atol=0.01)


def test_other_selectors_and_progress(model) -> None:
    told: list[int] = []
    prefill_sparse(model, IDS, WHERE, model.new_cache(N), Streaming(1, 2), chunk=500, progress=told.append)
    assert sum(told) == N


def test_few_queries_after_a_prefix_read_everything(model) -> None:
    cache, attend = model.new_cache(N), SparseAttention(BARE)
    prefill(model, IDS[:1000], WHERE[:1000], cache)
    prefill_layer_major(model, IDS[1000:], WHERE[1000:], cache, attend=attend)
    assert attend.densities() == ()


def test_what_does_not_fit_is_refused(model) -> None:
    for ids, where in ((IDS[:0], WHERE[:0]), (IDS, WHERE[:-1])):
        with pytest.raises(PromptError):
            prefill_sparse(model, ids, where, model.new_cache(N), BARE)
    with pytest.raises(PromptError, match="do not fit"):
        prefill_sparse(model, IDS, WHERE, model.new_cache(500), BARE)
