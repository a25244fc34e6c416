"""RMSNorm and L2 norm, in NumPy and on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.kept import cache
from sp.kernels.specs.elementwise import RMS_NORM, norm_rows
from sp.native.code import LANES
from sp.native.elementwise import normed
from sp.native.team import address, bits, task
from sp.ops.input_tiles import InputTiles, empty_tiles
from sp.ops.threads import run_parallel, team, token_slices

Norm = tuple[Floats, float]  # weight (hidden,) and eps of an RMS norm that comes before a product


@dataclass(frozen=True)
class Ready:
    """A deferred RMSNorm of a residual stream on the device: the product that made the stream has already started the
    norm."""

    norm: Norm
    tiles: InputTiles  # the stream times the norm's weight, with squares

    def __iter__(self) -> Iterator[Any]:
        """Yield weight and eps, like a norm that is not deferred."""
        return iter(self.norm)

    @classmethod
    def empty(cls, x: Any, norm: Norm, held: int) -> Ready:
        """Allocate the deferred norm of x (tokens, hidden), hidden a multiple of 256, in tiles of `held` tokens."""
        tokens, width = x.shape
        squares = import_cupy().empty((tokens, width // 16), np.float32)
        return cls(norm, replace(empty_tiles(tokens, width, held), squares=squares, eps=norm[1]))


def rms_norm(x: Floats, weight: Floats, eps: float, *, f32: bool = False) -> Floats:
    """Root-mean-square normalisation over the last axis.

    ``y = x / sqrt(mean(x²) + eps) * weight``. In GGUF files the weight is ready to multiply: converters have already
    added the 1 of zero-centred checkpoints.

    Parameters
    ----------
    x : float32 (..., d)
    weight : float32 (d,)
    eps : float
    f32 : bool
        On the device, where d % 4 == 0 and d <= 8192: return float32 instead of bf16 (uint16).

    Returns
    -------
    float32 (..., d)

    References
    ----------
    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

    Examples
    --------
    >>> rms_norm(np.array([3.0, -3.0], np.float32), np.array([1.0, 2.0], np.float32), 0.0)
    array([ 1., -2.], dtype=float32)
    """
    if is_device(x):
        d = x.shape[-1]
        assert d % 4 == 0, f"rows of {d}"
        assert d <= 8192, f"rows of {d}"
        cupy = import_cupy()
        out: Floats = cupy.empty(x.shape, cupy.float32 if f32 else cupy.uint16)
        rows, defines = x.size // d, {"COLS": d}
        blocks = -(-rows // norm_rows(defines))
        RMS_NORM.launch((blocks,), x, weight, *((None, out) if f32 else (out, None)), rows, eps, defines=defines)
        return out
    if x.dtype == np.float32 and x.size and x.shape[-1] % LANES == 0:
        x, weight = np.ascontiguousarray(x), np.ascontiguousarray(weight, np.float32)
        y, width = np.empty(x.shape, np.float32), x.shape[-1]
        rows, where = x.size // width, (address(x), address(weight), address(y))
        team().do([task(normed().address, rows, *where, width, bits(eps), alone=rows == 1)])
        return y
    y = np.empty_like(x)

    def normalise(part: slice) -> None:
        scale = np.vecdot(x[part], x[part])[..., None]
        scale /= x.shape[-1]
        scale += eps
        np.reciprocal(np.sqrt(scale, out=scale), out=scale)
        np.multiply(x[part], scale, out=y[part])
        y[part] *= weight

    run_parallel(normalise, token_slices(len(x)) if x.ndim > 1 else [slice(None)])
    return y


def ones(width: int, like: object) -> Floats:
    """Return the weight (width,) of a norm without weights, on the device of `like`; read-only."""
    return _ones_on(width, current_device()) if is_device(like) else np.ones(width, np.float32)


@cache
def _ones_on(width: int, device: int) -> Any:
    return import_cupy().ones(width, np.float32)


def l2norm(x: Floats, eps: float) -> Floats:
    """Scale the last axis to unit length.

    ``y = x / sqrt(sum(x²) + eps)``: `eps` is under the root, as in the reference Gated DeltaNet.

    Parameters
    ----------
    x : float32 (..., d)
    eps : float

    Returns
    -------
    float32 (..., d)

    Examples
    --------
    >>> l2norm(np.array([[3.0, 4.0]], np.float32), 0.0)
    array([[0.6, 0.8]], dtype=float32)
    """
    scale = np.vecdot(x, x)[..., None]
    scale += eps
    np.reciprocal(np.sqrt(scale, out=scale), out=scale)
    y: Floats = x * scale
    return y
