"""Routing: the experts of every token with their weights; and tokens sorted by expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.experts import MOST_EXPERTS, MOST_USED, ROUTE, ROUTE_TOKENS


@dataclass(frozen=True)
class Routing:
    """The experts of tokens."""

    experts: Any  # int32 (tokens, used), experts of every token, the most probable first; no expert twice
    weights: Any  # float32 (tokens, used), the weight of each of them


@dataclass(frozen=True)
class Sorted:
    """Slots, of which a token has `used`, in the order of their experts. `slots`: int32 (tokens * used,), slot ``t *
    used + j`` is the j-th expert of token t; slots of one expert are in the order of their tokens."""

    slots: Any
    starts: Any  # int32 (count + 1,), expert e has ``slots[starts[e]:starts[e + 1]]``


def route(logits: Floats, used: int, *, normalised: bool = True, bias: Floats | None = None) -> Routing:
    """Choose the `used` most probable experts of every token, by the softmax over all experts.

    ``p = softmax(logits)``; experts are those with the `used` largest p, the smaller index first on a tie; weights are
    their p, divided by their sum if `normalised`.

    `logits`: float32 (tokens, count), the router's output for a normed token; `used`: at least 1 and at most `count`;
    `normalised`: True if the weights of a token add up to 1, which is a softmax over the chosen logits only; `bias`:
    float32 (count,), added to every token's logits.

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017.
    Ties are broken by index as in llama.cpp, which sorts by (p, index).

    >>> routing = route(np.log(np.array([[1.0, 2.0, 1.0, 4.0]], np.float32)), 3)
    >>> routing.experts.tolist(), (7 * routing.weights).round(3).tolist()
    ([[3, 1, 0]], [[4.0, 2.0, 1.0]])
    """
    assert 1 <= used <= logits.shape[-1], f"{used} of {logits.shape[-1]} experts"
    if is_device(logits):
        return _on_device(logits, used, normalised, bias)
    if bias is not None:
        logits = logits + bias
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    experts = np.argsort(-p, axis=-1, kind="stable")[:, :used].astype(np.int32)
    weights = np.take_along_axis(p, experts, -1)
    if normalised:
        weights /= weights.sum(-1, keepdims=True)
    return Routing(experts, weights)


def _on_device(logits: Any, used: int, normalised: bool, bias: Any) -> Routing:
    tokens, count = logits.shape
    if count > MOST_EXPERTS or used > MOST_USED:
        raise DeviceError(f"a router of {used} of {count} experts; kernels take up to {MOST_USED} of {MOST_EXPERTS}")
    cupy = import_cupy()
    experts, weights = cupy.empty((tokens, used), np.int32), cupy.empty((tokens, used), np.float32)
    each = next(int(v["EACH"]) for v in ROUTE.variants if 32 * int(v["EACH"]) >= count)
    grid = (-(-tokens // ROUTE_TOKENS),)
    ROUTE.launch(grid, logits, experts, weights, tokens, count, used, int(normalised), bias, defines={"EACH": each})
    return Routing(experts, weights)


def by_expert(experts: Ints, count: int) -> Sorted:
    """Sort slots by expert. `experts`: int32 (tokens, used), as in `Routing`; `count`: number of experts.

    >>> found = by_expert(np.array([[2, 0], [2, 3]], np.int32), 4)
    >>> found.slots.tolist(), found.starts.tolist()
    ([1, 0, 2, 3], [0, 1, 1, 3, 4])
    """
    flat = experts.ravel()
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(flat, minlength=count), out=starts[1:])
    return Sorted(np.argsort(flat, kind="stable").astype(np.int32), starts)
