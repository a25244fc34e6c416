"""prefill, prefill_layer_major, decode_step: every order of execution gives the same, correct logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiny_models import QWEN3, VOCAB, random_tensors, write_tiny

from sp.errors import ConfigError, PromptError
from sp.models import Hooks, decode_step, load_model, prefill, prefill_layer_major
from sp.ops import rope

TOLERANCE = 2e-5  # of the largest logit: float32 sums in another order
N = 560  # more than one default chunk, and no whole number of pages


@pytest.fixture(scope="module", params=["qwen3", "qwen35", "qwen35-recurrent-last"])
def model(request, tmp_path_factory):
    """Both architectures, and a hybrid whose last layer is recurrent."""
    arch, *last = request.param.split("-")
    changes = {"block_count": 4} if last else {}
    return load_model(write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", arch, **changes))


@pytest.fixture(scope="module")
def prompt():
    """Ids, and positions with gaps."""
    rng = np.random.default_rng(5)
    return rng.integers(0, VOCAB, N), np.cumsum(rng.integers(1, 5, N))


@pytest.fixture(scope="module")
def expected(model, prompt):
    """Logits of the last token, all at once."""
    ids, positions = prompt
    return prefill(model, ids, positions, model.new_cache(N, "f32"), chunk=N)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_chunk_size_does_not_matter(chunk, model, prompt, expected) -> None:
    assert_close(prefill(model, *prompt, model.new_cache(N, "f32"), chunk=chunk), expected)


@pytest.mark.parametrize("chunk", [50, 512])
def test_by_layer_equals_by_token(chunk, model, prompt, expected) -> None:
    ids, positions = prompt
    cache = model.new_cache(N + 1, "f32")
    assert_close(prefill_layer_major(model, ids, positions, cache, chunk=chunk), expected)
    other = model.new_cache(N + 1, "f32")
    prefill(model, ids, positions, other)
    after = [decode_step(model, 7, 4000, c) for c in (cache, other)]
    assert_close(after[0], after[1])


def test_by_layer_without_keeping_kv_needs_the_pages_of_one_layer(model, prompt, expected) -> None:
    cache = model.new_cache(N, "f32", layers=1)
    assert_close(prefill_layer_major(model, *prompt, cache, keep_kv=False, chunk=100), expected)
    assert cache.peak_pages == math.ceil(N / 128)
    assert cache.pages_in_use == 0
    with pytest.raises(PromptError, match="reset"):
        decode_step(model, 1, 4000, cache)
    cache.reset()
    assert_close(prefill_layer_major(model, *prompt, cache, keep_kv=False), expected)


def test_decode_after_prefill_equals_one_longer_prefill(model, prompt, expected) -> None:
    ids, positions = prompt
    cache = model.new_cache(N, "f32")
    prefill(model, ids[:-9], positions[:-9], cache)
    for t in range(N - 9, N):
        logits = decode_step(model, int(ids[t]), int(positions[t]), cache)
    assert_close(logits, expected)
    half = model.new_cache(N, "f32")
    prefill(model, ids[:333], positions[:333], half)
    assert_close(prefill(model, ids[333:], positions[333:], half), expected)
    assert half.tokens == N


def test_rows_are_the_last_rows_and_memory_is_complete(model, prompt) -> None:
    ids, positions = prompt
    x = model.embed(ids[:90])
    for layer in range(model.config.layers):
        full, some = model.new_cache(91, "f32"), model.new_cache(91, "f32")
        out = model.layer(layer, x, positions[:90], full)
        for rows in (0, 1, 37):
            some.reset()
            part = model.layer(layer, x, positions[:90], some, rows=rows)
            assert part.shape == (rows, model.config.hidden)
            np.testing.assert_allclose(part, out[90 - rows :], atol=1e-5 * np.abs(out).max())
            again = model.layer(layer, x[:1], np.array([4000]), some)
            if rows == 0:
                after = model.layer(layer, x[:1], np.array([4000]), full)
            assert_close(again, after)


def test_inputs_are_left_alone(model, prompt) -> None:
    ids, positions = prompt[0][:20], prompt[1][:20]
    x = model.embed(ids)
    before = x.copy()
    model.layer(0, x, positions, model.new_cache(20, "f32"))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("walk", [prefill, prefill_layer_major])
def test_a_hook_sees_each_attention_layer(walk, model, prompt) -> None:
    ids, positions = prompt
    c, seen = model.config, {}

    def look(layer, q, cache) -> None:
        seen.setdefault(layer, []).append((q, cache.length(layer)))

    cache = model.new_cache(N, "f16")
    walk(model, ids, positions, cache, chunk=256, hooks=Hooks(look), rows=100)
    assert tuple(sorted(seen)) == c.attention_layers
    for layer, calls in seen.items():
        rows = 100 if layer == c.layers - 1 else N
        assert np.concatenate([q for q, _ in calls]).shape == (rows, c.heads, c.head_dim), "rows cross chunk borders"
        assert calls[-1][1] == N, "its keys are there"
        # After RoPE: turning back leaves RMS-normed heads, whose rotated part kept its length.
        k = cache.keys(layer)
        back = rope(k, -positions, c.rope)
        np.testing.assert_array_equal(back[..., c.rope.dim :], k[..., c.rope.dim :])
        assert np.abs(back - k).max() > 0.1


def test_a_hook_in_a_decode_step(model, prompt) -> None:
    cache, calls = model.new_cache(20, "f32"), []
    prefill(model, prompt[0][:10], prompt[1][:10], cache)
    decode_step(
        model, 3, 77, cache, hooks=Hooks(lambda layer, q, cache: calls.append((layer, len(q), cache.length(layer))))
    )
    assert calls == [(layer, 1, 11) for layer in model.config.attention_layers]


def test_progress_adds_up(model, prompt) -> None:
    for walk, total in ((prefill, N), (prefill_layer_major, N * model.config.layers)):
        steps: list[int] = []
        walk(model, *prompt, model.new_cache(N), chunk=77, hooks=Hooks(progress=steps.append))
        assert sum(steps) == total
        assert min(steps) >= 0
        assert len(steps) >= model.config.layers  # a place to stop at after each one


STORAGE = [("f32", True, 2e-5), ("f16", False, 2e-3), ("f16", True, 2e-3), ("q4_0", True, 0.3)]


@pytest.mark.parametrize(("kv", "rotate", "tolerance"), STORAGE)
def test_storage_costs_what_its_rounding_costs(kv, rotate, tolerance, model, prompt, expected) -> None:
    found = prefill(model, *prompt, model.new_cache(N, kv, rotate=rotate))
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < tolerance
    if kv != "f32":
        assert error > 0


def dense_reference(tensors: dict[str, np.ndarray], ids: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """A one-layer qwen3 over the whole prompt in float64, where queries see kept keys only: logits of every token."""
    w = {
        name.removeprefix("blk.0.").removesuffix(".weight"): value.astype(np.float64) for name, value in tensors.items()
    }
    n, heads, kv_heads, d = len(ids), 6, 2, 64

    def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight

    def turn(x: np.ndarray) -> np.ndarray:
        angle = np.arange(n)[:, None, None] * 1e6 ** (-2 * np.arange(d // 2) / d)
        z = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag], axis=-1)

    x = w["token_embd"][ids]
    h = rms(x, w["attn_norm"])
    q = turn(rms((h @ w["attn_q"].T).reshape(n, heads, d), w["attn_q_norm"]))
    k = turn(rms((h @ w["attn_k"].T).reshape(n, kv_heads, d), w["attn_k_norm"]))
    v = (h @ w["attn_v"].T).reshape(n, kv_heads, d)
    score = np.einsum("ihd,jhd->hij", q, np.repeat(k, 3, axis=1)) / math.sqrt(d)
    visible = np.tri(n, dtype=bool) & np.isin(np.arange(n), kept)
    score = np.where(visible, score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", weight, np.repeat(v, 3, axis=1)).reshape(n, -1) @ w["attn_output"].T
    h = rms(x, w["ffn_norm"])
    gate = h @ w["ffn_gate"].T
    x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
    return rms(x, w["output_norm"]) @ w["token_embd"].T


def test_kept_tokens_at_their_own_positions_equal_a_masked_full_computation(tmp_path) -> None:
    model = load_model(write_tiny(tmp_path / "one.gguf", "qwen3", block_count=1, seed=8))
    tensors = random_tensors("qwen3", QWEN3 | {"block_count": 1}, 8)
    rng = np.random.default_rng(9)
    ids = rng.integers(0, VOCAB, 240)
    kept = np.sort(np.append(rng.choice(np.arange(1, 239), 80, replace=False), [0, 239]))
    expected = dense_reference(tensors, ids, kept)
    x = model.layer(0, model.embed(ids[kept]), kept, model.new_cache(len(kept), "f32"))
    assert_close(model.head(x), expected[kept])
    assert_close(prefill(model, ids[kept], kept, model.new_cache(len(kept), "f32")), expected[-1])
    # The same tokens at contiguous positions are another computation.
    near = prefill(model, ids[kept], np.arange(len(kept)), model.new_cache(len(kept), "f32"))
    assert np.abs(near - expected[-1]).max() > 100 * TOLERANCE * np.abs(expected).max()


BAD_PROMPTS = [
    ([], [], "empty"),
    ([[1, 2]], [[0, 1]], "empty or not a list"),
    ([1, VOCAB], [0, 1], f"token id {VOCAB} is outside the vocabulary of {VOCAB}"),
    ([1, -1], [0, 1], "token id -1"),
    ([1, 2], [0], "1 positions for 2 tokens"),
    ([1, 2], [0, 4096], "position 4096 is outside the model's context of 4096"),
    ([1, 2], [-1, 0], "position -1"),
    ([1.5, 2.0], [0, 1], "integers"),
    ([1] * 9, list(range(9)), "9 tokens do not fit a cache of 8"),
]


@pytest.mark.parametrize("walk", [prefill, prefill_layer_major])
@pytest.mark.parametrize(("ids", "positions", "message"), BAD_PROMPTS)
def test_bad_prompts_are_refused_before_anything_is_read(walk, ids, positions, message, model) -> None:
    cache = model.new_cache(8, "f32")
    with pytest.raises(PromptError, match=message):
        walk(model, np.array(ids), np.array(positions), cache, chunk=1)
    assert cache.tokens == 0


def test_bad_options_and_steps(model) -> None:
    cache = model.new_cache(8, "f32")
    ids = np.arange(8)
    for option in ({"chunk": 0}, {"rows": 0}):
        with pytest.raises(ConfigError, match="at least 1"):
            prefill(model, ids, ids, cache, **option)
    prefill(model, ids, ids, cache)
    with pytest.raises(PromptError, match="9 tokens do not fit"):
        decode_step(model, 1, 8, cache)
    with pytest.raises(PromptError, match="vocabulary"):
        decode_step(model, VOCAB, 8, model.new_cache(1))
    with pytest.raises(PromptError, match="positions"):
        model.layer(0, model.embed(ids), ids[:-1], model.new_cache(8))
