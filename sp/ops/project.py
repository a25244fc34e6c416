"""project, project_add and gated_project: the products with weights a layer makes, with what surrounds them."""

from __future__ import annotations

from collections.abc import Sequence

from sp.arrays import Floats
from sp.ops.activations import swiglu
from sp.ops.linear import linear
from sp.ops.norms import rms_norm
from sp.quant import Weight

Norm = tuple[Floats, float]
"""Weight (hidden,) and eps of the RMS norm that comes first."""


def project(
    x: Floats, weights: Sequence[Weight], norm: Norm | None = None, f32: Sequence[bool] | None = None
) -> tuple[Floats, ...]:
    """Multiply the same tokens by several weights: ``y_i = h W_iᵀ`` with ``h = x``, or x normed first.

    Parameters
    ----------
    x : float32 (tokens, in)
    weights : Weights of shape (out_i, in)
    norm : (float32 (in,), float), optional
        See `rms_norm`.
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
    h = x if norm is None else rms_norm(x, *norm)
    return tuple(linear(h, w) for w in weights)


def project_add(x: Floats, h: Floats, w: Weight) -> Floats:
    """The end of a half block: ``x + h Wᵀ``.

    Parameters
    ----------
    x : float32 (tokens, out)
        The residual stream.
    h : float32 (tokens, in)
    w : Weight of shape (out, in)

    Returns
    -------
    float32 (tokens, out)
        A new array.
    """
    y = linear(h, w)
    y += x
    return y


def gated_project(x: Floats, gate: Weight, up: Weight, norm: Norm) -> Floats:
    """The first half of a gated feed-forward: ``silu(h Gᵀ) * (h Uᵀ)`` with h = x normed.

    Parameters
    ----------
    x : float32 (tokens, in)
    gate, up : Weights of shape (ffn, in)
    norm : (float32 (in,), float)

    Returns
    -------
    float32 (tokens, ffn)
    """
    return swiglu(*project(x, (gate, up), norm))
