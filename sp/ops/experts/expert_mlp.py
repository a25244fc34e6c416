"""Feed-forward of a mixture of experts: every token passes the few experts that it was routed to."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.experts import COMBINE_BIASED, COMBINE_ROWS, SCATTER_ROWS
from sp.ops.activations import sigmoid, swiglu
from sp.ops.experts import few, grouped
from sp.ops.experts.clamped import clamped_swiglu
from sp.ops.experts.routing import Routing, by_expert
from sp.ops.experts.stack import Stack
from sp.ops.matmul.project import linear

Shared = tuple[Floats, Floats]
"""Of an expert that all tokens pass: the weight of its gate, float32 (in,), and its output, (tokens, out)."""


def add_experts(
    x: Floats,
    h: Floats,
    gate: Stack,
    up: Stack,
    down: Stack,
    routing: Routing,
    shared: Shared | None = None,
    *,
    clamped: bool = False,
) -> Floats:
    """``x[t] + sum_j w[t, j] * D_e (silu(G_e h[t]) * U_e h[t]) + sigmoid(m . h[t]) * shared[t]``, e = experts[t, j].
    Biases of stacks are added to their products; `clamped`: use `clamped_swiglu` instead of `swiglu`. `x`: float32
    (tokens, out), the residual stream; on the device updated in place; `h`: float32 (tokens, in), normed tokens; on the
    device bf16 (uint16), as everything except x and the weights of `routing`; `gate`, `up`: Stack of matrices (ffn,
    in); `down`: Stack of matrices (out, ffn); `routing`: of these tokens; `shared`: (float32 (in,), float32 (tokens,
    out)), optional. Returns float32 (tokens, out).

    >>> from sp.quant import F32, Weight
    >>> ones = Weight.from_floats("w", np.array([[1.0], [10.0]], np.float32), F32)
    >>> stack = Stack(ones, 1, 0, 1)
    >>> routing = Routing(np.array([[1, 0]], np.int32), np.array([[0.5, 0.5]], np.float32))
    >>> x, h = np.zeros((1, 1), np.float32), np.full((1, 1), 2.0, np.float32)
    >>> add_experts(x, h, stack, stack, stack, routing).round().tolist()
    [[2002.0]]
    """
    if is_device(x):
        _on_device(x, h, gate, up, down, routing, shared, clamped)
        return x
    used = routing.experts.shape[1]
    order = by_expert(routing.experts, gate.count)
    weights = routing.weights.ravel()
    activate = clamped_swiglu if clamped else swiglu
    out = x.copy()
    for expert in np.flatnonzero(np.diff(order.starts)).tolist():
        slots = order.slots[order.starts[expert] : order.starts[expert + 1]]
        tokens = slots // used  # slot = token * used + choice
        mine = h[tokens]
        y = _product(activate(_product(mine, gate, expert), _product(mine, up, expert)), down, expert)
        # No token has an expert twice, so the indices are distinct and += adds every row.
        out[tokens] += y * weights[slots, None]
    if shared is not None:
        mix, y = shared
        out += sigmoid(h @ mix)[:, None] * y
    return out


def _product(x: Floats, stack: Stack, expert: int) -> Floats:
    """Multiply tokens by the matrix of one expert, and add its bias; on the CPU."""
    y = linear(x, stack[expert])
    if stack.bias is not None:
        y += stack.bias[expert]
    return y


def _on_device(
    x: Any,
    h: Any,
    gate: Stack,
    up: Stack,
    down: Stack,
    routing: Routing,
    shared: tuple[Any, Any] | None,
    clamped: bool,
) -> None:
    tokens, used = routing.experts.shape
    if not tokens:
        return
    if few.takes(gate, up, down, routing):
        few.add_few(x, h, gate, up, down, routing, shared, clamped)
        return
    placed = grouped.place(routing.experts, gate.count)
    rows = import_cupy().empty((placed.rows, h.shape[1]), np.uint16)
    SCATTER_ROWS.launch((tokens,), h, placed.places, rows, used, h.shape[1] // 8)
    if clamped or gate.bias is not None:
        mid = grouped.gated_rows(rows, gate, up, placed, routing.experts, clamped)
    # A launch has one format: gate and up of different formats take two and an activation.
    elif gate.weight.format == up.weight.format:
        mid = grouped.gated(rows, gate, up, placed)
    else:
        mid = swiglu(grouped.multiply(rows, gate, placed), grouped.multiply(rows, up, placed))
    y = grouped.multiply(mid, down, placed)
    mix, common = (None, None) if shared is None else shared
    given = None if shared is None else h
    args = y, placed.places, routing.weights, given, mix, common, x, used, x.shape[1] // 8
    if down.bias is None:
        COMBINE_ROWS.launch((tokens,), *args)
    else:
        COMBINE_BIASED.launch((tokens,), *args, routing.experts, down.bias)
