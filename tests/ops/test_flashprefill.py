"""Block selection in NumPy against loops written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flashprefill_loops import BLOCK, GROUPS, SIZES, paged, sample, slow_energies, slow_mean, slow_selection
from hypothesis import given, settings
from hypothesis import strategies as st
from tied_blocks import tied_blocks

from sp.errors import ConfigError
from sp.ops.sparse.block_energy import block_energy
from sp.ops.sparse.block_lists import causal, density, forced, lists_of, mask_of
from sp.ops.sparse.block_means import block_means, means_of
from sp.ops.sparse.block_selector import GivenMask, Streaming
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity, strongest
from sp.quant import F32


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
    at = paged(k, v)
    k = k.astype(np.float32).astype(np.float64)
    lists = options.select(q, at, 0.3)
    assert lists.counts.dtype == lists.indices.dtype == np.int32
    mask = mask_of(lists, lists.indices.shape[2])
    for head, i in np.ndindex(mask.shape[:2]):
        listed = lists.indices[head, i, : lists.counts[head, i]]
        assert (np.diff(listed) > 0).all()
        want, unsure = slow_selection(options, q, k, head, i, 0.3)
        # float32 means may move what lies at the threshold or at the rank of the budget.
        differ = set(np.flatnonzero(mask[head, i]).tolist()) ^ want
        assert differ <= unsure or len(differ) <= 2 * bool(options.min_budget), f"head {head}, query block {i}"


def test_group_heads_share_a_list():
    q, k, v = sample(900, 900, 6, 2)
    mask = mask_of(FlashPrefill(0.5, share="group").select(q, paged(k, v), 1.0), 8)
    assert (mask[:3] == mask[0]).all()
    assert (mask[3:] == mask[3]).all()


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


def test_energies_at_the_threshold_are_kept():
    """In the loops above what lies at the threshold may go either way; here nothing may."""
    energy = np.float32([[[2, 8, 1.999, 2, 4, 0.5, 0]] * 7])
    options = FlashPrefill(0.25, sink=0, window=1, last_n=0)
    mask = options.mask(energy, 7 * BLOCK, 7 * BLOCK)
    assert np.flatnonzero(mask[0, 6]).tolist() == [0, 1, 3, 4, 6]
    # The largest of those that are not forced, and the smallest energy that counts, are thresholds of their own.
    unforced = FlashPrefill(0.5, sink=2, window=1, last_n=0, maximum="unforced").mask(energy, 7 * BLOCK, 7 * BLOCK)
    assert np.flatnonzero(unforced[0, 6]).tolist() == [0, 1, 3, 4, 6]
    least = np.float32([[[2.0**-126, 0, 2.0**-126, 1]] * 4])
    tiny = FlashPrefill(1e-45, sink=0, window=1, last_n=0).mask(least, 4 * BLOCK, 4 * BLOCK)
    assert np.flatnonzero(tiny[0, 3]).tolist() == [0, 2, 3]


@pytest.mark.parametrize("together", [1, 2])
def test_equal_energies_are_all_the_largest(together):
    """Rows that score several blocks alike: at alpha 1 each of these is at the threshold."""
    q, means, tokens, want = tied_blocks()
    energy = block_energy(q.astype(np.float32), means.astype(np.float32), tokens, 1.0, together)
    share = "head" if together == 1 else "group"
    assert (FlashPrefill(1.0, sink=0, window=1, last_n=0, share=share).mask(energy, len(q), tokens) == want).all()


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
    at = paged(k, v)
    got = block_means(at.k, at.table, 300, F32)
    want = np.stack([[slow_mean(k, j, h) for j in range(3)] for h in range(2)])
    np.testing.assert_allclose(got, want, rtol=2**-10)


def test_given_masks_and_streaming():
    q, k, v = sample(300, 700, 2, 1)
    at = paged(k, v)
    wanted = np.random.default_rng(0).random((2, 3, 6)) < 0.5
    lists = GivenMask(wanted).select(q, at, 1.0)
    assert (mask_of(lists, 6) == wanted & causal(300, 700)).all()
    stream = Streaming(sink=1, window=2).select(q, at, 1.0)
    # Queries begin at token 400, in block 3.
    assert [np.flatnonzero(row).tolist() for row in mask_of(stream, 6)[1]] == [[0, 2, 3, 4], [0, 3, 4, 5], [0, 4, 5]]
    with pytest.raises(ConfigError, match="a mask of"):
        GivenMask(wanted[:, :2]).select(q, at, 1.0)


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
    at = paged(k, v)
    with pytest.raises(ConfigError, match="0 queries of 300"):
        FlashPrefill(0.1).select(np.zeros((0, 2, 8)), at, 1.0)
    with pytest.raises(ConfigError, match="3 query heads do not divide"):
        FlashPrefill(0.1).select(np.zeros((1, 3, 8)), at, 1.0)
