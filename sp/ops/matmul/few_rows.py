"""Products of few tokens (small_m) with packed weights, and unpacking, on the CPU by compiled loops (`sp.native`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sp.arrays import Bytes, Floats
from sp.native.blocks import unit
from sp.native.code import LANES
from sp.native.elementwise import gated, normed
from sp.native.products import product, unpacking
from sp.native.team import Task, address, bits, task
from sp.ops.norms import Norm
from sp.ops.threads import team
from sp.quant import F32, BlockFormat, Weight

FEW = 48
"""Most tokens for which weights are unpacked in registers: more are cheaper with BLAS and weights unpacked to
memory."""
AT_ONCE = (8, 4, 2, 1)  # tokens that share unpacked weights


@dataclass(frozen=True)
class Rows:
    """Packed rows, as arguments of the kernels."""

    fmt: BlockFormat
    at: int  # address
    count: int
    row_bytes: int
    units: int  # units per row that are unpacked at once
    kernels: dict[tuple[int, bool], int] = field(default_factory=dict)

    def kernel(self, tokens: int, add: bool) -> int:
        """Return the address of `product` for so many tokens; cached in `kernels`."""
        found = self.kernels[tokens, add] = product(self.fmt, tokens, add).address
        return found


def native_rows(w: Weight) -> Rows | None:
    """Return a matrix as kernel arguments; None if its format or its width needs NumPy."""
    of = unit(w.format.decode, w.shape[-1])
    if of is None or len(w.shape) != 2 or not w.data.flags.c_contiguous:
        return None
    return Rows(w.format, w.data.ctypes.data, w.shape[0], w.data.shape[-1], w.shape[-1] // of.values)


def few_rows(x: Floats, *weights: Weight) -> list[Rows] | None:
    """Return the weights as arguments of `few_products` with these tokens; None if it does not support them."""
    if not 0 < len(x) <= FEW or x.dtype != np.float32:
        return None
    for w in weights:
        assert w.shape[-1] == x.shape[1], f"{w.name}: x {x.shape} against weight {w.shape}"
    found = [w.found(native_rows) for w in weights]
    return None if None in found else found  # type: ignore[return-value]


def few_products(
    x: Floats,
    weights: Sequence[Rows],
    norm: Norm | None = None,
    added: Floats | None = None,
    gelu: bool | None = None,
) -> tuple[Floats, ...]:
    """``y_i = h W_iᵀ`` of few tokens, with ``h`` = x or x normed.

    Parameters
    ----------
    x : float32 (tokens, in)
    weights : results of `few_rows`
    norm : (float32 (in,), float), optional
    added : float32 (tokens, out), optional
        Added to the product with one weight.
    gelu : bool, optional
        For two weights with a multiple of `LANES` rows: return only ``act(y_0) * y_1``, with act gelu or silu.

    Returns
    -------
    tuple of float32 (tokens, out_i)

    Examples
    --------
    >>> from sp.quant import Q4_0
    >>> w = Weight.from_floats("w", np.eye(2, 32, dtype=np.float32), Q4_0)
    >>> x, z = np.arange(32, dtype=np.float32)[None], np.ones((1, 2), np.float32)
    >>> few_products(x, few_rows(x, w), added=z)
    (array([[1., 2.]], dtype=float32),)
    """
    x, (n, width), tasks = np.ascontiguousarray(x), x.shape, list[Task]()
    h, at, size, few = x, address(x), 4 * width, n == 1
    if norm is not None:
        weight, eps = np.ascontiguousarray(norm[0], np.float32), norm[1]
        assert len(weight) == width, f"norm of {len(weight)} against x {x.shape}"
        h = np.empty((n, width), np.float32)
        from_, at = at, address(h)
        tasks.append(task(normed().address, n, from_, address(weight), at, width, bits(eps), alone=few))
    outs = tuple([np.empty((n, rows.count), np.float32) for rows in weights])
    places = [address(out) for out in outs]
    if added is not None:
        added = np.ascontiguousarray(added, np.float32)
        assert added.shape == outs[0].shape, f"added {added.shape} against {outs[0].shape}"
    onto, add, first = 0 if added is None else address(added), added is not None, 0
    for some in AT_ONCE:
        while n - first >= some:
            # Products with several weights are independent: threads may run them in parallel.
            beside = len(weights)
            for rows, place in zip(weights, places, strict=True):
                row, made = 4 * rows.count, rows.kernels.get((some, add)) or rows.kernel(some, add)
                skipped, to = first * row, place + first * row
                where = rows.at, at + first * size, to, onto + skipped, rows.row_bytes, rows.units, size, row, row
                tasks.append(task(made, rows.count, *where, beside=beside))
            first += some
    if gelu is not None:
        tasks.append(task(gated(gelu).address, outs[0].size // LANES, *places, places[0], alone=few))
    team().do(tasks)
    return outs if gelu is None else outs[:1]


def decoded(data: Bytes, fmt: BlockFormat, out: Floats | None = None) -> Floats:
    """`BlockFormat.decode` of rows (rows, row_bytes), with the same bits; by a compiled loop if there is one, and to
    `out`, C-contiguous float32 (rows, width), if it is not None.

    >>> from sp.quant import Q8_0
    >>> decoded(Q8_0.encode(np.ones((2, 32), np.float32)), Q8_0).shape
    (2, 32)
    """
    width = data.shape[-1] // fmt.block_bytes * fmt.block_size
    of = unit(fmt.decode, width)
    if of is None or not len(data) or (fmt is F32 and out is None):
        found = fmt.decode(data)
        if out is None:
            return found
        out[...] = found
        return out
    data = np.ascontiguousarray(data)
    out = np.empty((len(data), width), np.float32) if out is None else out
    where = address(data), address(out), data.shape[-1], width // of.values
    team().do([task(unpacking(fmt).address, len(data), *where, alone=len(data) == 1)])
    return out
