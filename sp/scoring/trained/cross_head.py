"""A single cross-attention head: loss over a prompt's units, its gradient, and Adam to fit it.

Hidden states of the tokens that ask, ``Q`` (m, d), look at those of the document, ``X`` (n, d), each of mean square 1:

    ``P = softmax_j( (Q A)(X B)^T / sqrt(r) )``, ``a = softmax(Q g)``, ``p_u = sum of (a P)_j over tokens j of unit u``,
    loss ``- sum_u t_u log(p_u + EPSILON)``

with `query` A and `key` B of shape (d, r), and `gate` g (d,), which says how much each asking token counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sp.ops.array_module import array_module
from sp.scoring.trained.units import Pool

EPSILON = 1e-9
BETAS = (0.9, 0.98)

Params = Mapping[str, Any]


class Seen(NamedTuple):
    """One prompt.

    `asking` (m, d): of unit mean square, as are `document`'s; `document` (n, d); `pool`: which tokens each unit has;
    `unit` int (n,): the unit of each token; `shares` (units,): target shares, which sum to one.
    """

    asking: Any
    document: Any
    pool: Pool
    unit: Any
    shares: Any


def unit_rows(x: Any) -> Any:
    """Rows scaled to a mean square of one."""
    xp = array_module(x)
    return x / xp.sqrt((x * x).mean(axis=1, keepdims=True) + x.dtype.type(1e-12))


def start_params(width: int, rank: int, seed: int) -> dict[str, Any]:
    """Where the fit begins: `query` and `key` one random projection, so that what is alike attends to its like."""
    drawn = np.random.default_rng(seed).standard_normal((width, rank)) / np.sqrt(width)
    return {"query": drawn.astype(np.float32), "key": drawn.astype(np.float32), "gate": np.zeros(width, np.float32)}


def attended(params: Params, asking: Any, document: Any) -> tuple[Any, Any, Any, Any]:
    """Projected queries (m, r) over sqrt(r), keys (n, r), weights P (m, n) and gates a (m,)."""
    q = asking @ params["query"] / np.sqrt(params["query"].shape[1]).astype(asking.dtype)
    k = document @ params["key"]
    return q, k, _softmax(q @ k.T), _softmax(asking @ params["gate"])


def loss_and_gradient(params: Params, seen: Seen) -> tuple[float, dict[str, Any]]:
    """The module's loss of one prompt, and its gradient by every parameter."""
    xp = array_module(seen.document)
    q, k, weights, gates = attended(params, seen.asking, seen.document)
    mass = seen.pool.sums((gates @ weights)[None])[0]
    loss = -float(seen.shares @ xp.log(mass + EPSILON))
    by_token = (-seen.shares / (mass + EPSILON))[seen.unit].astype(weights.dtype)
    by_query = weights @ by_token
    by_logit = gates[:, None] * weights * (by_token - by_query[:, None])
    scale = np.sqrt(params["query"].shape[1]).astype(weights.dtype)
    return loss, {
        "query": seen.asking.T @ (by_logit @ k) / scale,
        "key": seen.document.T @ (by_logit.T @ q),
        "gate": seen.asking.T @ (gates * (by_query - gates @ by_query)),
    }


def fit_head(
    prompts: Sequence[Seen],
    params: Params,
    *,
    epochs: int,
    batch: int,
    rate: float,
    decay: float,
    seed: int,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Adam with decoupled decay (arXiv 1711.05101), the rate falling to zero along a cosine.

    `prompts`: float16 or float32, in NumPy or on the device, where the fit is done then; `epochs`, `batch`: rounds over
    all prompts, and prompts a step; `progress`: called with 1 after every round.
    """
    xp = array_module(prompts[0].document)
    now = {name: xp.asarray(value) for name, value in params.items()}
    first = {name: xp.zeros_like(value) for name, value in now.items()}
    second = {name: xp.zeros_like(value) for name, value in now.items()}
    rng, step = np.random.default_rng(seed), 0
    steps = epochs * -(-len(prompts) // batch)
    for _ in range(epochs):
        order = rng.permutation(len(prompts))
        for at in range(0, len(order), batch):
            chosen = [_as_float32(prompts[i]) for i in order[at : at + batch]]
            slopes = [loss_and_gradient(now, one)[1] for one in chosen]
            pace = rate * (1 + np.cos(np.pi * step / steps)) / 2
            step += 1
            for name in now:
                slope = sum(each[name] for each in slopes) / len(slopes)
                first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * slope
                second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * slope * slope
                ahead = first[name] / (1 - BETAS[0] ** step)
                size = xp.sqrt(second[name] / (1 - BETAS[1] ** step)) + 1e-8
                now[name] = (now[name] - pace * (ahead / size + decay * now[name])).astype(xp.float32)
        progress(1)
    return now


def _as_float32(seen: Seen) -> Seen:
    return seen._replace(asking=seen.asking.astype("float32"), document=seen.document.astype("float32"))


def _softmax(logits: Any) -> Any:
    weights = array_module(logits).exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
