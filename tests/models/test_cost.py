"""flops against the figures worked out by hand for the two real models."""

from __future__ import annotations

import pytest

from sp.errors import ConfigError
from sp.models import Cost, DeltaConfig, ModelConfig, flops, prefill_cost
from sp.models.network.cost import matmul_params
from sp.ops.rope import Rope

BIG = ModelConfig(
    "qwen35", 5120, 248320, 262144, (17408,) * 64, ("delta", "delta", "delta", "attention") * 16, 24, 4, 256,
    Rope(1e7, 64), 1e-6, gated=True, delta=DeltaConfig(16, 48, 128, 4),
)  # fmt: skip
SMALL = ModelConfig(
    "qwen3", 1024, 151936, 40960, (3072,) * 28, ("attention",) * 28, 16, 8, 128, Rope(1e6, 128), 1e-6
)  # fmt: skip


def test_matmul_parameters() -> None:
    assert matmul_params(BIG, 0) == 383_221_760
    assert matmul_params(BIG, 3) == 372_244_480
    assert sum(matmul_params(BIG, i) for i in range(64)) == 24_350_556_160
    assert sum(matmul_params(SMALL, i) for i in range(28)) == 440_401_920


@pytest.mark.parametrize(
    ("tokens", "weights", "attention", "delta"),
    [(8192, 0.399, 0.013, 0.003), (32768, 1.596, 0.211, 0.012), (131072, 6.383, 3.378, 0.050)],
)
def test_27b(tokens, weights, attention, delta) -> None:
    cost = prefill_cost(BIG, tokens)
    assert [round(v / 1e15, 3) for v in (cost.weights, cost.attention)] == [weights, attention]
    assert cost.delta / 1e15 == pytest.approx(delta, abs=5e-4, rel=0.03)
    assert cost.total == cost.weights + cost.attention + cost.delta


def test_27b_delta_net_per_token() -> None:
    assert prefill_cost(BIG, 1).delta == pytest.approx(0.37e9 + 4e6, rel=0.01)


@pytest.mark.parametrize(("tokens", "weights", "attention"), [(32768, 0.029, 0.123), (131072, 0.115, 1.970)])
def test_0_6b(tokens, weights, attention) -> None:
    cost = prefill_cost(SMALL, tokens)
    assert [round(v / 1e15, 3) for v in (cost.weights, cost.attention)] == [weights, attention]
    assert cost.delta == 0


def test_attention_counts_causal_pairs() -> None:
    one_layer = ModelConfig("qwen3", 4, 9, 99, (4,), ("attention",), 3, 1, 8, Rope(1e6, 8), 1e-6)
    pairs = sum(1 for i in range(7) for j in range(7) if j <= i)
    assert prefill_cost(one_layer, 7).attention == pairs * 3 * 2 * (2 * 8)


def test_sparse_attention_costs_its_share_and_the_choice() -> None:
    dense, sparse = prefill_cost(SMALL, 131072), prefill_cost(SMALL, 131072, 0.05)
    assert sparse.attention == pytest.approx(dense.attention * (0.05 + 1 / 256))
    assert sparse.weights == dense.weights
    assert flops(SMALL, 131072, density=0.05) == sparse.total < 0.12 * dense.total
    assert prefill_cost(SMALL, 131072, 1.0) == dense
    for density in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="density"):
            prefill_cost(SMALL, 10, density)


def test_kept_tokens_are_all_that_costs() -> None:
    assert flops(BIG, 10_000, kept=500) == flops(BIG, 500) == prefill_cost(BIG, 500).total
    assert flops(BIG, 10_000, kept=0) == 0 == Cost(0, 0, 0).total
    for kept in (-1, 10_001):
        with pytest.raises(ConfigError, match="kept"):
            flops(BIG, 10_000, kept=kept)
    with pytest.raises(ConfigError, match="tokens"):
        flops(BIG, -1)
