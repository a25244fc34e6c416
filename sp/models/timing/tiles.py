"""in_tiles: what products keep a card of Hopper busy with, whose tiles seldom fill their last round on it."""

from __future__ import annotations

from typing import NamedTuple

from sp.kernels.specs.matmul.epilogue import STORE, SWIGLU
from sp.ops.matmul import gemm_bytes_sm90, gemm_sm90
from sp.quant import Q4_K
from sp.quant.packing import TILE

ROWS, TOKENS, BYTE_TOKENS = 128, 256, 192
"""Of the largest tiles, in BF16 and in eight bits."""


class Product(NamedTuple):
    """Tokens times a matrix, or gate and up of a feed-forward at once.

    Attributes
    ----------
    tokens, rows, width : int
    gated : bool
        Of two matrices of so many rows.
    """

    tokens: int
    rows: int
    width: int
    gated: bool = False


def in_tiles(product: Product, processors: int, in_bytes: bool) -> float:
    """Tensor operations that a card with so many multiprocessors could do while it makes a product.

    As many as the product has where its tiles are large and fill all rounds; more where the last round is filled in
    part, where blocks share the inputs of a tile to fill it, or where tiles are small: by the microseconds from which
    the kernels' launchers choose between forms, against those of large tiles.

    Examples
    --------
    >>> product = Product(8192, 17408, 5120)
    >>> round(in_tiles(product, 132, False) / (2 * 8192 * 17408 * 5120), 2)
    1.0
    >>> product = Product(512, 4352, 5120, gated=True)  # of four cards that share a target
    >>> round(in_tiles(product, 132, False) / (2 * 512 * 2 * 4352 * 5120), 2)
    1.27
    """
    epilogue, row_tiles = SWIGLU if product.gated else STORE, -(-product.rows // TILE)
    if in_bytes:
        defines, *blocks, _ = gemm_bytes_sm90.plan_of(0, epilogue, product.tokens, row_tiles, processors)
        rounds = max(1.0, blocks[0] * blocks[1] / (processors // int(defines["CLUSTER"])))
        step = (int(defines["TOKENS"]) + gemm_bytes_sm90.FIXED) / (BYTE_TOKENS + gemm_bytes_sm90.FIXED)
        return 2.0 * rounds * step * processors * ROWS * BYTE_TOKENS * product.width
    k_tiles = -(-product.width // TILE)
    plan = gemm_sm90.plan_of(Q4_K.ggml_type, epilogue, product.tokens, row_tiles, k_tiles, processors)
    return 2.0 * plan.cost / gemm_sm90.STEP[TOKENS] * processors * ROWS * TOKENS * TILE
