"""Rules for how many key blocks are read, in NumPy, against loops written from what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flashprefill_loops import BLOCK, GROUPS, SIZES, paged, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.errors import ConfigError
from sp.ops.sparse.block_budget import BlockBudget, ConstantBlocks, EnergyBlocks, SqrtBlocks, read_rule
from sp.ops.sparse.block_lists import causal, mask_of
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import TopDensity

RULE = st.one_of(
    st.builds(ConstantBlocks, st.integers(1, 9)),
    st.builds(SqrtBlocks, st.integers(1, 9), st.sampled_from([128, 512, 3000])),
    st.builds(EnergyBlocks, st.sampled_from([0.1, 0.5, 0.9, 1.0]), st.integers(0, 3), st.integers(3, 9)),
)


def slow_row(rule: BlockBudget, energy: list[float], start: int, rows: int, last: bool) -> set[int]:
    """Blocks that one query block reads: positions ``start .. start + rows - 1``, `last` if all are forced."""
    seen = (start + rows - 1) // BLOCK + 1
    always = {j for j in range(seen) if j < rule.sink or j > start // BLOCK - rule.window or last}
    ranked = sorted(range(seen), key=lambda j: (j not in always, 0.0 if j in always else -energy[j], j))
    if isinstance(rule, ConstantBlocks):
        count = rule.count
    elif isinstance(rule, SqrtBlocks):
        exact = rule.count * math.sqrt(seen / (rule.at / BLOCK))
        count = round(exact) if abs(exact - round(exact)) < 1e-5 else math.ceil(exact)
    else:
        assert isinstance(rule, EnergyBlocks)
        steps = [round(Fraction(energy[j]) * 2**32) for j in range(seen)]
        wanted = min(int(float(sum(steps)) * float(np.float32(rule.energy))), sum(steps))
        count = 0
        while sum(steps[j] for j in ranked[:count]) < wanted:
            count += 1
        count = min(max(count, rule.least), rule.most)
    return set(ranked[:count]) | always


@given(
    rule=RULE,
    sizes=st.sampled_from([(1, 1), (128, 128), (200, 129 * 4), (5 * 128 + 3, 9 * 128 + 100), (12 * 128, 12 * 128)]),
    sink=st.integers(0, 2),
    window=st.integers(1, 3),
    last_n=st.integers(0, 2),
    kind=st.sampled_from(["spread", "peaked", "ties", "none"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_a_rule_keeps_what_it_says(rule, sizes, sink, window, last_n, kind, seed):
    (n, tokens), rng = (min(sizes), max(sizes)), np.random.default_rng(seed)
    rule = replace(rule, sink=sink, window=window, last_n=last_n)
    rows, blocks = -(-n // BLOCK), -(-tokens // BLOCK)
    energy = rng.random((2, rows, blocks), np.float32) * {"peaked": 0.01, "none": 0.0}.get(kind, 1.0)
    if kind == "peaked":
        energy[..., rng.integers(blocks)] = 100
    if kind == "ties":
        energy = np.ceil(2 * energy)
    mask = rule.mask(energy.astype(np.float32), n, tokens)
    assert not (mask & ~causal(n, tokens)).any()
    for entry, i in np.ndindex(2, rows):
        start, size = tokens - n + BLOCK * i, min(BLOCK, n - BLOCK * i)
        want = slow_row(rule, energy[entry, i].tolist(), start, size, i >= rows - last_n)
        assert set(np.flatnonzero(mask[entry, i]).tolist()) == want, f"row {i} of {n} in {tokens}"


@given(sizes=SIZES, group=GROUPS, share=st.sampled_from(["head", "group"]))
@settings(max_examples=20, deadline=None)
def test_lists_are_ascending_and_of_the_rule(sizes, group, share):
    q, k, v = sample(*sizes, 2 * group, 2)
    lists = EnergyBlocks(0.6, least=1, share=share, sink=1, window=1, last_n=0).select(q, paged(k, v), 0.3)
    mask = mask_of(lists, lists.indices.shape[2])
    for place in np.ndindex(lists.counts.shape):
        listed = lists.indices[place][: lists.counts[place]]
        assert (np.diff(listed) > 0).all()
        assert len(listed) > 0
    if share == "group":
        assert (mask.reshape(2, group, *mask.shape[1:]) == mask[::group, None]).all()


def test_a_share_of_energy_reads_more_where_it_is_spread():
    n = 64 * BLOCK
    flat, peaked = np.ones((1, 64, 64), np.float32), np.full((1, 64, 64), 1e-4, np.float32)
    peaked[..., 5] = 1
    rule = EnergyBlocks(0.9, least=1, most=40, sink=0, window=1, last_n=0)
    assert rule.mask(flat, n, n)[0, 40].sum() == 37  # 0.9 of 41 is 36.9
    assert rule.mask(flat, n, n)[0, 63].sum() == 40
    assert np.flatnonzero(rule.mask(peaked, n, n)[0, 63]).tolist() == [5, 63]


@pytest.mark.parametrize("tokens", [100, 2048, 5000, 40000])
@pytest.mark.parametrize("rule", [ConstantBlocks(8), SqrtBlocks(8), SqrtBlocks(40, 4096, last_n=0)])
def test_densities_are_known_before(tokens, rule):
    blocks = -(-tokens // BLOCK)
    mask = rule.mask(np.random.default_rng(0).random((1, blocks, blocks)), tokens, tokens)
    assert expected_density(rule, tokens) == pytest.approx(mask.sum() / causal(tokens, tokens).sum())


def test_work_grows_as_the_rule_says():
    """Blocks read from 128K to a million tokens: the power of the length by which they grow."""

    def exponent(selector) -> float:
        read = [expected_density(selector, n) * causal_blocks(n) for n in (1 << 17, 1 << 20)]
        return math.log(read[1] / read[0]) / math.log(8)

    def causal_blocks(n: int) -> float:
        return n // BLOCK * (n // BLOCK + 1) / 2

    assert exponent(ConstantBlocks(64, last_n=0)) == pytest.approx(1, abs=0.02)
    assert exponent(SqrtBlocks(64, last_n=0)) == pytest.approx(1.5, abs=0.02)
    assert exponent(TopDensity(0.05, last_n=0)) == pytest.approx(2, abs=0.05)
    most = EnergyBlocks(0.9, most=64, last_n=0)
    assert expected_density(most, 1 << 17) == expected_density(ConstantBlocks(64, last_n=0), 1 << 17)


def test_rules_are_read_as_they_are_written():
    assert read_rule("constant:64", "blocks") == ConstantBlocks(64)
    assert read_rule("sqrt:32:65536", "blocks") == SqrtBlocks(32, 65536)
    assert read_rule("energy:0.9", "blocks") == EnergyBlocks(0.9)
    assert read_rule("energy:0.9:4:99", "blocks") == EnergyBlocks(0.9, 4, 99)


@pytest.mark.parametrize(
    "text", ["", "64", "constant", "constant:1:2", "energy", "sqrt:", "energy:a", "energy:1:2:3:4"]
)
def test_text_that_is_no_rule_is_rejected(text):
    with pytest.raises(ConfigError, match=r"--blocks .*constant:64"):
        read_rule(text, "--blocks")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ConstantBlocks(0), "count is 0; it must be at least 1"),
        (lambda: SqrtBlocks(4, 127), "at is 127; it must be at least 128"),
        (lambda: EnergyBlocks(0.0), "energy is 0.0; it is a share"),
        (lambda: EnergyBlocks(float("nan")), "energy is nan"),
        (lambda: EnergyBlocks(0.5, -1), "least is -1"),
        (lambda: EnergyBlocks(0.5, 9, 8), "most is 8; it must be at least 9"),
        (lambda: ConstantBlocks(3, window=0), "window is 0"),
        (lambda: ConstantBlocks(3, share="all"), "known are head, group"),
        (lambda: SqrtBlocks(3, visibility="none"), "known are last, first"),
    ],
)
def test_wrong_options(make, why):
    with pytest.raises(ConfigError, match=why):
        make()
