"""Which experts of a layer are hot, and how often they are met again."""

from __future__ import annotations

import numpy as np

from sp.models.layer.cold_experts import count_choices, hit_rate, hottest
from sp.ops.experts.routing import route


def test_choices_are_counted() -> None:
    experts = route(np.random.default_rng(1).standard_normal((500, 12)).astype(np.float32), 4).experts
    counts, one = np.zeros(12, np.uint32), np.ones(1, np.uint32)
    for part in (experts[:300], experts[:0], experts[300:]):
        count_choices(counts, part, one)
    assert counts.tolist() == np.bincount(experts.ravel(), minlength=12).tolist()
    assert counts.sum() == 2000


def test_the_hottest_and_how_often_they_are_met() -> None:
    before, after = np.array([[9, 1, 0, 4], [0, 0, 5, 0]]), np.array([[3, 2, 1, 2], [1, 1, 5, 1]])
    assert hottest(before[0], 0).tolist() == []
    assert hottest(np.zeros(5, np.uint32), 2).tolist() == [0, 1]
    assert hit_rate(before, after, 1.0) == 1.0
    assert hit_rate(before, after, 0.25) == (3 + 5) / 16
    assert hit_rate(before, after, 0.0) == 0.0
    assert np.isnan(hit_rate(before, np.zeros_like(after), 0.5))
