"""Packed weights times bf16 tokens, dequantisation inside the time; cuBLAS beside them, which CuPy cannot capture."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sp.bench.cases import Case, family, paths
from sp.bench.families.inputs import bf16, normal
from sp.kernels import import_cupy
from sp.models.synthetic.random_blocks import random_blocks
from sp.ops.matmul.packed import pack
from sp.ops.matmul.project import project
from sp.quant import BF16, Q4_K, Q6_K, BlockFormat

OUT, IN = 17408, 5120
TOKENS = (1, 8, 16, 32, 64, 512, 8192)


@family("project")
def cases() -> Iterator[Case]:
    """The widest product of the 27B shape, from one token to a prefill chunk."""
    cupy = import_cupy()
    for fmt in (Q4_K, Q6_K, BF16):
        weight = random_weight(fmt, OUT, IN)
        for tokens in TOKENS:
            x = bf16(tokens, IN)
            config = {"type": fmt.name, "m": tokens, "n": OUT, "k": IN}
            moved = weight.data.nbytes + tokens * (OUT + IN) * 2
            for path in paths():
                run = partial(project, x, (weight,))
                yield Case(config, path, run, bytes=moved, flops=2 * tokens * OUT * IN, graph=True)
    for tokens in TOKENS:
        a = normal(tokens, IN).astype(np.float16)
        b = normal(IN, OUT).astype(np.float16)
        config = {"type": "F16", "m": tokens, "n": OUT, "k": IN}
        yield Case(config, "cublas", partial(cupy.matmul, a, b), bytes=b.nbytes, flops=2 * tokens * OUT * IN)


def random_weight(fmt: BlockFormat, out: int, width: int) -> Any:
    """A packed weight (out, width) of random blocks on the device; 256 distinct rows, repeated."""
    blocks = random_blocks(np.random.default_rng(0), fmt, 256 * width // fmt.block_size, 0.02)
    rows = import_cupy().asarray(blocks.reshape(256, -1))
    return pack("bench", fmt, (out, width), import_cupy().tile(rows, (out // 256, 1)))
