"""The portable prefill matmul in eight bits beside that in BF16, and what rounds its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sp.bench.cases import Case, family
from sp.bench.families.inputs import bf16, normal
from sp.bench.families.matmul import IN, OUT, random_weight
from sp.kernels import import_cupy
from sp.kernels.specs.matmul.epilogue import STORE
from sp.ops.eight_bit.gemm_int8 import gated_int8, gemm_int8
from sp.ops.eight_bit.inputs import quantise
from sp.ops.matmul.gemm_portable import gated, gemm
from sp.quant import Q4_K, Q6_K, Q8_0


@family("matmul_int8")
def cases() -> Iterator[Case]:
    """The widest product of the 27B shape at two lengths of a chunk; its scales are expanded inside the time."""
    cupy = import_cupy()
    for fmt in (Q4_K, Q6_K, Q8_0):
        weight, other = (random_weight(fmt, OUT, IN) for _ in range(2))
        for tokens in (2048, 8192):
            x, out = bf16(tokens, IN), cupy.empty((tokens, OUT), np.uint16)
            rounded = quantise(x)
            shape = {"type": fmt.name, "m": tokens, "n": OUT, "k": IN}
            flops, moved = 2 * tokens * OUT * IN, weight.data.nbytes + tokens * (2 * OUT + IN)
            runs: dict[tuple[str, str], Any] = {
                ("int8", "store"): partial(gemm_int8, rounded, weight, out, STORE),
                ("bf16", "store"): partial(gemm, x, weight, out, STORE),
                ("int8", "gated"): partial(gated_int8, rounded, weight, other, out),
                ("bf16", "gated"): partial(gated, x, weight, other, out),
            }
            for (math, epilogue), run in runs.items():
                both = 1 + (epilogue == "gated")
                config = shape | {"math": math, "epilogue": epilogue}
                yield Case(config, "portable", run, bytes=both * moved, flops=both * flops, graph=True)
    for tokens in (2048, 8192):
        norm = cupy.ones(IN, np.float32), 1e-6
        config = {"op": "quantise", "m": tokens, "k": IN, "norm": True}
        run = partial(quantise, normal(tokens, IN), norm)
        yield Case(config, "portable", run, bytes=tokens * IN * (4 + 1.25), graph=True)
        config = {"op": "quantise", "m": tokens, "k": OUT, "norm": False}
        run = partial(quantise, bf16(tokens, OUT))
        yield Case(config, "portable", run, bytes=tokens * OUT * (2 + 1.25), graph=True)
