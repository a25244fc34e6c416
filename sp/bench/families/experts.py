"""Experts of the 35B-A3B shape: a whole feed-forward, its grouped products, and dense products of equal size.

A trained router sends more tokens to some experts than to others. Here every expert has a popularity, normal with a
standard deviation of `SPREAD` logits, added to the token's own logits. `imbalance` is the load of the most loaded
expert over the mean. All of this is simulated, without a trained router.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.bench.cases import Case, bf16, family, normal, paths
from sp.bench.families.matmul import random_weight
from sp.kernels import import_cupy
from sp.kernels.path import forced_path
from sp.ops.experts import grouped
from sp.ops.experts.expert_mlp import add_experts
from sp.ops.experts.routing import Routing, route
from sp.ops.experts.stack import Stack
from sp.ops.matmul.project import project
from sp.quant import Q4_K

HIDDEN, WIDTH, COUNT, USED = 2048, 512, 256, 8
TOKENS = (1, 8, 64, 512, 8192)
SPREAD = 0.25


@family("experts")
def cases() -> Iterator[Case]:
    """Yield the parts of a feed-forward. FLOP: of occupied slots, without the padding between experts; bytes: of the
    experts that have tokens."""
    gate, up, down = stack(WIDTH, HIDDEN), stack(WIDTH, HIDDEN), stack(HIDDEN, WIDTH)
    for tokens in TOKENS:
        routing, imbalance, chosen = draw_routing(tokens)
        size = {"type": "Q4_K", "tokens": tokens, "experts": COUNT, "used": USED, "hidden": HIDDEN, "width": WIDTH}
        size |= {"imbalance": round(imbalance, 2)}
        slots, share = tokens * USED, chosen / COUNT
        x, h = normal(tokens, HIDDEN), bf16(tokens, HIDDEN)
        moved = share * sum(s.weight.data.nbytes for s in (gate, up, down)) + 2 * x.nbytes + h.nbytes
        for path in paths():
            whole = partial(add_experts, x, h, gate, up, down, routing)
            yield Case(size | {"part": "feed_forward"}, path, whole, moved, 6 * slots * HIDDEN * WIDTH, graph=True)
            with forced_path(path):
                placed = grouped.place(routing.experts, COUNT)
            rows, mid = bf16(placed.rows, HIDDEN), bf16(placed.rows, WIDTH)
            gate_bytes = share * gate.weight.data.nbytes
            out = slots * (HIDDEN + WIDTH) * 2
            wide = partial(grouped.gated, rows, gate, up, placed)
            traffic = 2 * gate_bytes + out
            yield Case(size | {"part": "gated"}, path, wide, traffic, 4 * slots * HIDDEN * WIDTH, graph=True)
            narrow = partial(grouped.multiply, mid, down, placed)
            yield Case(size | {"part": "down"}, path, narrow, gate_bytes + out, 2 * slots * HIDDEN * WIDTH, graph=True)
        choice = partial(route, normal(tokens, COUNT), USED)
        yield Case(size | {"part": "route"}, "portable", choice, 4 * tokens * COUNT, graph=True)
    mean = max(TOKENS) * USED // COUNT
    for weight in (gate.weight, down.weight):
        (n, k), x = weight.shape, bf16(mean, weight.shape[1])
        config = {"type": "Q4_K", "tokens": mean, "n": n, "k": k, "part": "dense"}
        for path in paths():
            dense = partial(project, x, (weight,))
            moved = weight.data.nbytes + x.nbytes + 2 * mean * n
            yield Case(config, path, dense, bytes=moved, flops=2 * mean * n * k, graph=True)


def stack(rows: int, width: int) -> Stack:
    """Draw random matrices of all experts on the device."""
    return Stack(random_weight(Q4_K, COUNT * rows, width), rows, 0, rows)


def popular_logits(tokens: int, popularity: float, seed: int) -> Floats:
    """Draw logits (tokens, COUNT) of a router: popularities of experts with a standard deviation of `popularity`, plus
    a standard normal part of each token."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((tokens, COUNT)) + popularity * rng.standard_normal(COUNT)
    return logits.astype(np.float32)


def draw_routing(tokens: int) -> tuple[Routing, float, int]:
    """Draw an unbalanced routing on the device; return it, its imbalance and the number of experts it uses. The number
    of tokens is the seed."""
    routing = route(popular_logits(tokens, SPREAD, seed=tokens), USED)
    loads = np.bincount(routing.experts.ravel(), minlength=COUNT)
    cupy: Any = import_cupy()
    there = Routing(cupy.asarray(routing.experts), cupy.asarray(routing.weights))
    return there, float(loads.max() / loads.mean()), int((loads > 0).sum())
