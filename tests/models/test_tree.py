"""read_tree and commit_path: a tree in one pass equals each of its paths read alone."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import VOCAB, write_tiny

from sp.errors import PromptError
from sp.models import Hooks, decode_step, load_model, prefill
from sp.models.run.tree import LayerFeatures, TreeReader

PARENTS = np.array([-1, 0, 0, 1, 1, 2, 5, 3])
DEPTHS = np.array([0, 1, 1, 2, 2, 2, 3, 3])
PATHS = [[0], [0, 1, 3, 7], [0, 1, 4], [0, 2, 5, 6]]
N = 126  # the tree crosses the border of a page
LAYERS = (1, 2)
CACHES = [("f32", False), ("f16", False), ("q4_0", True)]


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def model(request, tmp_path_factory):
    """Both architectures."""
    return load_model(write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", request.param))


@pytest.fixture(scope="module")
def ids():
    """A prompt and a tree after it."""
    return np.random.default_rng(3).integers(0, VOCAB, N + len(PARENTS))


def filled(model, ids, kv="f32", rotate=False):
    """A cache that holds the prompt, at positions with gaps."""
    cache = model.new_cache(N + 20, kv, rotate=rotate)
    prefill(model, ids[:N], 2 * np.arange(N), cache)
    return cache


def contents(model, cache):
    """All that a cache remembers."""
    kept = [array for layer in model.config.attention_layers for array in cache.gather(layer)]
    states = [cache.state(layer) for layer in model.config.delta_layers]
    return kept + [array for state in states for array in (state.conv, state.recurrent)]


LOOSE = 10
"""How much further apart features may be once a stored value was rounded otherwise, for later layers read that. With
the sums of seven kinds of CPU they were up to 3.4 times as far as otherwise allowed; logits and states stayed below a
third of it."""


def rounded_otherwise(mine: np.ndarray, its: np.ndarray, kv: str) -> tuple[int, int]:
    """How many values (of Q4_0: blocks) are stored otherwise though they were nearly equal, and how many there are.

    Which sums a BLAS makes depends on the rows it is given and on the CPU. A value at a border of the format then falls
    to either side, and is one unit off: in Q4_0 one step, and its block's scale one unit of f16.
    """
    if kv == "q4_0":
        mine, its = (rows.reshape(*rows.shape[:-1], -1, 32) for rows in (mine, its))
        step = np.abs(its).max(axis=-1, keepdims=True) / 8
        assert (np.abs(mine - its) <= step * (1 + 8 * 2.0**-10) * (1 + 1e-6)).all()
        other = (mine != its).any(axis=-1)
    else:
        np.testing.assert_allclose(mine, its, rtol=1e-3 if kv == "f16" else 1e-4, atol=1e-5)
        other = (mine != its) & (kv == "f16")
    return int(other.sum()), other.size


@pytest.mark.parametrize(("kv", "rotate"), CACHES)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_the_tree_is_the_path_read_alone(model, ids, path, kv, rotate) -> None:
    cache, alone = (filled(model, ids, kv, rotate) for _ in range(2))
    start, nodes = 2 * N, ids[N:]
    reader = TreeReader(model, cache, LAYERS)
    found = reader.read_tree(nodes, PARENTS, start + DEPTHS)
    np.testing.assert_array_equal(found.choices, found.logits.argmax(axis=1))
    features: list[np.ndarray] = []
    expected = []
    for node in path:
        one = np.array([nodes[node]]), np.array([start + DEPTHS[node]])
        expected.append(
            prefill(model, *one, alone, hooks=Hooks(after_layer=LayerFeatures(LAYERS, features.append)), rows=1)
        )
    logits, outputs = found.logits[path].copy(), found.features[path].copy()
    reader.commit_path(np.array(path))
    assert cache.tokens == alone.tokens == N + len(path)
    kept = list(zip(contents(model, cache), contents(model, alone), strict=True))
    paged = 2 * len(model.config.attention_layers)
    others, stored = np.sum([rounded_otherwise(*pair, kv) for pair in kept[:paged]], axis=0)
    assert others <= max(2, stored * len(path) / cache.tokens / 8)
    for mine, its in kept[paged:]:
        np.testing.assert_allclose(mine, its, rtol=1e-3 if kv == "f16" else 1e-4, atol=1e-5)
    for mine, its in zip(logits, expected, strict=True):
        np.testing.assert_allclose(mine, its, atol=2e-5 * np.abs(its).max())
    loose = LOOSE if others else 1
    np.testing.assert_allclose(outputs, np.concatenate(features), rtol=loose * 1e-4, atol=loose * 1e-5)
    after = [decode_step(model, 7, start + len(path), c) for c in (cache, alone)]
    np.testing.assert_allclose(*after, atol=1e-4 * np.abs(after[1]).max())


def test_fast_rollback_is_exact_replay(model, ids) -> None:
    """Keeping part of a block leaves what going back and reading that part again leaves."""
    block, start = ids[N : N + 6], 2 * N
    chain = np.arange(6) - 1
    for kept in range(1, 7):
        fast, replayed = filled(model, ids), filled(model, ids)
        reader = TreeReader(model, fast)
        reader.read_tree(block, chain, start + np.arange(6))
        reader.commit_path(np.arange(kept))
        prefill(model, block[:kept], start + np.arange(kept), replayed)
        for mine, its in zip(contents(model, fast), contents(model, replayed), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-4, atol=2e-5)


def test_nodes_off_the_path_leave_nothing(model, ids) -> None:
    caches = []
    for other in (ids[N:], (ids[N:] + 1) % VOCAB):
        nodes = np.where(np.isin(np.arange(8), [0, 2, 5]), ids[N:], other)
        cache = filled(model, ids)
        reader = TreeReader(model, cache)
        reader.read_tree(nodes, PARENTS, 2 * N + DEPTHS)
        reader.commit_path(np.array([0, 2, 5]))
        caches.append(contents(model, cache))
    for mine, its in zip(*caches, strict=True):
        np.testing.assert_array_equal(mine, its)


def test_features_of_a_prompt_do_not_depend_on_chunks(model, ids) -> None:
    runs = []
    last = model.config.layers - 1
    for chunk in (N, 17):
        parts: list[np.ndarray] = []
        cache = model.new_cache(N, "f32")
        prefill(
            model,
            ids[:N],
            np.arange(N),
            cache,
            chunk=chunk,
            hooks=Hooks(after_layer=LayerFeatures((0, last), parts.append)),
            rows=N,
        )
        runs.append(np.concatenate(parts))
    assert runs[0].shape == (N, 2 * model.config.hidden)
    np.testing.assert_allclose(*runs, rtol=1e-3, atol=1e-4)
    x = model.layer(0, model.embed(ids[:N]), np.arange(N), model.new_cache(N, "f32"))
    np.testing.assert_allclose(runs[0][:, : model.config.hidden], x, rtol=1e-4, atol=1e-5)


def test_a_tree_that_does_not_fit_is_refused(model, ids) -> None:
    cache = filled(model, ids)
    many = np.zeros(21, np.int64)
    with pytest.raises(PromptError, match="do not fit a cache"):
        TreeReader(model, cache).read_tree(many, np.arange(21) - 1, many)
    with pytest.raises(PromptError, match="outside the model's context"):
        TreeReader(model, cache).read_tree(many[:1], np.array([-1]), np.array([1 << 20]))
    assert cache.tokens == N
