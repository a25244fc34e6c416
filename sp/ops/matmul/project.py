"""project, project_add and gated_project: the products with weights a layer makes, with what surrounds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.ops.activations import swiglu
from sp.ops.input_tiles import InputTiles
from sp.ops.matmul.dispatch import choose, gated_matmul, matmul
from sp.ops.matmul.gemm_few import alike, gemm_few
from sp.ops.matmul.gemv import ADD, STORE, SWIGLU, gemv
from sp.ops.matmul.linear import linear
from sp.ops.matmul.project_few import add_ready, gated_few, multiply_few
from sp.ops.norms import Norm, Ready, rms_norm
from sp.quant import Weight

LAUNCH_WEIGHTS = 4
"""Most weights that one launch of the decode kernel takes."""


def project(
    x: Floats, weights: Sequence[Weight], norm: Norm | Ready | None = None, f32: Sequence[bool] | None = None
) -> tuple[Floats, ...]:
    """Multiply the same tokens by several weights: ``y_i = h W_iᵀ`` with ``h = x``, or x normed first.

    Parameters
    ----------
    x : float32 (tokens, in)
        On the device BF16 (uint16) without `norm`.
    weights : Weights of shape (out_i, in)
        On the device PackedWeights, as in all ops of this file.
    norm : (float32 (in,), float), optional
        See `rms_norm`; or what `project_add_before` returned with x.
    f32 : sequence of bool, optional
        On the device: which results are wanted in float32; the others are BF16, as all are by default.

    Returns
    -------
    tuple of float32 (tokens, out_i)

    Examples
    --------
    >>> import numpy as np
    >>> from sp.quant import F32, Weight
    >>> w = Weight.from_floats("w", np.eye(2, dtype=np.float32), F32)
    >>> project(np.array([[3.0, -3.0]], np.float32), (w,), (np.ones(2, np.float32), 0.0))[0]
    array([[ 1., -1.]], dtype=float32)
    """
    if is_device(x):
        return _project(x, tuple(weights), norm, f32)
    h = x if norm is None else rms_norm(x, *_plain(norm))
    return tuple(linear(h, w) for w in weights)


def project_add(x: Floats, h: Floats, w: Weight) -> Floats:
    """The end of a half block: ``x + h Wᵀ``.

    Parameters
    ----------
    x : float32 (tokens, out)
        The residual stream.
    h : float32 (tokens, in)
        On the device BF16 (uint16) or what `gated_project` returned.
    w : Weight of shape (out, in)

    Returns
    -------
    float32 (tokens, out)
        A new array; on the device x itself, added to in place.
    """
    if is_device(x):
        if isinstance(h, InputTiles):
            multiply_few(h, (w,), (x,), ADD)
            return x
        if not len(h):  # the kernels would read a row all the same
            return x
        kernel = choose(len(h), (w,), False, ADD)
        if kernel == "gemv":
            gemv(h, (w,), (x,), ADD)  # type: ignore[arg-type]
        elif kernel == "gemm_few":
            gemm_few(h, (w,), (x,), ADD)  # type: ignore[arg-type]
        elif kernel == "gemm_few_sm90":
            multiply_few(h, (w,), (x,), ADD)
        else:
            matmul()(h, w, x, "add")
        return x
    y = linear(h, w)
    y += x
    return y


def project_add_before(
    x: Floats, h: Floats, w: Weight, norm: Norm, before: Norm | Ready | None = None
) -> tuple[Floats, Norm | Ready]:
    """`project_add` before a product that starts with `norm` of its result.

    Parameters
    ----------
    x, h, w :
        See `project_add`.
    norm : (float32 (out,), float)
        Of the result.
    before : Norm or Ready, optional
        The norm that x went through last, unchanged since; a Ready tells the kernels how large the tokens of x are.

    Returns
    -------
    x : float32 (tokens, out)
        See `project_add`.
    norm : Norm or Ready
        For `project` or `gated_project` of that x as it is: `norm`, or where the kernels can begin it here that.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.quant import F32, Weight
    >>> w, ones = Weight.from_floats("w", np.eye(2, dtype=np.float32), F32), np.ones(2, np.float32)
    >>> x, norm = project_add_before(ones[None], np.array([[2.0, -4.0]], np.float32), w, (ones, 0.0))
    >>> project(x, (w,), norm)[0]
    array([[ 1., -1.]], dtype=float32)
    """
    if is_device(x) and len(x) and (isinstance(h, InputTiles) or choose(len(h), (w,), False, ADD) == "gemm_few_sm90"):
        ready = add_ready(x, h, w, norm, before)
        if ready is not None:
            return x, ready
    return project_add(x, h, w), norm


def gated_project(x: Floats, gate: Weight, up: Weight, norm: Norm | Ready, reader: Weight | None = None) -> Floats:
    """The first half of a gated feed-forward: ``silu(h Gᵀ) * (h Uᵀ)`` with h = x normed.

    Parameters
    ----------
    x : float32 (tokens, in)
    gate, up : Weights of shape (ffn, in)
    norm : (float32 (in,), float)
        As in `project`.
    reader : Weight of shape (out, ffn), optional
        The weight of the `project_add` that alone reads the result.

    Returns
    -------
    float32 (tokens, ffn)
        On the device BF16 (uint16), or InputTiles where the product with `reader` takes them.
    """
    if is_device(x):
        gated: Floats = _gated_project(x, gate, up, norm, reader)
        return gated
    return swiglu(*project(x, (gate, up), norm))


def _project(
    x: Any, weights: tuple[Any, ...], norm: Norm | Ready | None, f32: Sequence[bool] | None
) -> tuple[Any, ...]:
    cupy, tokens = import_cupy(), len(x)
    wide = (False,) * len(weights) if f32 is None else f32
    outs = tuple(
        cupy.empty((tokens, w.shape[0]), np.float32 if is_wide else np.uint16)
        for w, is_wide in zip(weights, wide, strict=True)
    )
    if not tokens:
        return outs
    kernel = choose(tokens, weights, norm is not None, STORE)
    if kernel == "gemm_few_sm90":
        multiply_few(x, weights, outs, STORE, norm)
        return outs
    norm = None if norm is None else _plain(norm)
    if kernel == "gemv":
        for start in range(0, len(weights), LAUNCH_WEIGHTS):
            some = slice(start, start + LAUNCH_WEIGHTS)
            gemv(x, weights[some], outs[some], STORE, norm)
        return outs
    h = x if norm is None else rms_norm(x, *norm)
    if kernel == "gemm_few":
        for group in alike(_kinds(weights), LAUNCH_WEIGHTS):
            gemm_few(h, [weights[i] for i in group], [outs[i] for i in group], STORE)
        return outs
    for w, out in zip(weights, outs, strict=True):
        _multiply(h, w, out)
    return outs


def _multiply(h: Any, w: Any, out: Any) -> None:
    """A prefill product; those kernels write 8 outputs at a time, and a weight is padded to 64."""
    mode = "f32" if out.dtype.char == "f" else "bf16"
    rows, width = w.shape
    if rows % 8 == 0:
        matmul()(h, w, out, mode)
        return
    padded = import_cupy().empty((len(h), -(-rows // 8) * 8), out.dtype)
    matmul()(h, replace(w, shape=(padded.shape[1], width)), padded, mode)
    out[...] = padded[:, :rows]


def _gated_project(x: Any, gate: Any, up: Any, norm: Norm | Ready, reader: Any) -> Any:
    out = import_cupy().empty((len(x), gate.shape[0]), np.uint16)
    if not len(x):
        return out
    kernel = choose(len(x), (gate, up), True, SWIGLU)
    if gate.format == up.format and kernel == "gemm_few_sm90":
        return gated_few(x, gate, up, norm, reader)
    norm = _plain(norm)
    if kernel == "gemv":
        gemv(x, (gate, up), (out,), SWIGLU, norm)
    elif gate.format == up.format and kernel == "gemm_few":
        gemm_few(rms_norm(x, *norm), (gate, up), (out,), SWIGLU)
    elif gate.format == up.format:
        gated_matmul()(rms_norm(x, *norm), gate, up, out)
    else:
        return swiglu(*project(rms_norm(x, *norm), (gate, up)))
    return out


def _plain(norm: Norm | Ready) -> Norm:
    return norm.norm if isinstance(norm, Ready) else norm


def _kinds(weights: Sequence[Any]) -> tuple[int, ...]:
    return tuple(w.format.ggml_type for w in weights)
