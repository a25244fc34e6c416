"""Padding behind a run of tokens changes nothing: neither what they become nor what a cache remembers. In NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from twice_as_deep import write_deep

from sp.models import Model, decode_step, load_model, prefill
from sp.models.cache.delta_state import padded
from sp.models.run.hooks import run_layers
from sp.ops.delta.delta_mixer import DeltaParams, delta_mixer
from sp.ops.delta.padding import hide_padding, keep_taps


def read_padded(model, ids, positions, cache, padding):
    """Logits behind the ids, which pass the layers with padding behind them."""
    n, last = len(ids), model.config.layers - 1
    filled = [np.concatenate([values, np.full(padding, values[-1])]) for values in (ids, positions)]
    states = [cache.state(layer) for layer in model.config.delta_layers]
    with padded(states, np.array([n], np.int32)):
        x = run_layers(model, model.embed(filled[0]), filled[1], cache, stop=model.config.layers - 1)
    cache.count(-padding, range(last))
    return model.head(model.layer(last, x[:n], positions, cache, rows=1))[0]


SHAPES = (
    "qwen3",
    "qwen35",
    "qwen3moe",
    "qwen35moe",
    "llama",
    "mistral3",
    "qwen3next",
    "muse-glimmer",
    "gemma2",
    "gemma4",
)


@pytest.fixture(scope="module", params=[f"tiny-{name}" for name in SHAPES])
def model(request, tmp_path_factory) -> Model:
    return load_model(write_deep(tmp_path_factory.mktemp("models"), request.param, "f32"))


@pytest.mark.parametrize(("start", "n", "padding"), [(0, 64, 0), (70, 3, 13), (130, 33, 100)])
def test_a_padded_run_is_the_run(model, start, n, padding) -> None:
    ids = np.random.default_rng(5).integers(0, model.config.vocab, start + n + 6)
    where = np.arange(len(ids))
    found = []
    for read in (prefill, lambda *run: read_padded(*run, padding)):
        cache = model.new_cache(400)
        if start:
            prefill(model, ids[:start], where[:start], cache)
        here, after = slice(start, start + n), slice(start + n, start + n + 5)
        logits = [read(model, ids[here], where[here], cache)]
        assert cache.tokens == start + n
        logits.append(prefill(model, ids[after], where[after], cache))
        logits.append(decode_step(model, int(ids[-1]), int(where[-1]), cache))
        found.append(logits)
    for got, want in zip(*reversed(found), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * np.abs(want).max())


class State:
    def __init__(self, channels: int, heads: int, dim: int) -> None:
        rng = np.random.default_rng(1)
        self.conv = rng.standard_normal((3, channels)).astype(np.float32)
        self.recurrent = rng.standard_normal((heads, dim, dim)).astype(np.float32)


@pytest.mark.parametrize(("tokens", "real"), [(16, 3), (16, 15), (130, 64), (130, 130), (200, 65)])
def test_a_recurrence_takes_no_notice_of_padding(tokens, real) -> None:
    rng, key_heads, heads, dim = np.random.default_rng(2), 2, 4, 8
    channels = (2 * key_heads + heads) * dim

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    params = DeltaParams(
        normal(channels, 4), -np.exp(normal(heads)), normal(heads), normal(dim), 1e-6, key_heads, heads, dim
    )
    x, z, alpha, beta = (
        normal(tokens, channels),
        normal(tokens, heads * dim),
        normal(tokens, heads),
        normal(tokens, heads),
    )
    want, got = State(channels, heads, dim), State(channels, heads, dim)
    out = delta_mixer(x[:real], z[:real], alpha[:real], beta[:real], params, want, real)
    count = np.array([real], np.int32)
    hide_padding(alpha, beta, count)
    filled = delta_mixer(x, z, alpha, beta, params, got, tokens)
    keep_taps(x, got.conv, count)
    np.testing.assert_allclose(filled[:real], out, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.recurrent, want.recurrent, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got.conv, want.conv)
