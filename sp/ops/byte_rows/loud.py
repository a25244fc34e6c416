"""Find outlier channels: inputs of a product that are much larger than the others, and would waste the 8-bit scale of a
row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.kept import cache
from sp.kernels.specs.matmul.gemm_bytes import LOUD, LOUD_INPUTS, MOST_INPUTS, MULTIPLE

OVER = np.float32(4)  # a channel is an outlier if its absmax exceeds so many times the geometric mean of all
SAMPLE = 1024  # most tokens that are searched: outlier channels are large in most tokens, and rotation spreads the rest
EACH = 32  # tokens of a block
_BIN = 21  # a float32 shifted by so many bits is its exponent and two bits of the fraction: the bin of an absmax


@dataclass(frozen=True)
class LoudChannels:
    """The outlier channels of inputs, on the device; the host does not wait for them."""

    count: Any  # uint32 (1,)
    channels: Any  # uint32 (64,), ascending, the first `count`
    mask: Any  # uint32 (in / 32,), bit i of word j is set if channel 32 j + i is an outlier; written if there are any


def loud_channels(x: Any) -> Any:
    """Find outlier channels: those whose absmax over a sample of tokens (evenly spaced, the first among them, up to
    `SAMPLE`) exceeds four times the geometric mean over all channels. At most 64; of more, the largest by quarters of
    an octave, of the last quarter the first ones. A channel with a NaN or an infinity is an outlier, one of zeros does
    not count. `x`: float32 (tokens, in), or on the device bf16 as uint16, in a multiple of 256, up to 32,768. Returns
    int64 (count,), or on the device LoudChannels. Source: Dettmers, Lewis, Belkada, Zettlemoyer, "LLM.int8()", 2022:
    few channels are large, in all tokens.

    >>> x = np.ones((2, 256), np.float32)
    >>> x[1, [3, 200]] = 9, -5
    >>> loud_channels(x)
    array([  3, 200])
    """
    wanted = f"rows of a multiple of {MULTIPLE}, up to {MOST_INPUTS}"
    if x.ndim != 2 or x.shape[1] % MULTIPLE or x.shape[1] > MOST_INPUTS:
        raise DeviceError(f"outlier channels: {wanted}, not {x.shape}")
    stride = -(-len(x) // SAMPLE) or 1
    return _on_device(x, stride) if is_device(x) else loudest(np.abs(x[::stride]).max(axis=0, initial=0))


def loudest(peaks: Floats) -> Any:
    """Select outlier channels by the absmax of each channel, see `loud_channels`."""
    bits = peaks.astype(np.float32).view(np.uint32)
    counted = (peaks > 0) & (peaks < 2.0**127)
    least = OVER * np.exp2(np.log2(peaks[counted]).mean(dtype=np.float64)) if counted.any() else np.inf
    loud = np.flatnonzero(~(peaks <= least) if counted.any() else np.zeros(len(peaks), bool))
    bins = bits[loud] >> _BIN
    order = np.argsort(-bins.astype(np.int64), kind="stable")[:LOUD]
    return np.sort(loud[order])


def _on_device(x: Any, stride: int) -> LoudChannels:
    cupy, width, tokens = import_cupy(), x.shape[1], -(-len(x) // stride)
    found = LoudChannels(*(cupy.empty(count, np.uint32) for count in (1, LOUD, width // 32)))
    peaks, done = _peaks(current_device(), width)
    grid = -(-width // 1024), -(-tokens // EACH)
    LOUD_INPUTS.launch(
        grid, x, peaks, done, found.count, found.channels, found.mask, tokens, stride, EACH, defines={"COLS": width}
    )
    return found


@cache
def _peaks(device: int, width: int) -> tuple[Any, Any]:
    """Return the absmax by channel, and the number of blocks that have added theirs; both zero between launches."""
    cupy = import_cupy()
    return cupy.zeros(width, np.uint32), cupy.zeros(1, np.uint32)
