"""Gated DeltaNet of the 27B shape: prefill chunks, single tokens, trees of draft tokens and commits of a path."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from sp.bench.cases import Case, bf16, family, normal, paths
from sp.kernels import import_cupy
from sp.ops.delta.delta_mixer import DeltaParams, State, delta_mixer
from sp.ops.delta.delta_tree import DeltaStates, DeltaTrace, delta_commit, delta_tree

KEY_HEADS, VALUE_HEADS, HEAD_DIM, TAPS = 16, 48, 128, 4
CONV_DIM = (2 * KEY_HEADS + VALUE_HEADS) * HEAD_DIM
LAYERS = 48
PATH_LENGTH = 8  # nodes of the committed path


@family("delta")
def cases() -> Iterator[Case]:
    """Yield mixers with outputs of all rows. Bytes: inputs, outputs and state, once; FLOP: those of the recurrence, not
    of its chunked form."""
    params, state = _params(), _state()
    for tokens in (1, 16, 8192):
        qkv, z = bf16(tokens, CONV_DIM), bf16(tokens, VALUE_HEADS * HEAD_DIM)
        alpha, beta = normal(tokens, VALUE_HEADS), normal(tokens, VALUE_HEADS)
        run = partial(delta_mixer, qkv, z, alpha, beta, params, state, tokens)
        moved = qkv.nbytes + 2 * z.nbytes + 2 * alpha.nbytes + 2 * state.recurrent.nbytes
        flops = 6 * tokens * VALUE_HEADS * HEAD_DIM**2
        config = {"tokens": tokens, "value_heads": VALUE_HEADS, "head_dim": HEAD_DIM}
        for path in paths():
            yield Case(config, path, run, bytes=moved, flops=flops, graph=True)


@family("delta_tree")
def tree_cases() -> Iterator[Case]:
    """Yield trees through all layers, each with its own state, then the commit of a path in all layers."""
    cupy, params = import_cupy(), _params()
    states = DeltaStates.of([_state() for _ in range(LAYERS)])
    trace = DeltaTrace.new(LAYERS, 64, params, "cuda")
    size = {"layers": LAYERS, "value_heads": VALUE_HEADS, "head_dim": HEAD_DIM}
    state_bytes = sum(state.recurrent.nbytes for state in states.layers)
    for nodes in (16, 23, 32, 64):
        qkv, z = bf16(nodes, CONV_DIM), bf16(nodes, VALUE_HEADS * HEAD_DIM)
        gates = normal(nodes, VALUE_HEADS), normal(nodes, VALUE_HEADS)
        seen = cupy.asarray((np.uint64(2) << np.arange(nodes, dtype=np.uint64)) - np.uint64(1))  # a chain

        def run(qkv: Any, z: Any, alpha: Any, beta: Any, seen: Any) -> None:
            for layer, state in enumerate(states.layers):
                delta_tree(qkv, z, alpha, beta, params, state, seen, trace, layer)

        inputs = 2 * qkv.nbytes + 2 * z.nbytes + sum(array[0, :nodes].nbytes for array in (trace.k, trace.u, trace.g))
        flops = LAYERS * 4 * nodes * VALUE_HEADS * HEAD_DIM**2
        moved = state_bytes + LAYERS * inputs
        yield Case({"nodes": nodes, **size}, "portable", partial(run, qkv, z, *gates, seen), moved, flops, graph=True)
    path, path_length = cupy.arange(64, dtype=np.int32), cupy.full(1, PATH_LENGTH, np.int32)
    flops = LAYERS * 2 * PATH_LENGTH * VALUE_HEADS * HEAD_DIM**2
    keep = partial(delta_commit, trace, states, path, path_length)
    yield Case({"kept": PATH_LENGTH, **size}, "portable", keep, 2 * state_bytes, flops, graph=True)


def _params() -> DeltaParams:
    cupy = import_cupy()
    return DeltaParams(
        conv=normal(CONV_DIM, TAPS),
        a=-cupy.exp(normal(VALUE_HEADS)),
        dt_bias=normal(VALUE_HEADS),
        norm=cupy.ones(HEAD_DIM, np.float32),
        eps=1e-6,
        key_heads=KEY_HEADS,
        value_heads=VALUE_HEADS,
        head_dim=HEAD_DIM,
    )


def _state() -> State:
    return SimpleNamespace(conv=normal(TAPS - 1, CONV_DIM), recurrent=normal(VALUE_HEADS, HEAD_DIM, HEAD_DIM))
