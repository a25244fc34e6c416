"""Sparse prefill on both paths: lists against a float64 oracle, attention over them against softmax in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare import nmse, to_float64
from sparse_case import BLOCK, KINDS, Case, selected
from tied_blocks import tied_blocks

from sp.errors import ConfigError, DeviceError
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.sparse import sparse_attention as op
from sp.ops.sparse.block_budget import ConstantBlocks, EnergyBlocks, SqrtBlocks
from sp.ops.sparse.block_energy import block_energy
from sp.ops.sparse.block_lists import causal, density, lists_of, mask_of
from sp.ops.sparse.block_means import block_means, means_of
from sp.ops.sparse.block_selector import Dense, GivenMask, Streaming
from sp.ops.sparse.block_sparse import block_sparse
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity, select_on_device, top_density
from sp.ops.sparse.sparse_attention import sparse_attention
from sp.quant import F16, Q4_0, Q8_0
from sp.quant.cached import K5, V4

BOUND = 6e-6  # NMSE: rounding the output to bf16 alone gives about 2.8e-6
TOKENS = (1, 127, 128, 129, 255, 4153)
DENSITIES = {
    "random": (0.99, 1.01),
    "clusters": (0.4, 0.65),
    "sink": (0.35, 0.42),
    "peaked": (0.4, 0.5),
    "planted": (0.44, 0.5),
    "real": (0.42, 0.5),
}
"""Of `test_attention_over_what_was_selected`, where forced blocks alone make 0.386 or 0.394."""


def band(case, options, together):
    """The oracle's mask, and which of its blocks lie too near the threshold for float32 to tell."""
    energy = case.energy(together, options.visibility)
    outer, inner = (options_with(options, factor).mask(energy, case.n, case.tokens) for factor in (0.999, 1.001))
    want = options.mask(energy, case.n, case.tokens)
    return (a.repeat(together, axis=0) for a in (want, outer != inner))


def options_with(options, factor):
    return replace(options, alpha=min(1.0, options.alpha * factor))


def close(case, out, mask):
    """As near float64 as bf16 outputs can be, and no further off than twice what bf16 arithmetic is."""
    last = mask.shape[1] - 1
    blocks = sorted({0, last // 2, last}) if case.tokens > 3000 else range(last + 1)
    rows = np.concatenate([np.arange(BLOCK * i, min(BLOCK * (i + 1), case.n)) for i in blocks])
    got, want = to_float64(out)[rows], case.attend(mask, blocks)
    assert nmse(got, want) < BOUND
    assert np.abs(got - want).max() <= 2 * np.abs(case.attend(mask, blocks, low=True) - want).max()


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("fmt", [F16, Q8_0, Q4_0, K5, V4], ids=lambda fmt: fmt.name)
def test_means(guarded, d, fmt):
    for tokens in (1, 128, 129, 1000):
        case = Case(1, tokens, 2, 2, d, fmt=fmt)
        _, at, _ = case.device(guarded)
        got = to_float64(block_means(at.k, at.table, tokens, fmt))
        rows = case.k.astype(np.float16).astype(np.float64)  # as whoever unpacks packed rows finds them
        want = np.stack([rows[i : i + BLOCK].mean(axis=0) for i in range(0, tokens, BLOCK)], axis=1)
        np.testing.assert_allclose(got, want, rtol=2**-10, atol=2e-4 if fmt in (K5, V4) else 1e-6)


@pytest.mark.parametrize("d", [128, 256])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize(("tokens", "kind"), [(t, "random") for t in TOKENS] + [(3001, k) for k in KINDS])
def test_lists_equal_the_oracle(path, guarded, d, group, tokens, kind):
    kv_heads = 1 if group == 6 else 2
    for n in {tokens, max(1, tokens - 300)}:
        case = Case(n, tokens, group * kv_heads, kv_heads, d, kind)
        for alpha, more in (
            (0.1, {}),
            (0.85, {"maximum": "unforced"}),
            (0.3, {"visibility": "first", "share": "group"}),
        ):
            options = FlashPrefill(alpha, last_n=1, window=2, sink=1, **more)
            want, unsure = band(case, options, group if options.share == "group" else 1)
            got = selected(case, guarded, options)
            wrong = (got != want) & ~unsure
            assert not wrong.any(), f"{wrong.sum()} of {wrong.size}, {n} of {tokens}, {options}"
            assert unsure.sum() < max(8, 0.02 * unsure.size), (
                f"{unsure.sum()} of {unsure.size} blocks lie at the threshold"
            )


@pytest.mark.parametrize("d", [64, 128, 256])
def test_long_prompt_lists(path, guarded, d):
    """Several tiles of mean keys, and rows of few and many candidates."""
    case = Case(1000, 70 * BLOCK + 17, 4, 2, d, "clusters")
    for options in (FlashPrefill(0.1), FlashPrefill(0.5, share="group"), FlashPrefill(0.9, sink=0, window=1, last_n=0)):
        want, unsure = band(case, options, 2 if options.share == "group" else 1)
        got = selected(case, guarded, options)
        assert not ((got != want) & ~unsure).any()
        assert 0.02 < got[:, :-2].mean() < 0.9
        forced = options.mask(np.zeros((1, *got.shape[1:])), case.n, case.tokens)
        assert (got >= forced).all()


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("most", [2048, 2049, 9000])
def test_lists_among_very_many_blocks(path, guarded, d, most):
    """Of the last rows, since the oracle takes long."""
    rng, n = np.random.default_rng([d, most]), 300
    q = rng.standard_normal((n, 2, d)).astype(np.float16)
    means = rng.standard_normal((1, most, d)).astype(np.float16)
    energy = block_energy(q.astype(np.float32), means.astype(np.float32), most * BLOCK - 5, d**-0.5, 1, "last")
    given = guarded(q.shape, np.float16, q), guarded(means.shape, np.float16, means)
    for options in (TopDensity(0.03), ConstantBlocks(64)):
        want = options.mask(energy, n, most * BLOCK - 5)
        got = mask_of(_on_host(select_on_device(options, *given, most * BLOCK - 5, d**-0.5)), most)
        assert (got.sum(axis=2) == want.sum(axis=2)).all()
        for place in zip(*np.nonzero(got != want), strict=True):
            assert (np.abs(energy[place[:2]] / energy[place] - 1) < 1e-3).sum() > 1, f"{place}"
        assert (got != want).mean() < 0.001


@pytest.mark.parametrize("share", ["head", "group"])
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("blocks", [8, 70])
def test_energies_at_the_threshold_are_listed(path, guarded, blocks, d, share):
    """Exactly at it, where `test_lists_equal_the_oracle` looks away."""
    q, means, tokens, want = tied_blocks(d, blocks)
    options = FlashPrefill(1.0, sink=0, window=1, last_n=0, share=share)
    energy = block_energy(q.astype(np.float32), means.astype(np.float32), tokens, 1.0, 2 if share == "group" else 1)
    assert (options.mask(energy, len(q), tokens) == want).all()
    lists = select_on_device(
        options, guarded(q.shape, q.dtype, q), guarded(means.shape, means.dtype, means), tokens, 1.0
    )
    assert (mask_of(_on_host(lists), blocks) == want).all()


def _on_host(lists):
    return BlockLists(lists.counts.get(), lists.indices.get(), lists.long_blocks)


V2 = FlashPrefill(0.3, share="group", visibility="first")


@pytest.mark.parametrize("share", ["head", "group"])
def test_budget_and_density(path, guarded, share):
    case = Case(3000, 40 * BLOCK, 4, 2, 128, "random")
    energy = case.energy(2 if share == "group" else 1)
    rules = (ConstantBlocks(7, share=share), SqrtBlocks(12, 4096, share=share), EnergyBlocks(0.6, 1, 30, share=share))
    numbered = (TopDensity(0.3, share=share), *rules)
    for options in (FlashPrefill(1.0, min_budget=5, share=share), *numbered, TopDensity(1.0)):
        if options == TopDensity(1.0):
            assert (selected(case, guarded, options) == causal(case.n, case.tokens)).all()
            continue
        want = options.mask(energy, case.n, case.tokens).repeat(4 // len(energy), axis=0)
        got = selected(case, guarded, options)
        if isinstance(options, EnergyBlocks):  # a share that float32 reaches one block earlier or later
            assert (np.abs(got.sum(axis=2) - want.sum(axis=2)) <= 1).all()
            assert (got != want).mean() < 0.01
            continue
        if options in numbered:
            assert (got.sum(axis=2) == want.sum(axis=2)).all()
        # A rank is decided by energies that float32 may swap when they are within 1e-3.
        for place in zip(*np.nonzero(got != want), strict=True):
            row = energy[place[0] * len(energy) // 4, place[1]]
            assert (np.abs(row / row[place[2]] - 1) < 1e-3).sum() > 1, f"{place}"
        assert (got != want).mean() < 0.01
    assert top_density(energy, 1.0, case.n, case.tokens).sum() == len(energy) * causal(case.n, case.tokens).sum()


@pytest.mark.parametrize("d", [128, 256])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize("tokens", TOKENS)
def test_alpha_zero_is_dense(path, guarded, d, group, tokens):
    kv_heads = 1 if group == 6 else 2
    case = Case(tokens, tokens, group * kv_heads, kv_heads, d)
    out, counts = sparse_attention(*case.device(guarded), FlashPrefill(0.0))
    dense, _ = sparse_attention(*case.device(guarded), Dense())
    assert density(counts, tokens, tokens) == 1
    assert (out == dense).all()
    close(case, out, causal(tokens, tokens)[None].repeat(case.q.shape[1], axis=0))


@pytest.mark.parametrize("kind", list(DENSITIES))
@pytest.mark.parametrize(("d", "group"), [(128, 2), (256, 6), (64, 1)])
@pytest.mark.parametrize(("n", "tokens"), [(2190, 2190), (700, 2345)])
def test_attention_over_what_was_selected(path, guarded, kind, d, group, n, tokens):
    case = Case(n, tokens, group, 1, d, kind)
    options = FlashPrefill(0.4, sink=1, window=2, last_n=1)
    mask = selected(case, guarded, options)
    out, counts = sparse_attention(*case.device(guarded), options)
    share = density(counts, n, tokens)
    print(f"{kind} d {d} group {group} {n} of {tokens}: density {share:.3f}")
    low, high = DENSITIES[kind]
    assert low < share < high
    close(case, out, mask)


@pytest.mark.parametrize(("d", "group"), [(128, 2), (256, 6), (64, 1)])
@pytest.mark.parametrize(("n", "tokens"), [(1200, 1200), (700, 9100)])
def test_mean_correction(path, guarded, d, group, n, tokens):
    case = Case(n, tokens, group, 1, d, "clusters")
    options = FlashPrefill(0.9, sink=1, window=1, last_n=1)
    mask = selected(case, guarded, options)
    plain, _ = sparse_attention(*case.device(guarded), options)
    out, _ = sparse_attention(*case.device(guarded), replace(options, mean_correction=True))
    means = means_of(case.k), means_of(case.v)
    want = block_sparse(case.q.astype(np.float64), case.k, case.v, lists_of(mask), case.scale, means)
    assert nmse(out, want) < 2 * BOUND  # rounded to bf16 twice
    assert nmse(plain, want) > 1e-3


def test_packed_pages(path, guarded):
    case = Case(500, 1500, 4, 2, 128, "clusters", Q4_0)
    options = FlashPrefill(0.2, sink=1, window=1, last_n=0)
    out, _ = sparse_attention(*case.device(guarded), options)
    assert nmse(out, case.attend(selected(case, guarded, options))) < BOUND


@pytest.mark.parametrize("share", ["head", "group"])
def test_a_planted_block_is_found_and_flat_ones_are_not(guarded, share):
    case = Case(30 * BLOCK, 30 * BLOCK, 4, 2, 128, "planted")
    mask = selected(case, guarded, FlashPrefill(0.3, sink=0, window=1, last_n=0, share=share))
    planted = np.arange(30) % 10 == 3
    past = np.tril(np.ones((30, 30), bool), -1) & planted
    assert mask[:, past].all()
    flat = np.tril(np.ones((30, 30), bool), -1) & ~planted
    flat[:4] = False  # before the first planted block
    assert mask[:, flat].mean() < 0.05


@pytest.mark.parametrize(
    "options",
    [
        FlashPrefill(0.3, sink=1, window=1, last_n=0),
        FlashPrefill(0.3, 1, 1, 0, share="group", visibility="first", mean_correction=True),
        GivenMask(np.tril(np.random.default_rng(0).random((2, 11, 11)) < 0.3) | np.eye(11, dtype=bool)),
    ],
    ids=["v1", "v2", "given"],
)
@pytest.mark.parametrize("d", [128, 256])
@pytest.mark.parametrize("first", [257, 1100])
def test_later_tokens_change_nothing(path, guarded, first, d, options):
    """Rows before a token stay as they are, bit for bit, whatever that token and those after it hold."""
    case = Case(1300, 1300, 2, 1, d, "clusters")
    before, _ = sparse_attention(*case.device(guarded), options)
    case.change(first)
    after, _ = sparse_attention(*case.device(guarded), options)
    # The token changes its block's mean, which no row before that block sees; with lists given, only rows of one warp,
    # which move their softmax's reference together, know of each other.
    rows = first // 32 * 32 if isinstance(options, GivenMask) else first // BLOCK * BLOCK
    assert (before[:rows] == after[:rows]).all()
    assert not (before[first:] == after[first:]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_stay_with_their_head(path, guarded, value):
    """Lists stay in bounds, nothing hangs, and what the other heads give stays as it was, bit for bit."""
    case = Case(1000, 1500, 6, 3, 128, "clusters")
    rules = (TopDensity(0.3), SqrtBlocks(3), EnergyBlocks(0.5, 2))
    for options in (FlashPrefill(0.2, min_budget=3), *rules, replace(V2, mean_correction=True)):
        q, at, scale = case.device(guarded)
        clean, _ = sparse_attention(q, at, scale, options)
        page = case.table[5]
        at.k.view(np.float16).reshape(*at.k.shape[:3], 128)[page, 17, 1] = value
        at.v.view(np.float16).reshape(*at.v.shape[:3], 128)[page, 90, 1] = value
        q[700, 2] = value
        out, counts = sparse_attention(q, at, scale, options)
        for head in (0, 1, 4, 5):
            assert (out[:, head] == clean[:, head]).all()
        counts = counts.get()
        assert ((counts > 0) & (counts <= -(-1500 // BLOCK))).all()


@pytest.mark.parametrize("options", [FlashPrefill(0.3, share="group"), TopDensity(0.2), EnergyBlocks(0.7, 2)], ids=str)
def test_runs_are_equal_bit_for_bit(path, guarded, options):
    case = Case(2000, 3000, 4, 2, 128, "clusters")
    arrays = case.device(guarded)
    first, counts = sparse_attention(*arrays, options)
    for _ in range(4):
        again, more = sparse_attention(*arrays, options)
        assert (first == again).all()
        assert (counts == more).all()


def test_other_selectors(path, guarded):
    case = Case(900, 1500, 4, 2, 128)
    for selector in (Dense(), Streaming(1, 2), GivenMask(causal(900, 1500)[None])):
        out, _ = sparse_attention(*case.device(guarded), selector)
        mask = selected(case, guarded, selector)
        assert nmse(out, case.attend(mask)) < BOUND


def test_debugging_finds_values_that_are_not_finite(guarded, monkeypatch):
    case = Case(200, 300, 2, 1, 128)
    q, *rest = case.device(guarded)
    monkeypatch.setattr(op, "_debug", True)
    sparse_attention(q, *rest, FlashPrefill(0.1))
    q[7, 1, 3] = np.inf
    with pytest.raises(DeviceError, match="1 of 51200 values of Q are NaN or infinite"):
        sparse_attention(q, *rest, FlashPrefill(0.1))


def test_what_kernels_do_not_take_is_refused_before_any_launch(guarded, monkeypatch):
    """Empty prompts, head sizes, blocks of other sizes, heads that do not divide: whatever the selector."""
    from sp.kernels.launch import KernelSpec

    monkeypatch.setattr(KernelSpec, "launch", lambda *_, **__: pytest.fail("a kernel was launched"))
    good = Case(200, 300, 2, 1, 128)
    q, at, scale = good.device(guarded)
    narrow = replace(at, k=at.k[:, :64], v=at.v[:, :64])
    other = replace(at, k=guarded((5, 128, 3, 256), np.uint8))
    small = Case(10, 20, 2, 1, 32).device(guarded)
    for selector in (FlashPrefill(0.1), TopDensity(0.1), Dense(), Streaming()):
        for arguments, why in (
            ((q[:0], at, scale), "0 queries of 300 tokens"),
            ((q[:0], replace(at, tokens=0), scale), "0 queries of 0 tokens"),
            ((q, replace(at, tokens=100), scale), "200 queries of 100 tokens"),
            (small, "heads of 32 values"),
            ((q, narrow, scale), "pages of 64 tokens"),
            ((q, other, scale), "2 query heads do not divide"),
        ):
            with pytest.raises(ConfigError, match=why):
                sparse_attention(*arguments, selector)
    for alpha in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="alpha"):
            FlashPrefill(alpha)
