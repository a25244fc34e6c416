"""Predicted densities against those of masks, and against published ones."""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops.sparse.block_lists import causal
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity

PUBLISHED = {4096: 0.72, 8192: 0.485, 16384: 0.298, 32768: 0.176, 65536: 0.092, 131072: 0.049}
"""Qwen3-4B at alpha 0.1, arXiv 2608.19758, table 1."""


@pytest.mark.parametrize("tokens", [100, 2048, 5000])
@pytest.mark.parametrize("selector", [TopDensity(0.05), TopDensity(0.4, sink=0, window=1, last_n=0), TopDensity(1.0)])
def test_a_set_density_is_met(tokens, selector) -> None:
    blocks = -(-tokens // 128)
    mask = selector.mask(np.random.default_rng(0).random((1, blocks, blocks)), tokens, tokens)
    assert expected_density(selector, tokens) == pytest.approx(mask.sum() / causal(tokens, tokens).sum())


@pytest.mark.parametrize(("tokens", "density"), PUBLISHED.items())
def test_thresholds_are_predicted_as_published_and_never_too_cheap(tokens, density) -> None:
    """Above what was published for short prompts, where the last rows, which read everything, weigh most."""
    assert 0.95 * density < expected_density(FlashPrefill(0.1), tokens) < 1.35 * density


def test_bounds() -> None:
    assert expected_density(FlashPrefill(0.0), 1 << 20) == expected_density(TopDensity(0.1), 0) == 1
    densities = [expected_density(FlashPrefill(alpha), 1 << 16) for alpha in (0.0125, 0.03, 0.1, 0.2, 0.9)]
    assert densities == sorted(densities, reverse=True)
    assert densities[0] == pytest.approx(0.236, abs=0.01)
    assert expected_density(FlashPrefill(0.2, min_budget=100), 1 << 16) > densities[0]
