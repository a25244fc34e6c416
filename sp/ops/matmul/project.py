"""Products with weights, as layers use them: linear, project, project_add, gated_project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.native.code import LANES
from sp.ops.activations import geglu, swiglu
from sp.ops.byte_rows.loud import loud_channels
from sp.ops.byte_rows.rows import BYTE_KINDS, ROUNDED_TOKENS, byte_product, round_rows
from sp.ops.input_tiles import InputTiles
from sp.ops.matmul.chaining import begun_by, tiles_for
from sp.ops.matmul.dispatch import choose
from sp.ops.matmul.few_rows import decoded, few_products, few_rows
from sp.ops.matmul.registry import Fusion, Product
from sp.ops.matmul.split_weight import SplitWeight, sum_terms
from sp.ops.norms import Norm, Ready, rms_norm
from sp.ops.threads import run_parallel, token_slices
from sp.quant import F32, Weight

SCRATCH_VALUES = 1 << 23
"""Most values of a packed weight that are decoded at once (32 MiB of float32), so that a 248K-row head does not need 5
GB."""


ROWS_AT_ONCE = 512  # most rows of a weight that a core multiplies by few tokens at once


def linear(x: Floats, w: Weight) -> Floats:
    """Multiply activations by a weight.

    ``y[t, o] = sum_i x[t, i] * w[o, i]``

    Parameters
    ----------
    x : float32 (tokens, in)
    w : Weight of shape (out, in)
        Few tokens are multiplied by packed weights directly, see `few_products`. For more, F32 weights are used in
        place and packed ones are decoded a slab of rows at a time, on every call. Products of at least `ROUNDED_TOKENS`
        tokens have the precision `w.math`.

    Returns
    -------
    float32 (tokens, out)

    Examples
    --------
    >>> w = Weight.from_floats("w", np.array([[1, 2], [3, 4], [5, 6]], np.float32), F32)
    >>> linear(np.array([[1, 10]], np.float32), w)
    array([[21., 43., 65.]], dtype=float32)
    """
    rows, width = w.shape
    assert x.shape == (len(x), width), f"{w.name}: x {x.shape} against weight {w.shape}"
    few = few_rows(x, w)
    if few is not None:
        return few_products(x, few)[0]
    kind = BYTE_KINDS.get(w.math) if len(x) >= ROUNDED_TOKENS else None
    if kind is not None:
        loud = loud_channels(x)
        given = round_rows(x, kind, loud, True)
    out, parts = np.empty((len(x), rows), x.dtype), token_slices(len(x))
    step = max(1, rows if w.format is F32 else SCRATCH_VALUES // width)
    for start in range(0, rows, step):
        some = slice(start, start + step)
        weight = decoded(w.data[some], w.format)
        if kind is None:
            if len(parts) > 1:
                to = [out[part, some] for part in parts]
                run_parallel(np.matmul, [x[part] for part in parts], [weight.T] * len(parts), to)
            else:  # too few tokens to share: rows of the weight are
                rest = token_slices(len(weight), ROWS_AT_ONCE)
                pairs = [weight[part].T for part in rest], [out[:, some][:, part] for part in rest]
                run_parallel(np.matmul, [x] * len(rest), *pairs)
        else:
            out[:, some] = byte_product(given, round_rows(weight, kind, loud, False))
    return out


def project(
    x: Floats, weights: Sequence[Weight], norm: Norm | Ready | None = None, f32: Sequence[bool] | None = None
) -> tuple[Floats, ...]:
    """Multiply the same tokens by several weights: ``y_i = h W_iᵀ`` with ``h = x``, or x normed. Returns a tuple of
    float32 (tokens, out_i).

    Parameters
    ----------
    x : float32 (tokens, in), on the device BF16 (uint16) without `norm`
    weights : Weights of shape (out_i, in), on the device PackedWeights, as in all ops of this file
    norm : (float32 (in,), float), optional, see `rms_norm`; or the norm that `project_add_before` returned with x
    f32 : sequence of bool, optional
        On the device: True for float32 results; the others are BF16, which is the default.

    Examples
    --------
    >>> from sp.quant import F32, Weight
    >>> w = Weight.from_floats("w", np.eye(2, dtype=np.float32), F32)
    >>> project(np.array([[3.0, -3.0]], np.float32), (w,), (np.ones(2, np.float32), 0.0))[0]
    array([[ 1., -1.]], dtype=float32)
    """
    if is_device(x):
        return _project(x, tuple(weights), norm, f32)
    few = few_rows(x, *weights)
    if few is not None:
        return few_products(x, few, norm.norm if isinstance(norm, Ready) else norm)
    h = x if norm is None else rms_norm(x, *norm)
    return tuple(linear(h, w) for w in weights)


def project_add(x: Floats, h: Floats, w: Weight) -> Floats:
    """The end of a half block: ``x + h Wᵀ``. `x`: float32 (tokens, out), the residual stream; `h`: float32 (tokens,
    in), on the device BF16 (uint16) or the result of `gated_project`; `w`: Weight of shape (out, in). Returns float32
    (tokens, out), a new array; on the device x itself, updated in place."""
    if is_device(x):
        _add(x, h, w)
        return x
    few = few_rows(h, w)
    if few is not None:
        return few_products(h, few, added=x)[0]
    y = linear(h, w)
    y += x
    return y


def project_add_before(
    x: Floats, h: Floats, w: Weight, norm: Norm, before: Norm | Ready | None = None
) -> tuple[Floats, Norm | Ready]:
    """`project_add` followed by a product that starts with `norm` of its result. `x`, `h`, `w`: see `project_add`;
    `norm`: (float32 (out,), float), of the result; `before`: Norm or Ready, optional, the last norm of x, which has not
    changed since; a Ready gives kernels the magnitude of the tokens of x. Returns `x`: float32 (tokens, out), see
    `project_add`; `norm`: Norm or Ready, for `project` or `gated_project` of that x: `norm`, or its deferred form if
    the kernel can start it.

    >>> from sp.quant import F32, Weight
    >>> w, ones = Weight.from_floats("w", np.eye(2, dtype=np.float32), F32), np.ones(2, np.float32)
    >>> x, norm = project_add_before(ones[None], np.array([[2.0, -4.0]], np.float32), w, (ones, 0.0))
    >>> project(x, (w,), norm)[0]
    array([[ 1., -1.]], dtype=float32)
    """
    if is_device(x):
        ready = _add(x, h, w, norm, before if isinstance(before, Ready) else None)
        return x, norm if ready is None else ready
    return project_add(x, h, w), norm


def gated_project(
    x: Floats, gate: Weight, up: Weight, norm: Norm | Ready, reader: Weight | None = None, *, gelu: bool = False
) -> Floats:
    """The first half of a gated feed-forward: ``silu(h Gᵀ) * (h Uᵀ)`` with h = x normed; with `gelu` instead of silu,
    see `geglu`. `x`: float32 (tokens, in); `gate`, `up`: Weights of shape (ffn, in); `norm`: (float32 (in,), float), as
    in `project`; `reader`: Weight of shape (out, ffn), optional, the weight of the only consumer of the result, a
    `project_add`. Returns float32 (tokens, ffn), on the device BF16 (uint16), or InputTiles if the product with
    `reader` takes them."""
    if is_device(x):
        gated: Floats = geglu(*project(x, (gate, up), norm)) if gelu else _gated_project(x, gate, up, norm, reader)
        return gated
    few = few_rows(x, gate, up)
    if few is not None and gate.shape[0] % LANES == 0:
        return few_products(x, few, norm.norm if isinstance(norm, Ready) else norm, gelu=gelu)[0]
    return (geglu if gelu else swiglu)(*project(x, (gate, up), norm))


def _project(
    x: Any, weights: tuple[Any, ...], norm: Norm | Ready | None, f32: Sequence[bool] | None
) -> tuple[Any, ...]:
    wide = (False,) * len(weights) if f32 is None else f32
    if any(isinstance(w, SplitWeight) for w in weights):
        return _project_split(x, weights, norm, wide)
    outs = tuple(_room(x, w, is_wide) for w, is_wide in zip(weights, wide, strict=True))
    _store(x, weights, outs, norm)
    return outs


def _project_split(
    x: Any, weights: tuple[Any, ...], norm: Norm | Ready | None, wide: Sequence[bool]
) -> tuple[Any, ...]:
    """`_project` with split weights: the terms of weights of one shape are summed up together."""
    alike: dict[Any, list[int]] = {}
    for i, w in enumerate(weights):
        if isinstance(w, SplitWeight):
            alike.setdefault((w.shape, wide[i]), []).append(i)
    outs: dict[int, Any] = {i: _room(x, w, wide[i]) for i, w in enumerate(weights) if not isinstance(w, SplitWeight)}
    plain, into, sums = list(weights), outs.copy(), []
    for (shape, is_wide), which in alike.items():
        room = import_cupy().empty((len(which), len(x), weights[which[0]].terms.shape[0]), np.float32)
        sums.append((room, shape[0], is_wide, which))
        for i, products in zip(which, room, strict=True):
            plain[i], into[i] = weights[i].terms, products
    _store(x, tuple(plain), tuple(into[i] for i in range(len(weights))), norm)
    for room, rows, is_wide, which in sums:
        outs |= zip(which, sum_terms(room, rows, f32=is_wide), strict=True)
    return tuple(outs[i] for i in range(len(weights)))


def _room(x: Any, w: Any, is_wide: bool) -> Any:
    return import_cupy().empty((len(x), w.shape[0]), np.float32 if is_wide else np.uint16)


def _store(x: Any, weights: tuple[Any, ...], outs: tuple[Any, ...], norm: Norm | Ready | None) -> None:
    if len(x):
        choose(len(x), weights, norm is not None, STORE).launch(Product(x, weights, outs, STORE, norm))


def _add(x: Any, h: Any, w: Any, norm: Norm | None = None, before: Ready | None = None) -> Ready | None:
    """`project_add` on the device; with the next `norm`, which is deferred if the kernel can start it."""
    tokens = h.tokens if isinstance(h, InputTiles) else len(h)
    if not tokens:  # the kernels would still read a row
        return None
    if isinstance(w, SplitWeight):
        (y,) = _project(h, (w,), None, (True,))
        x += y
        return None
    kernel = choose(tokens, (w,), False, ADD)
    ready = None if norm is None else begun_by(kernel, x, norm)
    kernel.launch(Product(h, (w,), (x,), ADD, then=ready, before=before))
    return ready


def _gated_project(x: Any, gate: Any, up: Any, norm: Norm | Ready, reader: Any) -> Any:
    tokens, shape = len(x), (len(x), gate.shape[0])
    if not tokens:
        return import_cupy().empty(shape, np.uint16)
    if isinstance(gate, SplitWeight) or isinstance(up, SplitWeight):
        return swiglu(*project(rms_norm(x, *norm), (gate, up)))
    kernel = choose(tokens, (gate, up), True, SWIGLU)
    if gate.format != up.format and not kernel.mixed_swiglu:
        return swiglu(*project(rms_norm(x, *norm), (gate, up)))
    out: Any = tiles_for(reader, tokens) if Fusion.TILES in kernel.fusions else None
    if out is None:
        out = import_cupy().empty(shape, np.uint16)
    kernel.launch(Product(x, (gate, up), (out,), SWIGLU, norm))
    return out
