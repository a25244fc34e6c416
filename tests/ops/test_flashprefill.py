"""Block selection and sparse attention in NumPy against loops written from the definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.errors import ConfigError
from sp.ops import attention, kv_append
from sp.ops.block_energy import block_energy
from sp.ops.block_lists import causal, density, forced, lists_of, mask_of
from sp.ops.block_means import block_means, means_of
from sp.ops.block_selector import Dense, GivenMask, Streaming
from sp.ops.block_sparse import block_sparse
from sp.ops.flashprefill import FlashPrefill, TopDensity, strongest
from sp.ops.sparse_attention import sparse_attention
from sp.quant import F32

BLOCK = 128
SIZES = st.sampled_from([(1, 1), (1, 128), (127, 127), (128, 128), (129, 129), (255, 255), (130, 700), (513, 600)])
GROUPS = st.sampled_from([1, 2, 3])


def sample(n: int, tokens: int, heads: int, kv_heads: int, d: int = 8, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng([seed, n, tokens])
    shapes = (n, heads, d), (tokens, kv_heads, d), (tokens, kv_heads, d)
    q, k, v = (2 * rng.standard_normal(shape) for shape in shapes)
    return q, k, v


def paged(k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K and V in scattered float32 pages that hold NaN wherever no token is, and the table."""
    tokens, kv_heads, d = k.shape
    pages = -(-tokens // BLOCK)
    table = np.random.default_rng(tokens).permutation(pages + 2)[:pages]
    pools = [np.full((pages + 2, BLOCK, kv_heads, 4 * d), 0xFF, np.uint8) for _ in range(2)]
    for pool, values in zip(pools, (k, v), strict=True):
        kv_append(pool, table, 0, values.astype(np.float32), F32)
    return *pools, table


def slow_mean(k: np.ndarray, j: int, head: int) -> np.ndarray:
    rows = [k[t, head] for t in range(BLOCK * j, min(BLOCK * (j + 1), len(k)))]
    return (sum(rows) / len(rows)).astype(np.float16).astype(np.float64)


def slow_energies(
    q: np.ndarray, k: np.ndarray, heads: list[int], i: int, scale: float, visibility: str
) -> dict[int, float]:
    """Energies of one query block over the rows of some heads: block -> energy, for the blocks any row sees."""
    tokens, group = len(k), q.shape[1] // k.shape[1]
    seen: list[tuple[int, float]] = []
    means = {j: slow_mean(k, j, heads[0] // group) for j in range(-(-tokens // BLOCK))}
    for row in range(BLOCK * i, min(BLOCK * (i + 1), len(q))):
        position = tokens - len(q) + row
        for head in heads:
            for j, mean in means.items():
                if position >= j * BLOCK + (BLOCK - 1 if visibility == "last" else 0):
                    seen.append((j, scale * float(q[row, head] @ mean)))
    if not seen:
        return {}
    top = max(score for _, score in seen)
    energies: dict[int, float] = {}
    for j, score in seen:
        energies[j] = energies.get(j, 0.0) + math.exp(score - top)
    return energies


def slow_selection(
    options: FlashPrefill, q: np.ndarray, k: np.ndarray, head: int, i: int, scale: float
) -> tuple[set[int], set[int]]:
    """Blocks that query block i of a head keeps, and those at the threshold, by the rule of the papers."""
    tokens, n, group = len(k), len(q), q.shape[1] // k.shape[1]
    start = tokens - n + BLOCK * i
    last = min(start + BLOCK, tokens) - 1
    possible = range(last // BLOCK + 1)
    always = {j for j in possible if j < options.sink or j > start // BLOCK - options.window}
    if i >= -(-n // BLOCK) - options.last_n:
        always = set(possible)
    heads = [head] if options.share == "head" else list(range(head // group * group, head // group * group + group))
    energies = dict.fromkeys(possible, 0.0) | slow_energies(q, k, heads, i, scale, options.visibility)
    judged = [e for j, e in energies.items() if options.maximum == "all" or j not in always]
    bound = options.alpha * max(judged, default=0.0)
    kept = {j for j in possible if energies[j] >= max(bound, 2.0**-126 if options.alpha else 0.0)}
    unsure = {j for j in possible if abs(energies[j] - bound) <= 1e-9 * bound}
    ranked = sorted(possible, key=lambda j: -energies[j])
    return kept | always | set(ranked[: options.min_budget]), unsure - always


@given(sizes=SIZES, group=GROUPS, visibility=st.sampled_from(["last", "first"]), together=st.booleans())
@settings(max_examples=25, deadline=None)
def test_energy_is_its_definition(sizes, group, visibility, together):
    q, k, _ = sample(*sizes, 2 * group, 2)
    joined = group if together else 1
    got = block_energy(q, means_of(k), len(k), 0.3, joined, visibility)
    for entry, i in np.ndindex(got.shape[:2]):
        want = slow_energies(q, k, list(range(entry * joined, (entry + 1) * joined)), i, 0.3, visibility)
        row = np.array([want.get(j, 0.0) for j in range(got.shape[2])])
        np.testing.assert_allclose(got[entry, i], row, rtol=1e-9)


@given(
    sizes=SIZES,
    group=GROUPS,
    alpha=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    sink=st.integers(0, 2),
    window=st.integers(1, 3),
    last_n=st.integers(0, 2),
    min_budget=st.integers(0, 3),
    maximum=st.sampled_from(["all", "unforced"]),
    share=st.sampled_from(["head", "group"]),
    visibility=st.sampled_from(["last", "first"]),
)
@settings(max_examples=40, deadline=None)
def test_selection_is_the_rule(sizes, group, **chosen):
    q, k, v = sample(*sizes, 2 * group, 2)
    options = FlashPrefill(**chosen)
    k_pages, _, table = paged(k, v)
    k = k.astype(np.float32).astype(np.float64)
    lists = options.select(q, k_pages, table, len(k), 0.3, F32)
    assert lists.counts.dtype == lists.indices.dtype == np.int32
    mask = mask_of(lists, lists.indices.shape[2])
    for head, i in np.ndindex(mask.shape[:2]):
        listed = lists.indices[head, i, : lists.counts[head, i]]
        assert (np.diff(listed) > 0).all()
        want, unsure = slow_selection(options, q, k, head, i, 0.3)
        # float32 means may move what lies at the threshold or at the rank of the budget.
        differ = set(np.flatnonzero(mask[head, i]).tolist()) ^ want
        assert differ <= unsure or len(differ) <= 2 * bool(options.min_budget), f"head {head}, query block {i}"


@given(sizes=SIZES, group=GROUPS, seed=st.integers(0, 99), correct=st.booleans())
@settings(max_examples=25, deadline=None)
def test_attention_over_lists_is_its_definition(sizes, group, seed, correct):
    n, tokens = sizes
    q, k, v = sample(n, tokens, 2 * group, 2, seed=seed)
    mask = causal(n, tokens)
    mask = mask & (np.random.default_rng(seed).random((2 * group, *mask.shape)) < 0.6) | forced(n, tokens, 0, 1, 0)
    means = (means_of(k), means_of(v)) if correct else None
    got = block_sparse(q, k, v, lists_of(mask), 0.3, means)
    rng = np.random.default_rng(seed)
    for row, head in zip(rng.integers(n, size=20), rng.integers(2 * group, size=20), strict=True):
        position, i, kv_head = tokens - n + row, row // BLOCK, head // group
        scores, values = [], []
        for t in range(position + 1):
            if mask[head, i, t // BLOCK]:
                scores.append(0.3 * q[row, head] @ k[t, kv_head])
                values.append(v[t, kv_head])
        first = tokens - n + BLOCK * i
        for j in range(mask.shape[2]) if correct else ():
            if not mask[head, i, j] and BLOCK * j + BLOCK - 1 <= first:
                scores.append(0.3 * q[row, head] @ slow_mean(k, j, kv_head) + math.log(BLOCK))
                values.append(slow_mean(v, j, kv_head))
        weights = np.exp(np.array(scores) - max(scores))
        want = weights @ np.array(values) / weights.sum()
        np.testing.assert_allclose(got[row, head], want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("n", "tokens"), [(1, 1), (127, 127), (300, 300), (200, 513)])
@pytest.mark.parametrize("selector", [FlashPrefill(0.0), Dense(), TopDensity(1.0), FlashPrefill(0.9, last_n=99)])
def test_everything_kept_is_dense(n, tokens, selector):
    q, k, v = (a.astype(np.float32) for a in sample(n, tokens, 4, 2))
    k_pages, v_pages, table = paged(k, v)
    out, counts = sparse_attention(q, k_pages, v_pages, table, tokens, 8**-0.5, selector, F32)
    np.testing.assert_allclose(out, attention(q, k, v), atol=3e-6)
    assert density(counts, n, tokens) == 1


def planted(blocks: int) -> tuple[np.ndarray, ...]:
    """Queries that look for block 3, whose keys all point their way; the other blocks are flat."""
    rng = np.random.default_rng(0)
    q, k, v = (0.1 * rng.standard_normal((blocks * BLOCK, 1, 8)) for _ in range(3))
    q[..., 0] += 3
    k[3 * BLOCK : 4 * BLOCK, :, 0] += 3
    return q, k, v


def test_a_peaked_block_is_kept_and_flat_ones_are_dropped():
    q, k, v = planted(12)
    k_pages, v_pages, table = paged(k, v)
    bare = FlashPrefill(0.5, sink=0, window=1, last_n=0)
    mask = mask_of(bare.select(q, k_pages, table, len(k), 1.0, F32), 12)[0]
    assert [np.flatnonzero(row).tolist() for row in mask[5:]] == [[3, i] for i in range(5, 12)]
    out, counts = sparse_attention(q, k_pages, v_pages, table, len(k), 1.0, bare, F32)
    assert density(counts) < 0.5
    want = block_sparse(q, k, v, lists_of(causal(len(q), len(k))[None]), 1.0)
    np.testing.assert_allclose(out, want, atol=0.02)


def test_a_forced_block_with_all_the_energy_hides_the_others_unless_it_is_not_asked():
    q, k, v = planted(12)
    k[:BLOCK, :, 0] += 6  # the sink draws far more than block 3
    k_pages, _, table = paged(k, v)
    options = FlashPrefill(0.5, sink=1, window=1, last_n=0)
    kept = [
        mask_of(replace(options, maximum=word).select(q, k_pages, table, len(k), 1.0, F32), 12)[0, 8]
        for word in ("all", "unforced")
    ]
    assert [np.flatnonzero(row).tolist() for row in kept] == [[0, 8], [0, 3, 8]]


def test_mean_correction_brings_flat_attention_back():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1500, 2, 16)).astype(np.float32) * s for s in (0.2, 0.2, 1))
    v += np.repeat(rng.standard_normal((12, 1, 16)), BLOCK, axis=0)[:1500].astype(
        np.float32
    )  # blocks differ in their values
    k_pages, v_pages, table = paged(k, v)
    dense = attention(q, k, v)
    options = FlashPrefill(1.0, sink=1, window=1, last_n=0)
    errors = []
    for correct in (False, True):
        chosen = replace(options, mean_correction=correct)
        out, _ = sparse_attention(q, k_pages, v_pages, table, 1500, 0.25, chosen, F32)
        errors.append(float(((out - dense) ** 2).sum() / (dense**2).sum()))
    assert errors[1] < errors[0] / 50


def test_group_heads_share_a_list():
    q, k, v = sample(900, 900, 6, 2)
    k_pages, _, table = paged(k, v)
    mask = mask_of(FlashPrefill(0.5, share="group").select(q, k_pages, table, 900, 1.0, F32), 8)
    assert (mask[:3] == mask[0]).all()
    assert (mask[3:] == mask[3]).all()


@pytest.mark.parametrize("first", [257, 384, 600])
def test_later_tokens_change_nothing(first):
    q, k, v = sample(700, 700, 2, 1)
    outs = []
    for noise in (0, 5):
        k[first:] += noise * np.random.default_rng(0).standard_normal(k[first:].shape)
        v[first:] += noise
        k_pages, v_pages, table = paged(k, v)
        options = FlashPrefill(0.5, sink=1, window=1, last_n=0)
        outs.append(sparse_attention(q, k_pages, v_pages, table, 700, 0.3, options, F32)[0])
    rows = first // BLOCK * BLOCK
    assert (outs[0][:rows] == outs[1][:rows]).all()
    assert not (outs[0][first:] == outs[1][first:]).all()


@given(share=st.floats(0.01, 1), blocks=st.integers(1, 40))
def test_top_density_counts(share, blocks):
    n = blocks * BLOCK
    energy = np.random.default_rng(blocks).random((1, blocks, blocks))
    mask = TopDensity(share, sink=1, window=1, last_n=0).mask(energy, n, n)
    always = forced(n, n, 1, 1, 0)
    assert (mask[0] >= always).all()
    for i, row in enumerate(mask[0]):
        assert row.sum() == max(math.ceil(np.float32(share) * np.float32(i + 1)), always[i].sum())
        left_out, free = energy[0, i, : i + 1][~row[: i + 1]], row & ~always[i]
        assert not left_out.size or not free.any() or energy[0, i][free].min() >= left_out.max()


def test_strongest_takes_the_first_of_equals():
    scores = np.array([[[1.0, 2, 2, 2, 0]]])
    assert np.flatnonzero(strongest(scores, np.array([2]))[0, 0]).tolist() == [1, 2]


def test_lists_and_masks_are_inverses():
    mask = np.random.default_rng(0).random((3, 5, 9)) < 0.4
    lists = lists_of(mask)
    assert (mask_of(lists, 9) == mask).all()
    assert density(lists_of(causal(600, 600)[None]).counts, 600, 600) == 1


def test_means_take_only_the_tokens_there_are():
    _, k, v = sample(1, 300, 1, 2)
    k_pages, _, table = paged(k, v)
    got = block_means(k_pages, table, 300, F32)
    want = np.stack([[slow_mean(k, j, h) for j in range(3)] for h in range(2)])
    np.testing.assert_allclose(got, want, rtol=2**-10)


def test_given_masks_and_streaming():
    q, k, v = sample(300, 700, 2, 1)
    k_pages, _, table = paged(k, v)
    wanted = np.random.default_rng(0).random((2, 3, 6)) < 0.5
    lists = GivenMask(wanted).select(q, k_pages, table, 700, 1.0, F32)
    assert (mask_of(lists, 6) == wanted & causal(300, 700)).all()
    stream = Streaming(sink=1, window=2).select(q, k_pages, table, 700, 1.0, F32)
    # Queries begin at token 400, in block 3.
    assert [np.flatnonzero(row).tolist() for row in mask_of(stream, 6)[1]] == [[0, 2, 3, 4], [0, 3, 4, 5], [0, 4, 5]]
    with pytest.raises(ConfigError, match="a mask of"):
        GivenMask(wanted[:, :2]).select(q, k_pages, table, 700, 1.0, F32)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"alpha": 1.01}, "alpha is 1.01"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha": 0.1, "window": 0}, "window is 0"),
        ({"alpha": 0.1, "sink": -1}, "sink is -1"),
        ({"alpha": 0.1, "last_n": -1}, "last_n -1"),
        ({"alpha": 0.1, "min_budget": -1}, "min_budget is -1"),
        ({"alpha": 0.1, "share": "all"}, "known are head, group"),
        ({"alpha": 0.1, "visibility": "none"}, "known are last, first"),
        ({"alpha": 0.1, "maximum": "some"}, "known are all, unforced"),
    ],
)
def test_wrong_options(wrong, why):
    with pytest.raises(ConfigError, match=why):
        FlashPrefill(**wrong)


def test_wrong_sizes():
    for share in (0, 1.5):
        with pytest.raises(ConfigError, match="density is"):
            TopDensity(share)
    _, k, v = sample(1, 300, 1, 2)
    k_pages, _, table = paged(k, v)
    with pytest.raises(ConfigError, match="0 queries of 300"):
        FlashPrefill(0.1).select(np.zeros((0, 2, 8)), k_pages, table, 300, 1.0, F32)
    with pytest.raises(ConfigError, match="3 query heads do not divide"):
        FlashPrefill(0.1).select(np.zeros((1, 3, 8)), k_pages, table, 300, 1.0, F32)
