"""Find outlier channels: inputs of a product that are much larger than the others and would waste the shared 8-bit
scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.kept import cache
from sp.kernels.specs.matmul.gemm_bytes import LOUD, LOUD_CHANNELS, LOUD_INPUTS, MOST_LOUD_WIDTH
from sp.ops.norms import rms_norm
from sp.quant.packing import TILE

OVER = np.float32(4)  # a channel is an outlier if its absmax exceeds so many times the geometric mean of all
FEW_TOKENS = 2048  # up to so many tokens are split over more blocks, so that all multiprocessors have work
_BIN = 21  # a float32 shifted by so many bits is its exponent and two bits of the fraction: the bin of an absmax


@dataclass(frozen=True)
class LoudChannels:
    """The outlier channels of inputs, on the device; the host does not wait for them."""

    count: Any  # uint32 (1,)
    channels: Any  # uint32 (64,), ascending, the first `count`
    mask: Any  # uint16 (in / 16,), bit i of word j is set if channel 16 j + i is an outlier


@dataclass(frozen=True)
class PeakedInputs:
    """Inputs on the device with the absmax of each channel, from the product or norm that made them; `loud_channels`
    uses them once. `peaks`: uint32 (in of whole 64,), the absmax of each channel, as bits of a float32; `loud_channels`
    resets them to zero."""

    values: Any  # uint16 (tokens, in), BF16
    peaks: Any

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def empty(cls, tokens: int, width: int) -> PeakedInputs:
        """Allocate inputs on the current device; the peaks are 0."""
        cupy = import_cupy()
        return cls(cupy.empty((tokens, width), np.uint16), cupy.zeros(-(-width // TILE) * TILE, np.uint32))


def peaked_norm(x: Any, weight: Any, eps: float) -> PeakedInputs:
    """`rms_norm` of float32 (tokens, d) on the device, with absmax by channel, to which `loud_channels` must be applied
    next. For at most `FEW_TOKENS` tokens, fusing the absmax with the norm gains nothing."""
    peaks, _ = _peaks(current_device(), x.shape[1])
    return PeakedInputs(rms_norm(x, weight, eps, peaks=peaks), peaks)


def loud_channels(x: Any) -> Any:
    """Find outlier channels: those whose absmax exceeds four times the geometric mean over all channels. At most 64; of
    more, the largest by quarters of an octave, of the last quarter the first ones. A channel with a NaN or an infinity
    is an outlier, one of zeros does not count. `x`: float32 (tokens, in), or on the device bf16 as uint16, or
    PeakedInputs; in a multiple of 256, at most 32,768. Returns int64 (count,), or on the device LoudChannels. Source:
    Dettmers, Lewis, Belkada, Zettlemoyer, "LLM.int8()", 2022: few channels are large, in all tokens.

    >>> x = np.ones((2, 256), np.float32)
    >>> x[1, [3, 200]] = 9, -5
    >>> loud_channels(x)
    array([  3, 200])
    """
    if isinstance(x, PeakedInputs):
        return _among(x.peaks, x.values.shape[1])
    if x.ndim != 2 or x.shape[1] % 32 or x.shape[1] > MOST_LOUD_WIDTH:
        raise DeviceError(f"loud channels: rows of a multiple of 32, up to {MOST_LOUD_WIDTH}, not {x.shape}")
    if is_device(x):
        return _on_device(x)
    return loudest(np.abs(x).max(axis=0))


def loudest(peaks: Floats) -> Any:
    """Select outlier channels by the absmax of each channel, see `loud_channels`."""
    bits = peaks.astype(np.float32).view(np.uint32)
    counted = (peaks > 0) & (peaks < 2.0**127)
    least = OVER * np.exp2(np.log2(peaks[counted]).mean(dtype=np.float64)) if counted.any() else np.inf
    loud = np.flatnonzero(~(peaks <= least) if counted.any() else np.zeros(len(peaks), bool))
    bins = bits[loud] >> _BIN
    order = np.argsort(-bins.astype(np.int64), kind="stable")[:LOUD]
    return np.sort(loud[order])


def _on_device(x: Any) -> LoudChannels:
    width, found = x.shape[1], _empty(x.shape[1])
    each = 64 if len(x) > FEW_TOKENS else 32
    grid = -(-width // 1024), -(-len(x) // each)
    peaks, done = _peaks(current_device(), width)
    LOUD_INPUTS.launch(
        grid, x, peaks, done, found.count, found.channels, found.mask, len(x), each, defines={"COLS": width}
    )
    return found


@cache
def _peaks(device: int, width: int) -> tuple[Any, Any]:
    """Return the absmax by channel, and the number of blocks that have added theirs; both zero between launches."""
    cupy = import_cupy()
    return cupy.zeros(width, np.uint32), cupy.zeros(1, np.uint32)


def _among(peaks: Any, width: int) -> LoudChannels:
    found = _empty(width)
    LOUD_CHANNELS.launch((1,), peaks, found.count, found.channels, found.mask, defines={"COLS": width})
    return found


def _empty(width: int) -> LoudChannels:
    cupy = import_cupy()
    return LoudChannels(
        cupy.empty(1, np.uint32), cupy.empty(LOUD, np.uint32), cupy.empty(-(-width // 32) * 2, np.uint16)
    )
