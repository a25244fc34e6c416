"""Bases of keys: products stay what they were, heavy channels come first, and five bits lose less by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import write_tiny

from sp.errors import ConfigError
from sp.models import Hooks, Model, SessionCache, load_model, load_shards, prefill, stream_layer_major
from sp.models.cache.cache import Cache
from sp.models.run.context_parallel import read_context_parallel
from sp.models.run.key_bases import NEAR, SKIP, measured_bases, measured_layers
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.attention.importance import attention_rows
from sp.ops.attention.key_basis import PART, KeyBasis, turned
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV
from sp.ops.rope import Rope
from sp.ops.sparse.block_lists import mask_of
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.parallel.host import HostGroup
from sp.quant import F32
from sp.quant.cached import K4, K5, V4

RNG = np.random.default_rng(5)
HEADS, GROUP = 2, 3
SHIFT_MATTERS = ["tiny-gpt-oss", "tiny-gemma2"]  # sinks, and caps of scores


def some_basis(d: int) -> KeyBasis:
    """Of means and sizes that differ by channel."""
    mean, keys, queries = RNG.normal(size=(HEADS, d)), *np.exp(RNG.normal(size=(2, HEADS, d)))
    return KeyBasis.measured(mean, keys, queries)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return load_model(write_tiny(tmp_path_factory.mktemp("bases") / "m.gguf", "qwen3"))


@pytest.fixture(scope="module")
def runs(model) -> list[np.ndarray]:
    return [np.random.default_rng(seed).integers(0, model.config.vocab, 200) for seed in (1, 2)]


@pytest.mark.parametrize("d", [64, 128, 192, 256, 512])
def test_turning_is_orthonormal_and_its_own_inverse(d) -> None:
    matrix = turned(np.eye(d, dtype=np.float64))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(d), atol=1e-6)
    np.testing.assert_allclose(matrix @ matrix, np.eye(d), atol=1e-6)
    light = np.arange(d) // PART % 2 == 1
    assert not matrix[np.ix_(light, ~light)].any()  # the two kinds do not mix
    x = RNG.normal(size=(7, 2, d)).astype(np.float32)
    np.testing.assert_allclose(turned(turned(x)), x, atol=1e-5)


@pytest.mark.parametrize("d", [64, 128, 192, 256])
def test_products_are_kept_less_one_number_a_query(d) -> None:
    basis = some_basis(d)
    k, q = (RNG.normal(size=(20, heads, d)).astype(np.float32) for heads in (HEADS, HEADS * GROUP))
    stored, asked = basis.stored(k), basis.queries(q)
    np.testing.assert_allclose(basis.keys(stored), k, atol=2e-5)
    for head in range(HEADS * GROUP):
        own = head // GROUP
        want = q[:, head].astype(np.float64) @ k[:, own].T.astype(np.float64)
        less = want - asked[:, head].astype(np.float64) @ stored[:, own].T.astype(np.float64)
        np.testing.assert_allclose(less, np.broadcast_to(less.mean(axis=1, keepdims=True), less.shape), atol=1e-4)
        offset = np.zeros(d)
        offset[basis.order[own]] = basis.offset[own]
        np.testing.assert_allclose(less.mean(axis=1), q[:, head] @ offset, atol=1e-4)


def packed_rows(n: int, d: int) -> tuple[np.ndarray, PagedKV, PagedKV]:
    """Queries, packed keys that share a large mean and another one in each page, and what these stand for in float32
    pages."""
    mean = 3 * RNG.normal(size=(HEADS, d))
    basis = KeyBasis.measured(mean, *np.exp(RNG.normal(size=(2, HEADS, d))))
    k, v = (RNG.normal(size=(n, HEADS, d)).astype(np.float32) for _ in "kv")
    blocks, table = -(-n // PAGE_TOKENS), np.arange(-(-n // PAGE_TOKENS))
    pages = [np.zeros((blocks, PAGE_TOKENS, HEADS, fmt.row_bytes(d)), np.uint8) for fmt in (K5, V4, F32, F32)]
    at = PagedKV(*pages[:2], table, 0, K5, True, value_fmt=V4, basis=basis)
    drift = RNG.normal(size=(blocks, HEADS, d)).repeat(PAGE_TOKENS, axis=0)[:n]
    at.append((k + mean + drift).astype(np.float32), v)
    at, plain = replace(at, tokens=n), PagedKV(*pages[2:], table, 0, F32)
    plain.append(*at.model_rows())
    return RNG.normal(size=(n, HEADS * GROUP, d)).astype(np.float32), at, replace(plain, tokens=n)


def test_logits_are_those_of_the_keys_with_their_offset() -> None:
    q, at, plain = packed_rows(70, 128)
    got, want = (attention_rows(q[-5:], one, logits=True) for one in (at, plain))
    np.testing.assert_allclose(got, want, atol=1e-3)  # -inf where a query sees nothing
    np.testing.assert_allclose(attention_rows(q[-5:], at), attention_rows(q[-5:], plain), atol=1e-4)


@pytest.mark.parametrize("share", ["head", "group"])
def test_sparse_attention_lists_the_blocks_that_keys_with_their_offset_would(share) -> None:
    q, at, plain = packed_rows(128 * 9, 64)
    rule = FlashPrefill(0.3, sink=0, window=1, last_n=0, share=share)
    got, want = (mask_of(rule.select(one.queries(q), one, 0.2), 9) for one in (at, plain))
    # Of 486, where keys without their offset list over 70 others; by rounding a score may be on either side of a bound.
    assert (got != want).sum() <= 3


def test_channels_that_weigh_most_take_the_first_half_of_each_block() -> None:
    keys, queries = np.ones((1, 128)), np.ones((1, 128))
    heavy = [3, 64, 65, 127]
    keys[0, heavy[:2]], queries[0, heavy[2:]] = 50, 50
    order = KeyBasis.measured(np.zeros((1, 128)), keys, queries).order[0]
    assert set(order[:4]) == set(heavy)
    assert sorted(order.tolist()) == list(range(128))
    weights = np.exp(RNG.normal(size=(HEADS, 256)))
    order = KeyBasis.measured(np.zeros((HEADS, 256)), weights, np.ones((HEADS, 256))).order
    first = np.arange(256) % (2 * PART) < PART
    placed = np.take_along_axis(weights, order, 1)
    assert (placed[:, first].min(axis=1) >= placed[:, ~first].max(axis=1)).all()


@pytest.mark.parametrize("fmt", [K5, K4], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("d", [64, 128, 192, 256])
def test_the_key_that_a_basis_is_around_is_packed_without_error(d, fmt) -> None:
    basis, key = some_basis(d), 30 * RNG.normal(size=(HEADS, d)).astype(np.float32)
    around = replace(basis, first=key).of_format(fmt)
    errors = [np.abs(each.keys(fmt.decode(fmt.encode(each.stored(key[None])))) - key).max() for each in (basis, around)]
    assert errors[1] < 1e-4 < 0.1 < errors[0]
    assert np.array_equal(around.order, basis.order)
    assert np.array_equal(around.scale, basis.scale)
    assert around.offset.dtype == np.float32


def test_each_format_has_a_basis_of_its_own_which_is_computed_once() -> None:
    measured, key = some_basis(64), RNG.normal(size=(HEADS, 64)).astype(np.float32)
    assert measured.of_format(K5) is measured, "without such a key"
    measured = replace(measured, first=key)
    five, four = (measured.of_format(fmt) for fmt in (K5, K4))
    assert not np.array_equal(five.offset, four.offset)
    for basis, fmt in ((five, K5), (four, K4)):
        assert measured.of_format(fmt) is basis is basis.of_format(fmt)
        np.testing.assert_array_equal(basis.offset, measured.around(key, fmt).offset)


def test_tokens_far_back_count_less(model) -> None:
    near, far = (np.full(n, 7) for n in (NEAR, 2 * NEAR))
    assert NEAR > SKIP
    one, other = (measured_bases(model, [ids])[0] for ids in (near, far))
    assert not np.array_equal(one.scale, other.scale)


def test_a_channel_that_is_always_zero_has_a_scale() -> None:
    basis = KeyBasis.measured(np.zeros((1, 64)), np.zeros((1, 64)), np.zeros((1, 64)))
    assert np.isfinite(basis.inverse).all()
    assert (basis.scale == 1).all()


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_what_is_measured_is_what_the_cache_and_queries_hold(arch, tmp_path) -> None:
    model = load_model(write_tiny(tmp_path / "m.gguf", arch))
    runs = [np.random.default_rng(seed).integers(0, model.config.vocab, n) for seed, n in ((1, 120), (2, 70))]
    keys: dict[int, list] = {}
    first: dict[int, list] = {}
    asked: dict[int, list] = {}
    for ids in runs:
        cache = model.new_cache(len(ids), "f32")
        look = Hooks(on_attention=lambda layer, q, _: asked.setdefault(layer, []).append(q[SKIP:].copy()))
        prefill(model, ids, np.arange(len(ids)), cache, rows=len(ids), hooks=look)
        for layer in model.config.attention_layers:
            keys.setdefault(layer, []).append(cache.keys(layer)[SKIP:])
            first.setdefault(layer, []).append(cache.keys(layer)[0])
    found = measured_bases(model, runs)
    assert tuple(found) == model.config.attention_layers == measured_layers(model)
    for layer, basis in found.items():
        k, q = (np.concatenate(one[layer]).astype(np.float64) for one in (keys, asked))
        q = np.sqrt(np.square(q).reshape(len(q), k.shape[1], -1, k.shape[2]).mean(axis=(0, 2)))
        want = KeyBasis.measured(k.mean(axis=0), k.std(axis=0), q)
        np.testing.assert_allclose(basis.first, np.mean(first[layer], axis=0), atol=1e-4)
        np.testing.assert_allclose(basis.scale, want.scale, rtol=1e-3)
        np.testing.assert_allclose(basis.offset, want.offset, atol=1e-4)


def test_layers_that_are_not_loaded_are_left_out_and_runs_may_be_too_short(tmp_path, runs) -> None:
    cut = load_model(write_tiny(tmp_path / "m.gguf", "qwen3"), depth=2)
    assert tuple(measured_bases(cut, runs)) == (0, 1)
    assert measured_bases(cut, [runs[0][:SKIP]]) == {}
    assert measured_bases(cut, []) == {}


def planted(model: Model) -> Model:
    """With one channel of keys that is large, and biases of others: means that no token changes."""
    blocks = []
    for block in model.weights.blocks:
        mixer = block.mixer
        assert mixer.norms.k is not None
        k, q = mixer.norms.k.copy(), mixer.norms.q.copy()
        k[[5, 40]] *= 20
        q[[5, 40]] *= 0.3
        q[[6, 50]] *= 6
        blocks.append(replace(block, mixer=replace(mixer, norms=replace(mixer.norms, k=k, q=q))))
    other = Model(model.config, replace(model.weights, blocks=tuple(blocks)), "cpu", model.nbytes)
    return other.with_rope(replace(model.config.rope, base=1e12))  # slow channels, which have a mean


def test_five_bits_with_bases_are_nearer_to_the_exact_logits(model, runs) -> None:
    spoiled = planted(model)
    ids, known = np.random.default_rng(9).integers(0, model.config.vocab, 160), measured_bases(spoiled, runs)

    def logits(kv: str, bases) -> np.ndarray:
        cache = Cache(spoiled.config, len(ids), kv, bases=bases)
        return spoiled.head(stream_layer_major(spoiled, ids, np.arange(len(ids)), cache))

    exact = logits("f32", {})
    plain, measured = (np.square(logits("5bit", bases) - exact).mean() for bases in ({}, known))
    assert measured < 0.5 * plain


def test_a_cache_has_the_bases_that_its_model_knows(model, runs) -> None:
    asked, known = [], measured_bases(model, runs)

    def bases(of: Model) -> dict[int, KeyBasis]:
        asked.append(of.config.rope)
        return known

    own = load_model_like(model)
    own.key_bases = bases
    cache = own.new_cache(9, "5bit")
    other = own.with_rope(Rope(9e5, 64))
    other.new_cache(9, "k=k5,v=q8_0")
    own.new_cache(9, "q8_0")
    assert asked == [own.config.rope, other.config.rope]
    assert own.new_cache(9, "v=v4,k=k5").stored(1).basis is known[1].of_format(K5)
    assert own.new_cache(9, "4bit").stored(1).basis is known[1].of_format(K4)
    with pytest.raises(ConfigError, match="names one side"):
        own.new_cache(9, "k=k5")
    assert cache.stored(1).basis is known[1].of_format(K5)
    assert model.new_cache(9, "5bit").stored(1).basis.scale.max() == 1  # plain


def load_model_like(model: Model) -> Model:
    """Another of the same weights."""
    return Model(model.config, model.weights, "cpu", model.nbytes)


def test_a_trail_asks_once_and_keeps_its_bases_while_it_grows(model, runs) -> None:
    known, asked = measured_bases(model, runs), []

    def bases(kv: str) -> dict[int, KeyBasis]:
        asked.append(kv)
        return known

    trail, ids = SessionCache(model.config, "5bit", bases=bases), np.tile(runs[0], 3)
    assert asked == []
    at = 0
    for stop in (100, 600):
        with trail.reading(stop - at) as cache:
            last = prefill(model, ids[at:stop], np.arange(at, stop), cache)
        at = stop
    other = trail.fork(400)
    assert asked == ["5bit"]
    assert trail.cache.stored(0).basis is other.cache.stored(0).basis is known[0].of_format(K5)
    np.testing.assert_array_equal(other.cache.keys(1)[:400], trail.cache.keys(1)[:400])
    empty = trail.fork(0), SessionCache(model.config, "5bit", bases=bases).fork(0)
    for one, times in zip(empty, (1, 2), strict=True):  # of a trail that has read nothing they are asked for
        with one.reading(100) as cache:
            prefill(model, ids[:100], np.arange(100), cache)
            assert cache.stored(0).basis is known[0].of_format(K5)
        assert len(asked) == times
    whole = Cache(model.config, 600, "5bit", bases=known)
    prefill(model, ids[:100], np.arange(100), whole)
    np.testing.assert_allclose(prefill(model, ids[100:600], np.arange(100, 600), whole), last, atol=1e-5)


def test_gpus_that_share_a_model_measure_the_bases_of_their_heads(tmp_path, runs) -> None:
    path = write_tiny(tmp_path / "m.gguf", "qwen3")
    want = measured_bases(load_model(path), runs)
    parts = load_shards(path, HostGroup(2)).run(lambda part: measured_bases(part, runs))
    for layer, whole in want.items():
        for name in ("offset", "scale"):
            got = np.concatenate([getattr(part[layer], name) for part in parts])
            np.testing.assert_allclose(got, getattr(whole, name), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", ["tiny-gemma4", "tiny-gemma3", "tiny-muse-glimmer", "tiny-qwen35", *SHIFT_MATTERS])
def test_windows_heads_of_two_sizes_and_layers_without_rope_have_bases(shape, tmp_path) -> None:
    model = load_model(write_synthetic(tmp_path / "m.gguf", shape, "q8_0", 0))
    ids = np.random.default_rng(3).integers(0, model.config.vocab, 150)
    found = measured_bases(model, [ids])
    assert tuple(found) == model.config.attention_layers
    for layer, basis in found.items():
        sizes = model.config.heads_of(layer)
        assert basis.order.shape == basis.offset.shape == basis.scale.shape == (sizes.kv_heads, sizes.head_dim)
        assert np.isfinite(basis.offset).all()
        assert (basis.scale > 0).all()
        assert basis.offset.any() == (shape not in SHIFT_MATTERS)
    model.key_bases = lambda _: found

    def logits(kv: str) -> np.ndarray:
        cache = model.new_cache(len(ids), kv)
        return prefill(model, ids, np.arange(len(ids)), cache)

    exact, most = logits("f32"), 0.3 if model.config.experts else 0.1  # random routers are easily upset
    assert np.square(logits("5bit") - exact).mean() < most * exact.var()


@pytest.mark.parametrize(("kv", "fmt"), [("5bit", K5), ("4bit", K4)])
def test_gpus_that_read_together_have_the_bases_of_their_model(model, runs, kv, fmt) -> None:
    known, seen = measured_bases(model, runs), []
    own = load_model_like(model)
    own.key_bases = lambda _: known
    ids = np.random.default_rng(2).integers(0, model.config.vocab, 900)

    def look(layer: int, q, cache: Cache) -> None:
        seen.append((layer, cache.stored(layer).basis is known[layer].of_format(fmt)))

    read_context_parallel(HostGroup(2), [own] * 2, ids, np.arange(900), Hooks(on_attention=look), kv=kv)
    assert seen == [(layer, True) for layer in range(model.config.layers)]
