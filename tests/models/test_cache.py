"""Cache: pages are taken in order, re-used after release, and rotation changes rounding only; of every format."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from sp.errors import ConfigError, PromptError
from sp.models import Cache, DeltaConfig, ModelConfig
from sp.models.cache.kv_type import NAMES, KVType
from sp.models.cache.session_cache import SessionCache
from sp.models.cache.transfer import HostBuffer, ParkedCache, copy_cache
from sp.models.layer.steps import dense_attention
from sp.ops.attention.attention import attention
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import value_block
from sp.ops.attention.masked_attention import masked_attention
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.attention.tree_attention import seen_words, tree_attention, visible
from sp.ops.hadamard import hadamard, sylvester
from sp.ops.rope import Rope
from sp.quant import F16, Q4_0
from sp.quant.cached import IN_BASIS

MIXED = ("k=q8_0,v=q4_0", "k=k5,v=q8_0", "k=k5,v=f16", "k=k4,v=q8_0", "k=f16,v=v4", "k=q5_1,v=v4", "k=f32,v=q5_0")
KINDS = (*NAMES, *MIXED)
of_every_kind = pytest.mark.parametrize("kv", KINDS)
IN_BASES = [kv for kv in KINDS if KVType(kv).k in IN_BASIS]  # only these have a use for bases that were measured
of_every_kind_and_basis = pytest.mark.parametrize(
    ("kv", "measured"), [*((kv, False) for kv in KINDS), *((kv, True) for kv in IN_BASES)]
)
HEADS, D = 2, 64
DENSE = ModelConfig("qwen3", 32, 9, 4096, (8,) * 3, ("attention",) * 3, 4, HEADS, D, Rope(1e6, D), 1e-6)
HYBRID = ModelConfig(
    "qwen35", 32, 9, 4096, (8,) * 4, ("delta", "attention", "delta", "attention"), 4, HEADS, D, Rope(1e7, 16), 1e-6,
    gated=True, delta=DeltaConfig(key_heads=2, value_heads=6, head_dim=16, conv_kernel=4),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _rows_rotated_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some CPUs' BLAS rounds a row by how many others come with it; these tests are about where rows go."""

    def rotated(x: np.ndarray, block: int) -> np.ndarray:
        return np.einsum("ab,bc->ac", x.reshape(-1, block), sylvester(block).astype(x.dtype)).reshape(x.shape)

    monkeypatch.setattr("sp.ops.attention.kv_pages.hadamard", rotated)


def tokens(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random keys and values (n, HEADS, D)."""
    k, v = np.random.default_rng(seed).standard_normal((2, n, HEADS, D)).astype(np.float32)
    return k, v


def packed_rows(cache: Cache, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """What the pages of a layer hold, without the exact rows that a cache of `k4` has of the newest tokens."""
    return replace(cache.stored(layer), recent=None).gather()


def exact_bytes(kv: str, layers: int = 3) -> int:
    """Bytes of exact rows of the newest tokens: a page of float16 of each layer."""
    return 2 * layers * 128 * HEADS * 2 * D if KVType(kv).sides[0] == "k4" else 0


@of_every_kind
def test_append_in_odd_pieces_equals_one_append(kv) -> None:
    k, v = tokens(300)
    once, pieces = Cache(DENSE, 300, kv), Cache(DENSE, 300, kv)
    once.append(1, k, v)
    start = 0
    for size in (1, 126, 2, 0, 130, 41):
        pieces.append(1, k[start : start + size], v[start : start + size])
        start += size
        assert pieces.length(1) == start
    for a, b in zip(packed_rows(once, 1), packed_rows(pieces, 1), strict=True):
        assert a.shape == (300, HEADS, D)
        np.testing.assert_array_equal(a, b)
    assert once.pages_in_use == pieces.pages_in_use == 3


def test_formats_store_what_they_say() -> None:
    k, v = tokens(130)
    found = {}
    for kv in ("f32", "f16", "q4_0", "k=q8_0,v=q5_1"):
        cache = Cache(DENSE, 130, kv, rotate=False)
        cache.append(0, k, v)
        found[kv] = cache.gather(0)
        for stored, values, fmt in zip(found[kv], (k, v), (KVType(kv).k, KVType(kv).v), strict=True):
            np.testing.assert_array_equal(stored, fmt.decode(fmt.encode(values)))
    np.testing.assert_array_equal(found["f32"], (k, v))
    np.testing.assert_array_equal(found["f16"], [F16.decode(F16.encode(a)) for a in (k, v)])
    np.testing.assert_array_equal(found["q4_0"], [Q4_0.decode(Q4_0.encode(a)) for a in (k, v)])


def test_layers_interleaved_keep_their_own_block_tables() -> None:
    cache = Cache(DENSE, 256, "f32")
    stored = {layer: tokens(256, layer) for layer in range(3)}
    for start in range(0, 256, 64):
        for layer, (k, v) in stored.items():
            cache.append(layer, k[start : start + 64], v[start : start + 64])
    tables = [cache.block_table(layer) for layer in range(3)]
    assert tables == [(0, 3), (1, 4), (2, 5)], "pages are lent in the order they are asked for"
    for layer, (k, v) in stored.items():
        np.testing.assert_array_equal(cache.gather(layer), (k, v))


def test_released_pages_serve_the_next_layer() -> None:
    cache = Cache(DENSE, 300, "f16", layers=1)
    tables = []
    for layer in range(3):
        k, v = tokens(300, layer)
        cache.append(layer, k, v)
        np.testing.assert_array_equal(cache.gather(layer)[0], F16.decode(F16.encode(k)))
        tables.append(cache.block_table(layer))
        cache.release(layer)
    assert tables[0] == tables[1] == tables[2]
    assert (cache.peak_pages, cache.pages_in_use) == (3, 0)
    with pytest.raises(PromptError, match="released"):
        cache.append(0, *tokens(1))
    with pytest.raises(PromptError, match="reset"):
        _ = cache.tokens
    cache.reset()
    cache.append(0, *tokens(1))
    assert cache.length(0) == 1


def test_release_returns_pages_in_any_order_without_mixing_layers() -> None:
    cache = Cache(DENSE, 256, "f32")
    for layer in range(3):
        cache.append(layer, *tokens(200, layer))
    cache.release(1)
    assert cache.pages_in_use == 4
    for layer in (0, 2):
        np.testing.assert_array_equal(cache.gather(layer), tokens(200, layer))


def test_past_capacity_or_pool_is_a_clear_error_and_changes_nothing() -> None:
    cache = Cache(DENSE, 100, "f32")
    cache.append(0, *tokens(90))
    with pytest.raises(PromptError, match="101 tokens do not fit a cache of 100"):
        cache.append(0, *tokens(11))
    assert cache.length(0) == 90
    one = Cache(DENSE, 100, "f32", layers=1)
    one.append(0, *tokens(90))
    with pytest.raises(PromptError, match="free"):
        one.append(1, *tokens(1))
    assert one.length(1) == 0


def test_reset_forgets_tokens_pages_and_states() -> None:
    cache = Cache(HYBRID, 200, "f32")
    cache.append(1, *tokens(150))
    cache.state(0).recurrent += 1
    cache.state(2).conv += 1
    cache.state(2).tokens = 150
    cache.reset()
    assert cache.tokens == cache.pages_in_use == 0
    assert not cache.state(0).recurrent.any()
    assert not cache.state(2).conv.any()


def test_sizes_in_bytes() -> None:
    cache = Cache(HYBRID, 1000, "q4_0")
    pages, page = 2 * 8, 2 * 128 * HEADS * (D // 32 * 18)
    states = 2 * 4 * (6 * 16 * 16 + 3 * (2 * 2 + 6) * 16)
    assert cache.nbytes == pages * page + states
    assert cache.peak_nbytes == states
    cache.append(3, *tokens(129))
    assert cache.peak_nbytes == 2 * page + states
    assert cache.state(0).recurrent.shape == (6, 16, 16)
    assert cache.state(0).conv.shape == (3, 160)


@pytest.mark.parametrize(("d", "block"), [(64, 64), (128, 128), (192, 64), (256, 256)])
def test_rotation_spreads_a_key_over_the_largest_power_of_two_and_a_value_over_64(d, block) -> None:
    config = ModelConfig("qwen3", 32, 9, 4096, (8,), ("attention",), 4, HEADS, d, Rope(1e6, d), 1e-6)
    cache = Cache(config, 1, "f32", rotate=True)
    spike = np.zeros((1, HEADS, d), np.float32)
    spike[..., 3] = 1
    cache.append(0, spike, spike)
    for stored, width in zip(cache.gather(0), (block, 64), strict=True):
        np.testing.assert_allclose(np.abs(stored[..., :width]), width**-0.5, rtol=1e-6)
        assert not stored[..., width:].any()


@pytest.mark.parametrize("d", [64, 192])
def test_rotation_leaves_f32_attention_as_it_was(d) -> None:
    config = ModelConfig("qwen3", 32, 9, 4096, (8,), ("attention",), 4, HEADS, d, Rope(1e6, d), 1e-6)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((50, 4, d)).astype(np.float32)
    k, v = rng.standard_normal((2, 200, HEADS, d)).astype(np.float32)
    cache = Cache(config, 200, "f32", rotate=True)
    cache.append(0, k, v)
    keys, _ = cache.gather(0)
    assert np.abs(keys - k).max() > 0.5, "keys are stored rotated"
    np.testing.assert_allclose(dense_attention(cache, 0, q, None).reshape(q.shape), attention(q, k, v), atol=3e-6)
    np.testing.assert_allclose(cache.keys(0), k, atol=3e-6)
    logits = np.einsum("nkgd,tkd->nkgt", q.reshape(50, HEADS, 2, d), k)
    turned = np.einsum("nkgd,tkd->nkgt", cache.stored(0).queries(q).reshape(50, HEADS, 2, d), keys)
    np.testing.assert_allclose(turned, logits, atol=1e-4)


@pytest.mark.parametrize("d", [32, 96, 64, 192])
def test_quantised_caches_are_rotated_whatever_the_head_size_and_others_are_not(d) -> None:
    config = ModelConfig("qwen3", 32, 9, 4096, (8,), ("attention",), 4, HEADS, d, Rope(1e6, d), 1e-6)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((50, 4, d)).astype(np.float32)
    k, v = rng.standard_normal((2, 200, HEADS, d)).astype(np.float32)
    k[..., 5] *= 30  # a channel dominates, as in keys of published models
    q[..., 5] /= 30
    exact, errors = attention(q, k, v), {}
    for rotate in (None, True, False):
        cache = Cache(config, 200, "q4_0", rotate=rotate)
        cache.append(0, k, v)
        assert cache.stored(0).rotated is (rotate is not False)
        errors[rotate] = np.abs(dense_attention(cache, 0, q, None).reshape(q.shape) - exact).mean()
    assert errors[None] == errors[True] < errors[False]
    assert not any(Cache(config, 200, kv).stored(0).rotated for kv in ("f16", "f32"))


def test_rotation_saves_4_bit_keys_with_outlier_channels() -> None:
    rng = np.random.default_rng(3)
    q = rng.standard_normal((20, 4, D)).astype(np.float32)
    k, v = tokens(400, 4)
    k[..., [5, 40]] *= 30  # a few channels dominate, as in Qwen3 keys
    q[..., [5, 40]] /= 30
    exact = attention(q, k, v)
    error = {}
    for rotate in (False, True):
        cache = Cache(DENSE, 400, "q4_0", rotate=rotate)
        cache.append(0, k, v)
        keys, _ = cache.gather(0)
        found = dense_attention(cache, 0, q, None).reshape(q.shape)
        # Keys alone, so that the error of 4-bit values does not hide the difference.
        turned = cache.stored(0).queries(q)
        logits = [np.einsum("nhd,td->nht", a, b[:, 0]) for a, b in ((turned, keys), (q, k))]
        error[rotate] = (np.abs(logits[0] - logits[1]).mean(), np.abs(found - exact).mean())
    assert error[True][0] < 0.6 * error[False][0]
    assert error[True][1] < error[False][1]


def test_senseless_caches_are_refused() -> None:
    odd = ModelConfig("qwen3", 32, 9, 4096, (8,), ("attention",), 4, HEADS, 48, Rope(1e6, 48), 1e-6)
    with pytest.raises(ConfigError, match="did you mean 'f16'"):
        Cache(DENSE, 10, "fp16")
    with pytest.raises(ConfigError, match="at least 1"):
        Cache(DENSE, 0)
    with pytest.raises(ConfigError, match="48"):
        Cache(odd, 10, "q4_0")
    with pytest.raises(ConfigError, match="heads of 7 values cannot be rotated, because their size is odd"):
        Cache(replace(odd, head_dim=7), 10, "f16", rotate=True)
    with pytest.raises(ConfigError, match="layers is 0"):
        Cache(DENSE, 10, layers=0)


def test_wrong_names_are_refused_in_one_line_and_five_bits_unrotated_too() -> None:
    for kv, rotate in (("k5", None), ("k4", None), ("5bit", False), ("4bit", False), ("k=f16,v=v4", False)):
        with pytest.raises(ConfigError) as refused:
            Cache(DENSE, 10, kv, rotate=rotate)
        assert "\n" not in str(refused.value)


def filled(kv: str, n: int, **more) -> Cache:
    """A cache of which every layer holds other tokens."""
    cache = Cache(DENSE, 400, kv, **more)
    for layer in range(3):
        cache.append(layer, *(values[:n] for values in tokens(300, layer)))
    return cache


def assert_holds(cache: Cache, kv: str, layer: int, rows: np.ndarray | slice) -> None:
    """That the pages of a layer hold some of the tokens of `filled`, bit for bit."""
    once = Cache(DENSE, 400, kv)
    once.append(layer, *tokens(300, layer))
    for got, want in zip(packed_rows(cache, layer), packed_rows(once, layer), strict=True):
        np.testing.assert_array_equal(got, want[rows])


@of_every_kind
def test_what_is_cropped_is_written_over(kv) -> None:
    cache = filled(kv, 300)
    cache.crop(150)
    assert cache.tokens == 150
    for layer in range(3):
        assert_holds(cache, kv, layer, slice(150))
        k, v = tokens(300, layer)
        cache.append(layer, k[200:], v[200:])
        assert_holds(cache, kv, layer, np.r_[:150, 200:300])


@of_every_kind
def test_a_path_of_a_tree_moves_to_the_front_packed_as_it_is(kv) -> None:
    cache, path = filled(kv, 260), np.array([0, 2, 3, 7])
    cache.move(8, path, np.array([3]))
    cache.count(-5)
    for layer in range(3):
        assert_holds(cache, kv, layer, np.r_[:252, 252 + path[:3]])


@of_every_kind
def test_released_pages_of_every_kind_serve_the_next_layer(kv) -> None:
    cache = Cache(DENSE, 300, kv, layers=1)
    for layer in range(3):
        cache.append(layer, *tokens(300, layer))
        assert_holds(cache, kv, layer, slice(300))
        cache.release(layer)
    assert (cache.peak_pages, cache.pages_in_use) == (3, 0)


@of_every_kind
def test_another_cache_and_host_memory_hold_the_same_bytes(kv) -> None:
    source, larger, back = filled(kv, 300), Cache(DENSE, 700, kv), Cache(DENSE, 300, kv)
    copy_cache(source, larger, 170)
    parked = ParkedCache.of(source, HostBuffer("cpu"))
    row = source.kv.k.row_bytes(D) + source.kv.v.row_bytes(D)
    assert parked.nbytes == 3 * 3 * 128 * HEADS * row + exact_bytes(kv)
    source.reset()
    parked.put(back)
    for layer in range(3):
        assert_holds(larger, kv, layer, slice(170))
        assert_holds(back, kv, layer, slice(300))
    assert back.tokens == 300


@of_every_kind
def test_trails_of_every_kind_fork_park_and_go_back(kv) -> None:
    trail = SessionCache(DENSE, kv)

    def read(at: SessionCache, first: int, last: int) -> None:
        with at.reading(last - first) as cache:
            for layer in range(3):
                k, v = tokens(300, layer)
                cache.append(layer, k[first:last], v[first:last])

    read(trail, 0, 200)
    other = trail.fork(140)
    assert trail.park()
    read(other, 250, 300)
    read(trail, 200, 300)  # comes back from host memory, into a larger cache
    for layer in range(3):
        assert_holds(trail.cache, kv, layer, slice(300))
        assert_holds(other.cache, kv, layer, np.r_[:140, 250:300])
    assert other.rewind_to(100) == 100
    assert_holds(other.cache, kv, 1, slice(100))


BITS = {"f32": 32, "f16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_0": 4.5, "k5": 5.5, "k4": 4.5, "v4": 4.5}


@of_every_kind
def test_bytes_of_a_token_are_the_formula(kv) -> None:
    cache, (k, v) = filled(kv, 129), KVType(kv).sides
    token = HEADS * D * (BITS[k] + BITS[v]) / 8
    assert cache.nbytes == 3 * 512 * token + exact_bytes(kv)
    assert cache.peak_nbytes == 3 * 256 * token + exact_bytes(kv)
    at = cache.stored(0)
    assert at.k.shape[3] + at.v.shape[3] == token / HEADS


def a_basis(layers: int, mean: float) -> dict[int, KeyBasis]:
    """Measured ones, each with another order, for each layer and head."""
    rng = np.random.default_rng(9)
    shape = HEADS, D
    return {
        layer: KeyBasis.measured(
            mean * rng.standard_normal(shape), np.exp(rng.standard_normal(shape)), np.exp(rng.standard_normal(shape))
        )
        for layer in range(layers)
    }


def dequantised(cache: Cache) -> tuple[np.ndarray, np.ndarray]:
    """What the first layer holds as the model would have appended it: float64."""
    at, values = cache.stored(0), cache.gather(0)[1]
    values = hadamard(values, value_block(D)) if at.rotated else values
    return cache.keys(0).astype(np.float64), values.astype(np.float64)


def close(got: np.ndarray, want: np.ndarray) -> None:
    """Within 1e-5 of what attention usually gives."""
    assert np.abs(got.reshape(want.shape) - want).max() < 1e-5 * max(1.0, float(np.abs(want).max()))


@functools.cache
def held(kv: str, measured: bool, mean: float) -> tuple[Cache, np.ndarray, np.ndarray]:
    """A cache of 300 tokens that tests only read, and what its first layer holds."""
    cache = filled(kv, 300, bases=a_basis(3, mean) if measured else None)
    return cache, *dequantised(cache)


@of_every_kind_and_basis
@pytest.mark.parametrize("n", [1, 5, 150])
@pytest.mark.parametrize("what", ["plain", "window", "sinks", "capped"])
def test_attention_over_packed_pages_is_that_over_what_they_stand_for(kv, measured, n, what) -> None:
    rule = {
        "plain": PLAIN,
        "window": ScoreRule(window=40),
        "sinks": ScoreRule(sinks=np.array([0.5, -1, 2, 0], np.float32)),
        "capped": ScoreRule(softcap=5.0, scale=0.2),
    }[what]
    mean = 0.0 if what in ("sinks", "capped") else 3.0  # these two would see that scores are shifted
    cache, keys, values = held(kv, measured, mean)
    q = np.random.default_rng(n).standard_normal((n, 4, D)).astype(np.float32)
    close(dense_attention(cache, 0, q, None, rule), attention(q.astype(np.float64), keys, values, rule))


@of_every_kind_and_basis
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("sinks", [False, True])
def test_trees_over_packed_pages_are_those_over_what_they_stand_for(kv, measured, window, sinks) -> None:
    (cache, keys, values), rng = held(kv, measured, 0.0 if sinks else 3.0), np.random.default_rng(1)
    mask = np.tril(rng.random((9, 9)) < 0.5) | np.eye(9, dtype=bool)
    q = rng.standard_normal((9, 4, D)).astype(np.float32)
    rule = ScoreRule(window=window, sinks=np.array([0.5, -1, 2, 0], np.float32) if sinks else None)
    seen = seen_words(mask)
    reach = None if window is None else rule.first_seen(9, 300, q)
    want = masked_attention(q.astype(np.float64), keys, values, visible(seen, 300, reach), rule)
    close(tree_attention(q, cache.stored(0), seen=seen, rule=rule), want)


@pytest.mark.parametrize("kv", ["5bit", "k=k5,v=f16", "4bit", "k=k4,v=f16"])
def test_measured_bases_are_for_k5_and_k4_alone_and_cost_less_than_plain_ones(kv) -> None:
    rng = np.random.default_rng(2)
    keys = 4 * rng.standard_normal((1, HEADS, D)) + rng.standard_normal((300, HEADS, D))
    keys[..., ::7] *= 5
    keys, (_, v), found = keys.astype(np.float32), tokens(300), {}
    rms = np.sqrt(np.square(keys - keys.mean(0)).mean(0))
    bases = {0: KeyBasis.measured(keys.mean(0), rms, np.ones_like(rms))}
    for name, given in (("plain", None), ("measured", bases)):
        cache = Cache(DENSE, 300, kv, bases=given)
        cache.append(0, keys, v)
        at = replace(cache.stored(0), recent=None)
        found[name] = float(np.square(at.model_keys() - keys).mean())
    assert found["measured"] < 0.5 * found["plain"]
    assert Cache(DENSE, 300, "q8_0", bases=bases).stored(0).basis is None
