"""Experts that are held twice give the same sums; which ones are hot, and how often they are met again."""

from __future__ import annotations

import numpy as np
import pytest

from sp.models.layers.hot_experts import count_choices, hit_rate, hottest, with_resident
from sp.ops.experts.expert_mlp import add_experts
from sp.ops.experts.routing import route
from sp.ops.experts.stack import Stack
from sp.ops.matmul.packed import pack, unpack
from sp.quant import BF16, F32, Q4_K, Q6_K, Q8_0, Weight

HOT = np.array([1, 4])


def weight(rows: int, width: int, fmt, seed: int) -> Weight:
    values = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return Weight.from_floats("w", values / np.sqrt(width), fmt)


@pytest.mark.parametrize("fmt", [F32, Q8_0, Q4_K], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("fused", [False, True])
def test_resident_experts_change_no_bit(fmt, fused) -> None:
    count, used, hidden, width = 6, 3, 256, 256
    if fused:
        both = weight(count * 2 * width, hidden, fmt, 1)
        stacks = [Stack(both, 2 * width, 0, width), Stack(both, 2 * width, width, width)]
    else:
        stacks = [Stack(weight(count * width, hidden, fmt, seed), width, 0, width) for seed in (1, 2)]
    stacks.append(Stack(weight(count * hidden, width, fmt, 3), hidden, 0, hidden))
    rng = np.random.default_rng(5)
    x, h = rng.standard_normal((2, 33, hidden)).astype(np.float32)
    routing = route(rng.standard_normal((33, count)).astype(np.float32), used)
    want = add_experts(x, h, *stacks, routing)
    twice = [with_resident(stack, HOT) for stack in stacks]
    for stack in twice:  # what is held twice is read at its second place alone
        data = stack.weight.data.reshape(count, -1).copy()
        data[HOT] = 0
        object.__setattr__(stack, "weight", Weight("w", fmt, stack.weight.shape, data.reshape(stack.weight.data.shape)))
    assert (add_experts(x, h, *twice, routing) == want).all()


@pytest.mark.parametrize("fmt", [Q4_K, Q6_K, Q8_0, BF16], ids=lambda fmt: fmt.name)
def test_packed_experts_are_runs_of_every_plane(fmt) -> None:
    count, rows, width = 5, 128, 512
    file = weight(count * rows, width, fmt, 2)
    packed = pack("w", fmt, file.shape, file.data)
    found = with_resident(Stack(packed, rows, 0, rows), HOT)
    assert found.slots.tolist() == [-1, 0, -1, -1, 1]
    want = unpack(packed).reshape(count, rows, width)[HOT]
    assert (unpack(found.resident).reshape(2, rows, width) == want).all()


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
