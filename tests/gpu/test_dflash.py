"""The draft on the device: against its NumPy twin, against float32 in the published sizes, and graphs against launches.

The device rounds activations to bf16 and keys, values and queries to f16, so squared errors of logits below 1e-3 are
what rounding gives, as for whole models; see test_model.py.
"""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import cupy
import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from device_models import case

from sp.errors import ConfigError
from sp.models.drafts.dflash import load_draft
from sp.models.drafts.dflash_session import DraftSession
from sp.models.network.model import Model
from sp.models.network.weights import ModelWeights
from sp.models.run.captured_graph import CaptureStream
from sp.models.synthetic.dflash_synthetic import find_draft_shape, synthetic_draft, write_synthetic_draft
from sp.models.synthetic.random_store import RandomStore
from sp.models.synthetic.shapes import find_shape, tensor_plan
from sp.models.synthetic.synthetic import write_random
from sp.ops.attention.attention_heads import HeadNorms, attention_heads, context_heads
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.feature_rows import pick_features, store_features
from sp.ops.matmul.packed import unpack
from sp.ops.rope import Rope
from sp.quant import F16, Q4_0

TINY, TARGET = "dflash-tiny-qwen35", "tiny-qwen35:q4_k_m"
BOUND, SAME = 1e-3, 3e-4
"""Squared error against exact products, and of two orders of summing."""
TOKEN = 77
FULL = 15


@cache
def pair(file_type: str):
    """A tiny draft on the host and on the device."""
    path = write_synthetic_draft(Path(mkdtemp()) / "draft.gguf", TINY, file_type, seed=5)
    models = case(TARGET)
    return load_draft(path, models.cpu), load_draft(path, models.gpu)


@cache
def context(n: int, width: int, seed: int = 0):
    """Features as the device holds them, and positions with gaps."""
    rng = np.random.default_rng(seed)
    return to_bf16(rng.standard_normal((n, width), np.float32)), np.cumsum(rng.integers(1, 4, n))


def parts(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


@cache
def twin(file_type: str, n: int) -> np.ndarray:
    """What NumPy guesses after n tokens."""
    draft, _ = pair(file_type)
    features, where = context(n, draft.fuse.shape[1])
    session = DraftSession.begin(draft, case(TARGET).cpu, n)
    session.remember(to_float64(features).astype(np.float32), where)
    return session.guess(TOKEN, int(where[-1]) + 1, FULL)


def guessed(file_type: str, n: int, size: int):
    """What the device guesses after n tokens, remembered `size` at a time."""
    _, draft = pair(file_type)
    features, where = context(n, draft.fuse.shape[1])
    session, rows = DraftSession.begin(draft, case(TARGET).gpu, n), cupy.asarray(features)
    for part in parts(n, size):
        session.remember(rows[part], where[part])
    return session.guess(TOKEN, int(where[-1]) + 1, FULL)


@pytest.mark.parametrize("file_type", ["bf16", "q8_0", "q4_k_m"])
@pytest.mark.parametrize("n", [1, 16, 127, 129, 3000])
def test_guesses_are_those_of_numpy(file_type, n, path) -> None:
    found = nmse(guessed(file_type, n, n), twin(file_type, n))
    print(f"{file_type} after {n}, {path}: nmse {found:.2e}")
    assert found < BOUND


KEYS = {"dflash.rope.dimension_count": 64, "dflash.embedding_scale": 6.5, "dflash.logit_scale": 0.125}
"""Heads turned in half, and a block whose embeddings and logits are scaled."""


@pytest.mark.parametrize("key", [*KEYS, "all of them"])
def test_keys_that_change_a_guess_are_those_of_numpy(key, path, tmp_path) -> None:
    shape, models = find_draft_shape(TINY), case(TARGET)
    keys = KEYS if key not in KEYS else {key: KEYS[key]}
    file = write_random(tmp_path / "draft.gguf", shape.metadata() | keys, shape.plan("q8_0"), 5)
    features, where = context(300, shape.hidden * len(shape.target_layers))
    guesses, lane = [], CaptureStream()
    for model, rows in ((models.cpu, to_float64(features).astype(np.float32)), (models.gpu, cupy.asarray(features))):
        session = DraftSession.begin(load_draft(file, model), model, 300)
        session.remember(rows, where)
        guesses.append(session.guess(TOKEN, int(where[-1]) + 1, FULL).copy())
    with lane.working():  # captured the second time, replayed the third
        again = [session.guess(TOKEN, int(where[-1]) + 1, FULL).copy() for _ in range(3)]
    lane.end()
    assert max(nmse(one, guesses[1]) for one in again) < SAME
    found = nmse(guesses[1], guesses[0])
    print(f"{key}, {path}: nmse {found:.2e}")
    assert found < BOUND
    assert nmse(guesses[1], guessed("q8_0", 300, 300)) > 10 * BOUND  # the same weights without the keys


@pytest.mark.parametrize("size", [5, 16, 128])
def test_it_does_not_matter_how_tokens_come(size) -> None:
    assert nmse(guessed("bf16", 300, size), twin("bf16", 300)) < BOUND
    assert nmse(guessed("bf16", 300, size), guessed("bf16", 300, 300)) < SAME


@pytest.mark.no_sanitizer  # the captures allocate
@pytest.mark.parametrize("file_type", ["bf16", "q4_k_m"])
def test_graphs_equal_launches(file_type) -> None:
    _, draft = pair(file_type)
    counts = (16, 1, 8, 3, 0, 16, 9, 2)
    n, found = 120, {}
    features, where = context(n + sum(counts), draft.fuse.shape[1], seed=1)
    rows = cupy.asarray(features)
    for eager in (True, False):
        session, lane = DraftSession.begin(draft, case(TARGET).gpu, len(where), eager=eager), CaptureStream()
        for again in range(1 if eager else 2):
            session.reset()
            at, logits = n, []
            session.remember(rows[:n], where[:n])
            for count in counts:
                with lane.working():
                    logits.append(session.guess(TOKEN + count, int(where[at - 1]) + 1, FULL).copy())
                    session.remember(rows[at : at + count], where[at : at + count])
                at += count
            with lane.working():
                logits.append(session.guess(TOKEN, int(where[-1]) + 1, 4).copy())
            assert [len(one) for one in logits] == [FULL] * len(counts) + [4]
            found[eager, again] = np.concatenate([one.get() for one in logits])
        session.end()
        lane.end()
    launched, *replayed = (one.view(np.uint32) for one in found.values())
    for one in replayed:
        np.testing.assert_array_equal(one, launched)
    together = DraftSession.begin(draft, case(TARGET).gpu, len(where))
    together.remember(rows, where)
    assert nmse(found[True, 0][-4:], together.guess(TOKEN, int(where[-1]) + 1, 4)) < SAME


def test_a_checkpoint_is_the_same_draft_as_its_gguf(tmp_path) -> None:
    pytest.importorskip("safetensors")
    from models.tiny_drafts import as_published

    path = write_synthetic_draft(tmp_path / "draft.gguf", TINY, "f16", seed=7)
    found = []
    for one in (path, as_published(tmp_path, path)):
        draft = load_draft(one, case(TARGET).gpu)
        features, where = context(200, draft.fuse.shape[1])
        session = DraftSession.begin(draft, case(TARGET).gpu, 200)
        session.remember(cupy.asarray(features), where)
        found.append(session.guess(TOKEN, int(where[-1]) + 1, FULL).get())
    np.testing.assert_array_equal(*found)


def test_a_draft_takes_the_memory_it_says() -> None:
    path = write_synthetic_draft(Path(mkdtemp()) / "draft.gguf", TINY, "bf16", seed=6)
    pool, target = cupy.get_default_memory_pool(), case(TARGET).gpu
    gc.collect()  # sessions and their graphs hold one another
    before = pool.used_bytes()
    draft = load_draft(path, target)
    assert draft.nbytes <= pool.used_bytes() - before <= draft.nbytes + (1 << 16)


def test_heads_that_no_kernel_takes_are_refused_in_one_line(tmp_path) -> None:
    pytest.importorskip("safetensors")
    from models.tiny_drafts import write_draft

    target = case(TARGET).gpu
    with pytest.raises(ConfigError, match="heads of 32 values: on the GPU they must be one of") as caught:
        load_draft(write_draft(tmp_path, "dflash", target.config, (0, 2)), target)
    assert "\n" not in str(caught.value)


@cache
def published_target() -> Model:
    """All of Qwen3.6-27B that a draft uses: embedding and head."""
    config = find_shape("qwen3.6-27b").config
    store, table = RandomStore(config, tensor_plan("qwen3.6-27b", "q4_k_m")), (config.vocab, config.hidden)
    embed, norm = store.matrix("token_embd.weight", table), store.vector("output_norm.weight", config.hidden)
    return Model(config, ModelWeights(embed, (), norm, store.matrix("output.weight", table)), "cuda", store.nbytes)


def rms(x, weight, eps):
    return x / cupy.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def turn(x, where, base):
    """NeoX pairs, angles in float64."""
    half = x.shape[-1] // 2
    angle = cupy.asarray(where)[:, None] * base ** (-cupy.arange(half) / half)
    cos, sin = (f(angle).astype(np.float32)[:, None] for f in (cupy.cos, cupy.sin))
    low, high = x[..., :half], x[..., half:]
    return cupy.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)


def reference(draft, target: Model, features, where, position: int):
    """The paper's block in float32 on the device, every weight unpacked and every product cuBLAS's."""
    c, heads = draft.config.model, lambda x: x.reshape(len(x), -1, 128)
    fused = rms(features @ unpack(draft.fuse).T, draft.hidden_norm, c.eps)
    ids = np.array([TOKEN, *[draft.config.mask_id] * 15], np.int32)
    x, block = target.embed(cupy.asarray(ids)).copy(), position + np.arange(16)
    back = np.arange(len(where), len(where) + 16)[:, None] - np.arange(len(where) + 16)
    for layer, window in zip(draft.blocks, draft.config.windows, strict=True):
        m, normed = layer.mixer, rms(x, layer.attn_norm, c.eps)
        q, wk, wv = heads(normed @ unpack(m.q).T), unpack(m.k).T, unpack(m.v).T
        k, v = (cupy.concatenate([heads(fused @ w), heads(normed @ w)]) for w in (wk, wv))
        q = turn(rms(q, m.norms.q, c.eps), block, c.rope.base)
        k = turn(rms(k, m.norms.k, c.eps), np.concatenate([where, block]), c.rope.base)
        k, v = (cupy.repeat(one, c.group, axis=1).transpose(1, 0, 2) for one in (k, v))
        score = q.transpose(1, 0, 2) @ k.transpose(0, 2, 1) / np.float32(np.sqrt(128))
        if window is not None:
            score = cupy.where(cupy.asarray((back >= 0) & (back < window)), score, -np.inf)
        weight = cupy.exp(score - score.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        x = x + (weight @ v).transpose(1, 0, 2).reshape(16, -1) @ unpack(m.out).T
        h = rms(x, layer.ffn_norm, c.eps)
        gate = h @ unpack(layer.ffn.gate).T
        x = x + (gate / (1 + cupy.exp(-gate)) * (h @ unpack(layer.ffn.up).T)) @ unpack(layer.ffn.down).T
    return rms(x[1:], draft.output_norm, c.eps) @ unpack(target.weights.output).T


@pytest.mark.no_sanitizer  # far too much work
@pytest.mark.parametrize("file_type", ["bf16", "q8_0", "q4_k_m"])
def test_the_published_sizes(file_type) -> None:
    target, n = published_target(), 2300  # more than the window
    draft = synthetic_draft("dflash-qwen3.6-27b", file_type, target)
    features, where = context(n, draft.fuse.shape[1], seed=2)
    rows, position = cupy.asarray(features), int(where[-1]) + 1
    session = DraftSession.begin(draft, target, n)
    session.remember(rows[: n - 9], where[: n - 9])
    session.remember(rows[n - 9 :], where[n - 9 :])
    exact = (rows.astype(np.uint32) << 16).view(np.float32)
    found = nmse(session.guess(TOKEN, position, FULL), reference(draft, target, exact, where, position))
    print(f"published sizes, {file_type}: nmse {found:.2e}")
    assert found < BOUND


@pytest.mark.parametrize("tokens", [1, 23])
def test_features_are_rounded_into_their_columns(guarded, tokens) -> None:
    x = np.random.default_rng(0).standard_normal((tokens, 264)).astype(np.float32)
    features = guarded((tokens, 3 * 264), np.uint16)
    for column in (0, 528):
        store_features(cupy.asarray(x), features, column)
    found = features.get()
    np.testing.assert_array_equal(found[:, :264], to_bf16(x))
    np.testing.assert_array_equal(found[:, 528:], to_bf16(x))
    assert (found[:, 264:528] == 0xFFFF).all()


@pytest.mark.parametrize(("fmt", "rotate"), [(F16, False), (Q4_0, True)])
def test_tokens_that_ask_nothing_are_stored_like_others(guarded, fmt, rotate) -> None:
    tokens, heads, kv_heads, d, start = 13, 6, 2, 128, 120  # crosses a page border
    rng, stored = np.random.default_rng(1), []
    q, k, v = (
        cupy.asarray(to_bf16(rng.standard_normal((tokens, n, d), np.float32))) for n in (heads, kv_heads, kv_heads)
    )
    norm, where = cupy.asarray(1 + rng.random(d, np.float32)), cupy.asarray(np.cumsum(rng.integers(1, 5, tokens)))
    table, norms, rotary = cupy.asarray(np.array([2, 0], np.int32)), HeadNorms(norm, norm, 1e-6), Rope(1e7, d)
    for asks in (True, False):
        pages = [guarded((3, 128, kv_heads, fmt.row_bytes(d)), np.uint8) for _ in range(2)]
        at = PagedKV(pages[0], pages[1], table, start, fmt, rotate)
        if asks:
            attention_heads(q, k, v, norms, where, rotary, at)
        else:
            context_heads(k, v, norms, where, rotary, at)
        stored.append(np.stack([one.get() for one in pages]))
    np.testing.assert_array_equal(*stored)
    rows = (stored[0].reshape(2, 3 * 128, -1) != 0xFF).any(axis=2)
    assert sorted(np.flatnonzero(rows.any(axis=0))) == [*range(5), *range(2 * 128 + 120, 3 * 128)]


@pytest.mark.parametrize("kept", [0, 1, 11, 16])
def test_features_of_a_path(guarded, kept) -> None:
    rng, nodes, width, rows = np.random.default_rng(3), 23, 1032, 16
    features, positions = rng.integers(0, 1 << 15, (nodes, width), np.uint16), rng.integers(0, 1 << 40, nodes)
    path = np.full(64, 1 << 30, np.int32)  # nothing beyond `kept` is looked at
    path[:kept] = np.sort(rng.permutation(nodes)[:kept])
    given = guarded((nodes, width), np.uint16, features), guarded(nodes, np.int64, positions)
    count = cupy.asarray(np.array([kept], np.int32))
    picked, where = (one.get() for one in pick_features(*given, cupy.asarray(path), count, rows))
    np.testing.assert_array_equal(picked[:kept], features[path[:kept]])
    np.testing.assert_array_equal(where[:kept], positions[path[:kept]])
    assert not picked[kept:].any()
    assert not where[kept:].any()
