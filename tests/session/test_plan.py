"""The decision whether to compress follows predicted cost, and always says why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sp.models import ModelConfig
from sp.models.network.cost import flops
from sp.ops.rope import Rope
from sp.scoring import SCORERS
from sp.session.decision import break_even, decide, speedup
from sp.session.measured import BreakEven

DRAFTER = ModelConfig("qwen3", 1024, 151936, 40960, (3072,) * 28, ("attention",) * 28, 16, 8, 128, Rope(1e6, 128), 1e-6)
TARGET = replace(DRAFTER, hidden=5120, ffn=(17408,) * 64, kinds=("attention",) * 64, heads=40, context=262144)


def test_speedup_is_full_cost_over_drafter_and_selection() -> None:
    want = flops(TARGET, 10000) / (flops(DRAFTER, 10000) + flops(TARGET, 500))
    assert speedup(TARGET, DRAFTER, 10000, 0.05) == pytest.approx(want)
    assert want > 5


def test_break_even_is_where_the_speedup_passes_one() -> None:
    # A drafter with much attention and a keep ratio close to one: pays nowhere.
    assert break_even(TARGET, TARGET, 0.5) is None
    # What is always kept is read on top of the ratio: with more of it a prompt must be longer.
    lengths = [break_even(TARGET, DRAFTER, 0.1, fixed_tokens=fixed) for fixed in (60, 600, 6000)]
    for fixed, length in zip((60, 600, 6000), lengths, strict=True):
        assert length is not None
        assert fixed < length < 1.1 * fixed
        want = flops(TARGET, length) / (
            flops(DRAFTER, length) + flops(TARGET, fixed + math.ceil(0.1 * (length - fixed)))
        )
        assert speedup(TARGET, DRAFTER, length, 0.1, fixed_tokens=fixed) == pytest.approx(want)
        assert want > 1
    # Heavy target attention against a target-sized drafter without it: a true crossing.
    lean = replace(TARGET, heads=1, kv_heads=1)
    crossing = break_even(TARGET, lean, 0.3)
    assert crossing is not None
    assert speedup(TARGET, lean, crossing, 0.3) > 1 > speedup(TARGET, lean, int(crossing * 0.98), 0.3)


def test_rules_gain_more_the_longer_the_prompt() -> None:
    def gain(tokens: int, sparse: str) -> float:
        return speedup(TARGET, DRAFTER, tokens, 0.05, SCORERS.build("tail", {"sparse": sparse}))

    million = [gain(1 << 20, how) for how in ("density:0.05", "sqrt:32", "blocks:64")]
    assert million == sorted(million)
    assert million[2] > 1.5 * million[0]


def test_a_cheaper_way_of_scoring_gains_more() -> None:
    tail, sparse, early, lexical = (
        SCORERS.build(name, options)
        for name, options in (
            ("tail", {}),
            ("tail", {"sparse": "density:0.05"}),
            ("tail", {"sparse": "density:0.05", "depth": 7}),
            ("lexical", {}),
        )
    )
    gains = [speedup(TARGET, DRAFTER, 131072, 0.05, scorer) for scorer in (None, tail, sparse, early, lexical)]
    assert gains[0] == gains[1]
    assert gains[1:] == sorted(gains[1:])
    want = flops(TARGET, 131072) / (flops(DRAFTER, 131072, density=0.0518) + flops(TARGET, 6554))
    assert gains[2] == pytest.approx(want, rel=0.02)
    assert gains[4] == pytest.approx(flops(TARGET, 131072) / flops(TARGET, 6554))
    # Where dense drafting by as large a model never pays, a sparse one can.
    assert break_even(TARGET, TARGET, 0.5) is None
    assert break_even(TARGET, TARGET, 0.05, scorer=early) is not None
    told = decide(
        TARGET, DRAFTER, tokens=131072, protected=60, keep_ratio=0.05, compress="auto", scorer=lexical
    )  # fmt: skip
    assert told.predicted_speedup == speedup(TARGET, DRAFTER, 131072, 0.05, lexical, fixed_tokens=60) < gains[4]


@pytest.mark.parametrize(
    ("changes", "activated", "reason"),
    [
        ({}, True, "less prefill work"),
        ({"drafter": None}, False, "no drafter"),
        ({"compress": "off"}, False, "switched off"),
        ({"keep_ratio": 1.0}, False, "every token is kept"),
        ({"keep_ratio": 1.0, "compress": "always"}, True, "asked for"),
        ({"tokens": 100}, False, "of 40 tokens that may be left out 2 would be kept, fewer than 64"),
        ({"tokens": 100, "compress": "always"}, True, "asked for"),
        ({"tokens": 60}, False, "nothing may be left out: all 60 tokens are protected"),
        ({"tokens": 60, "compress": "always"}, False, "nothing may be left out: all 60 tokens are protected"),
        ({"tokens": 61, "compress": "always"}, False, "too little may be left out: 60 of 61 tokens are protected"),
        ({"tokens": 60, "compress": "always", "fits": False}, False, "nothing may be left out"),
        ({"tokens": 3700, "protected": 300, "keep_ratio": 0.1}, True, "less prefill work"),
        ({"tokens": 3700, "protected": 300}, True, "less prefill work"),
        ({"drafter": TARGET}, False, "more than it saves"),
        ({"keep_ratio": 5e-324}, False, "0 would be kept"),
    ],
)
def test_every_decision_names_its_reason(changes: dict[str, object], activated: bool, reason: str) -> None:
    given = {"drafter": DRAFTER, "tokens": 10000, "protected": 60, "keep_ratio": 0.05, "compress": "auto"} | changes
    decision = decide(TARGET, **given)  # type: ignore[arg-type]
    assert decision.activated is activated
    assert reason in decision.reason


def measured(tokens: int | None, longest: int = 16384) -> BreakEven:
    how = {"scorer": "tail", "attention": "dense", "alpha": None, "density": None, "blocks": None}
    return BreakEven(0.05, how, tokens, 2048, tokens and 4096, 2048, longest, 5)


@pytest.mark.parametrize(
    ("found", "changes", "activated", "reason", "length", "source"),
    [
        (measured(3000), {"tokens": 3059}, False, "below the measured break-even of 3060", 3060, "measured"),
        (measured(3000), {"tokens": 3060}, True, "pay from 3000 tokens on, between 2048 and 4096", 3060, "measured"),
        (measured(3000), {"tokens": 9999, "compress": "off"}, False, "switched off", 3060, "measured"),
        (measured(3000), {"tokens": 3399, "protected": 400}, False, "measured break-even of 3400", 3400, "measured"),
        (measured(None), {"tokens": 16384}, False, "not to pay at any length from 2048 to 16384", None, "measured"),
        (measured(None, 8192), {"tokens": 10000}, True, "predicted", 1340, "predicted"),
        (None, {"tokens": 500}, False, "of 440 tokens that may be left out 22 would be kept", 1340, "predicted"),
    ],
)
def test_a_measured_break_even_goes_before_the_predicted_one(
    found: BreakEven | None, changes: dict[str, object], activated: bool, reason: str, length: int | None, source: str
) -> None:
    given = {"drafter": DRAFTER, "protected": 60, "keep_ratio": 0.05, "compress": "auto"} | changes
    decision = decide(TARGET, measured=found, **given)  # type: ignore[arg-type]
    assert decision.activated is activated
    assert reason in decision.reason
    assert (decision.break_even_tokens, decision.break_even_source) == (length, source)
