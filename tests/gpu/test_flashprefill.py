"""Sparse prefill on both paths: lists against a float64 oracle, attention over them against softmax in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64

from sp.ops import sparse_attention as op
from sp.ops.block_lists import causal, density, lists_of, mask_of
from sp.ops.block_means import block_means, means_of
from sp.ops.block_selector import Dense, GivenMask, Streaming
from sp.ops.block_sparse import block_sparse
from sp.ops.flashprefill import FlashPrefill, TopDensity, top_density
from sp.ops.kv_pages import kv_append, kv_gather
from sp.ops.sparse_attention import sparse_attention
from sp.quant import F16, Q4_0

BLOCK = 128
BOUND = 6e-6  # NMSE: rounding the output to bf16 alone gives about 2.8e-6
TOKENS = (1, 127, 128, 129, 255, 4153)
KINDS = ("clusters", "sink", "peaked", "planted")


class Case:
    """Float16 queries, and keys and values in scattered pages that are NaN wherever no token lies."""

    def __init__(self, n, tokens, heads, kv_heads, d, kind="random", fmt=F16):
        rng = np.random.default_rng([n, tokens, heads, d, len(kind)])
        self.n, self.tokens, self.fmt, self.scale = n, tokens, fmt, d**-0.5
        q, k, v = (
            rng.standard_normal((rows, h, d)) for rows, h in ((n, heads), (tokens, kv_heads), (tokens, kv_heads))
        )
        direction = rng.standard_normal(d)
        direction /= np.linalg.norm(direction)
        if kind == "clusters":  # keys and queries of a block share one of 64 centres
            centres = rng.standard_normal((64, d))
            for rows, first in ((q, tokens - n), (k, 0)):
                for h in range(rows.shape[1]):
                    picked = rng.integers(64, size=tokens // BLOCK + 2)
                    rows[:, h] += centres[picked[(first + np.arange(len(rows))) // BLOCK]]
        if kind == "sink":
            q += 20 * direction
            k[:BLOCK] += 4 * direction
        if kind == "peaked":
            q *= 4
        if kind == "planted":  # every tenth block is what later queries look for
            q += 8 * direction
            k[np.arange(tokens) // BLOCK % 10 == 3] += 3 * direction
        self.q = q.astype(np.float16)
        pages = -(-tokens // BLOCK)
        self.table = rng.permutation(pages + 3)[:pages]
        self.pages = [np.full((pages + 3, BLOCK, kv_heads, fmt.row_bytes(d)), 0xFF, np.uint8) for _ in range(2)]
        for one, values in zip(self.pages, (k, v), strict=True):
            kv_append(one, self.table, 0, values.astype(np.float32), fmt)
        self.k, self.v = (kv_gather(one, self.table, tokens, fmt).astype(np.float64) for one in self.pages)

    def change(self, first):
        """Other keys and values from token `first` on."""
        for one in self.pages:
            rows = np.random.default_rng(first).standard_normal((self.tokens - first, *self.k.shape[1:]))
            kv_append(one, self.table, first, (5 * rows).astype(np.float32), self.fmt)
        self.k, self.v = (kv_gather(one, self.table, self.tokens, self.fmt).astype(np.float64) for one in self.pages)

    def device(self, guarded):
        q, pages = guarded(self.q.shape, np.float16, self.q), [guarded(p.shape, np.uint8, p) for p in self.pages]
        return (q, *pages, guarded(self.table.shape, np.int32, self.table), self.tokens, self.scale)

    def energy(self, together=1, visibility="last"):
        """Straight from the definition, in float64, one query block at a time; means rounded to f16."""
        heads = self.q.shape[1]
        means = means_of(self.k)
        rows, blocks = -(-self.n // BLOCK), means.shape[1]
        out = np.zeros((heads // together, rows, blocks))
        group = heads // means.shape[0]
        first = np.arange(blocks) * BLOCK + (BLOCK - 1 if visibility == "last" else 0)
        for entry, i in np.ndindex(out.shape[:2]):
            scores = []
            for h in range(entry * together, (entry + 1) * together):
                q = self.q[BLOCK * i : BLOCK * (i + 1), h].astype(np.float64)
                position = self.tokens - self.n + BLOCK * i + np.arange(len(q))
                s = q @ means[h // group].T * self.scale
                scores.append(np.where(first <= position[:, None], s, -np.inf))
            s = np.concatenate(scores)
            if np.isfinite(s).any():
                out[entry, i] = np.exp(s - s[np.isfinite(s)].max()).sum(axis=0)
        return out

    def attend(self, mask):
        """Softmax in float64 over the blocks of a mask (heads, query_blocks, blocks)."""
        heads, group = self.q.shape[1], self.q.shape[1] // self.k.shape[1]
        out = np.empty(self.q.shape)
        positions, keys = np.arange(self.tokens - self.n, self.tokens), np.arange(self.tokens)
        for h in range(heads):
            for i in range(0, self.n, BLOCK):
                score = self.q[i : i + BLOCK, h].astype(np.float64) @ self.k[:, h // group].T * self.scale
                seen = mask[h, i // BLOCK][keys // BLOCK] & (keys <= positions[i : i + BLOCK, None])
                score = np.where(seen, score, -np.inf)
                weight = np.exp(score - score.max(axis=1, keepdims=True))
                out[i : i + BLOCK, h] = weight / weight.sum(axis=1, keepdims=True) @ self.v[:, h // group]
        return out

    def in_bf16(self):
        """Dense attention that rounds every intermediate to bf16, as a framework does."""

        def rounded(x):
            return (to_bf16(x).astype(np.uint32) << 16).view(np.float32)

        q, k, v = (rounded(a) for a in (self.q, self.k, self.v))
        out, group = np.empty(self.q.shape, np.float32), self.q.shape[1] // self.k.shape[1]
        hidden = np.arange(self.tokens) > np.arange(self.tokens - self.n, self.tokens)[:, None]
        for h in range(self.q.shape[1]):
            score = rounded(rounded(q[:, h] @ k[:, h // group].T) * np.float32(self.scale))
            score[hidden] = -np.inf
            weight = np.exp(score - score.max(1, keepdims=True))
            out[:, h] = rounded(rounded(weight / weight.sum(1, keepdims=True)) @ v[:, h // group])
        return out


def selected(case, guarded, options):
    """The device's lists as a mask; they must be ascending and causal."""
    q, k_pages, _, table, tokens, scale = case.device(guarded)
    lists = options.select(q, k_pages, table, tokens, scale, case.fmt)
    counts, indices = lists.counts.get(), lists.indices.get()
    mask = mask_of(lists, -(-tokens // BLOCK))
    assert (mask.sum(axis=2) == counts).all()  # no block twice
    for place in np.ndindex(counts.shape):
        assert (np.diff(indices[place][: counts[place]]) > 0).all()
    assert not (mask & ~causal(case.n, tokens)).any()
    return mask


def band(case, options, together):
    """The oracle's mask, and which of its blocks lie too near the threshold for float32 to tell."""
    energy = case.energy(together, options.visibility)
    outer, inner = (options_with(options, factor).mask(energy, case.n, case.tokens) for factor in (0.999, 1.001))
    want = options.mask(energy, case.n, case.tokens)
    return (a.repeat(together, axis=0) for a in (want, outer != inner))


def options_with(options, factor):
    return replace(options, alpha=min(1.0, options.alpha * factor))


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("fmt", [F16, Q4_0], ids=lambda fmt: fmt.name)
def test_means(guarded, d, fmt):
    for tokens in (1, 128, 129, 1000):
        case = Case(1, tokens, 2, 2, d, fmt=fmt)
        _, k_pages, _, table, *_ = case.device(guarded)
        got = to_float64(block_means(k_pages, table, tokens, fmt))
        want = np.stack([case.k[i : i + BLOCK].mean(axis=0) for i in range(0, tokens, BLOCK)], axis=1)
        np.testing.assert_allclose(got, want, rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("d", [128, 256])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize(("tokens", "kind"), [(t, "random") for t in TOKENS] + [(3001, k) for k in KINDS])
def test_lists_equal_the_oracle(guarded, d, group, tokens, kind):
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
def test_long_prompt_lists(guarded, d):
    """Several tiles of mean keys, and rows of few and many candidates."""
    case = Case(1000, 70 * BLOCK + 17, 4, 2, d, "clusters")
    for options in (FlashPrefill(0.1), FlashPrefill(0.5, share="group"), FlashPrefill(0.9, sink=0, window=1, last_n=0)):
        want, unsure = band(case, options, 2 if options.share == "group" else 1)
        got = selected(case, guarded, options)
        assert not ((got != want) & ~unsure).any()
        assert 0.02 < got[:, :-2].mean() < 0.9
        forced = options.mask(np.zeros((1, *got.shape[1:])), case.n, case.tokens)
        assert (got >= forced).all()


@pytest.mark.parametrize("share", ["head", "group"])
def test_budget_and_density(guarded, share):
    case = Case(3000, 40 * BLOCK, 4, 2, 128, "random")
    energy = case.energy(2 if share == "group" else 1)
    for options in (FlashPrefill(1.0, min_budget=5, share=share), TopDensity(0.3, share=share), TopDensity(1.0)):
        if options == TopDensity(1.0):
            assert (selected(case, guarded, options) == causal(case.n, case.tokens)).all()
            continue
        want = options.mask(energy, case.n, case.tokens).repeat(4 // len(energy), axis=0)
        got = selected(case, guarded, options)
        if isinstance(options, TopDensity):
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
    if tokens < 1000:
        want, low = (
            case.attend(np.ones((case.q.shape[1], -(-tokens // BLOCK), -(-tokens // BLOCK)), bool)),
            case.in_bf16(),
        )
        assert nmse(out, want) < BOUND
        assert np.abs(to_float64(out) - want).max() <= 2 * np.abs(low - want).max()


@pytest.mark.parametrize("kind", ["random", "clusters", "sink", "peaked"])
@pytest.mark.parametrize(("d", "group"), [(128, 2), (256, 6), (64, 1)])
@pytest.mark.parametrize(("n", "tokens"), [(2190, 2190), (700, 2345)])
def test_attention_over_what_was_selected(path, guarded, kind, d, group, n, tokens):
    case = Case(n, tokens, group, 1, d, kind)
    options = FlashPrefill(0.4, sink=1, window=2, last_n=1)
    mask = selected(case, guarded, options)
    out, counts = sparse_attention(*case.device(guarded), options)
    share = density(counts, n, tokens)
    print(f"{kind} d {d} group {group} {n} of {tokens}: density {share:.3f}")
    assert 0.1 < share <= 1
    assert nmse(out, case.attend(mask)) < BOUND


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
    out, _ = sparse_attention(*case.device(guarded), options, Q4_0)
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


@pytest.mark.parametrize("first", [257, 1100])
def test_later_tokens_change_nothing(path, guarded, first):
    """Rows before a token stay as they are, bit for bit, whatever that token and those after it hold."""
    case = Case(1300, 1300, 2, 1, 128, "clusters")
    # A block whose mean the token changes is seen by no earlier row where rows need its last token.
    options, rows = FlashPrefill(0.3, sink=1, window=1, last_n=0), first // BLOCK * BLOCK
    before, _ = sparse_attention(*case.device(guarded), options)
    case.change(first)
    after, _ = sparse_attention(*case.device(guarded), options)
    assert (before[:rows] == after[:rows]).all()
    assert not (before[first:] == after[first:]).all()
    given = GivenMask(np.tril(np.random.default_rng(0).random((2, 11, 11)) < 0.3) | np.eye(11, dtype=bool))
    later, _ = sparse_attention(*case.device(guarded), given)
    case.change(first + 1)
    last, _ = sparse_attention(*case.device(guarded), given)
    rows = first // 32 * 32  # rows of a warp move their softmax's reference together
    assert (later[:rows] == last[:rows]).all()


@pytest.mark.parametrize("options", [FlashPrefill(0.3, share="group"), TopDensity(0.2)], ids=["alpha", "density"])
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
    from sp.errors import DeviceError

    case = Case(200, 300, 2, 1, 128)
    q, *rest = case.device(guarded)
    monkeypatch.setattr(op, "_debug", True)
    sparse_attention(q, *rest, FlashPrefill(0.1))
    q[7, 1, 3] = np.inf
    with pytest.raises(DeviceError, match="1 of 51200 values of Q are NaN or infinite"):
        sparse_attention(q, *rest, FlashPrefill(0.1))
