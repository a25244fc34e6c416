"""The Gated DeltaNet mixer of the 27B shape: prefill chunks and single tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import numpy as np

from sp.bench.cases import Case, family, paths
from sp.bench.families.inputs import bf16, normal
from sp.kernels import import_cupy
from sp.ops.delta_mixer import DeltaParams, delta_mixer

KEY_HEADS, VALUE_HEADS, HEAD_DIM, TAPS = 16, 48, 128, 4
CONV_DIM = (2 * KEY_HEADS + VALUE_HEADS) * HEAD_DIM


@family("delta")
def cases() -> Iterator[Case]:
    """All rows wanted. Bytes: inputs, outputs and the state once; FLOP: of the recurrence, not of its chunked form."""
    cupy = import_cupy()
    params = DeltaParams(
        conv=normal(CONV_DIM, TAPS),
        a=-cupy.exp(normal(VALUE_HEADS)),
        dt_bias=normal(VALUE_HEADS),
        norm=cupy.ones(HEAD_DIM, np.float32),
        eps=1e-6,
        key_heads=KEY_HEADS,
        value_heads=VALUE_HEADS,
        head_dim=HEAD_DIM,
    )
    state = SimpleNamespace(conv=normal(TAPS - 1, CONV_DIM), recurrent=normal(VALUE_HEADS, HEAD_DIM, HEAD_DIM))
    for tokens in (1, 16, 8192):
        qkv, z = bf16(tokens, CONV_DIM), bf16(tokens, VALUE_HEADS * HEAD_DIM)
        alpha, beta = normal(tokens, VALUE_HEADS), normal(tokens, VALUE_HEADS)
        run = partial(delta_mixer, qkv, z, alpha, beta, params, state, tokens)
        moved = qkv.nbytes + 2 * z.nbytes + 2 * alpha.nbytes + 2 * state.recurrent.nbytes
        flops = 6 * tokens * VALUE_HEADS * HEAD_DIM**2
        config = {"tokens": tokens, "value_heads": VALUE_HEADS, "head_dim": HEAD_DIM}
        for path in paths():
            yield Case(config, path, run, bytes=moved, flops=flops, graph=True)
