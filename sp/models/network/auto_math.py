"""What `--math auto` decides by: whether int8 is faster on a device, and what rounding a weight costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels.device import capability, current_device
from sp.kernels.path import current_path
from sp.ops.byte_rows.rows import ByteKind, round_rows
from sp.ops.matmul.registry import kernels
from sp.quant import Math

FASTER = {
    ("sm_90a", (9, 0)): "measured",
    ("portable", (9, 0)): "measured",
    ("portable", (8, 6)): "predicted",
    ("portable", (8, 9)): "predicted",
}
"""Where int8 beats BF16, by path and compute capability, and how that is known: measured on an H200
(``results/nvidia-h200/prefill.jsonl``); predicted from rates of tensor cores, four times those of BF16
(``results/nvidia-h200/notes-int8.md``)."""

LEAST_INPUTS = 4096
"""Weights of fewer inputs gain nothing: with 1,024 to 3,072 products took longer than in BF16 on an H200, with 5,120
and more two thirds of the time (``results/nvidia-h200/notes-int8.md``); in between nothing was measured."""
NARROW_INPUTS = {"sm_90a": (1024,)}
"""But so many do by this path: queries, keys and values took 0.78 of BF16's time on an H200, and gate and up have a
kernel of their own, `gemm_bytes_narrow_sm90` (``results/notes/narrow-products.md``). Of fewer nothing was measured."""
ALONE = ("attn_output.weight", "ffn_down.weight", "ssm_out.weight")
"""Ends of a half block, whose inputs no other product shares: of so few, rounding them takes what int8 gains."""

MOST_ERROR = 0.01
"""Relative error, root mean square, that rounding a weight may cost.

Normal weights lose 0.69 % and normal inputs 0.70 %, loud channels apart (``eight_bit_errors``). A weight at the bound
and inputs make 1.22 % of a product, which is below the 1.26 % of blocks of 32, as llama.cpp has them, with Q4_K.
"""
SAMPLED = 16
"""Rows of a weight that its error is taken from, evenly spaced: 320 groups of 5,120 inputs."""


def is_faster(device: str) -> tuple[bool, str]:
    """Whether int8 is known to be faster on a device than BF16, and how, or why not, in a phrase."""
    if device == "cpu":
        return False, "int8 is slower on the CPU"
    path, found = current_path(), capability(current_device())
    if not any(Math.INT8 in kernel.maths for kernel in kernels(path)):
        return False, f"no kernel of path {path} multiplies int8"
    where = f"by path {path} on compute capability {found[0]}.{found[1]}"
    if (path, found) not in FASTER:
        return False, f"int8 is not known to be faster {where}"
    return True, f"int8 was {FASTER[path, found]} to be faster {where}"


def gains(name: str, inputs: int, narrow: Sequence[int], least: int = LEAST_INPUTS) -> bool:
    """Whether int8 is faster for a weight of so many inputs, where it is faster at all.

    Parameters
    ----------
    name : str
    inputs : int
    narrow : sequence of int
        Of `NARROW_INPUTS`, those of a path.
    least : int
        So many gain without these.

    Examples
    --------
    >>> [gains("blk.2.ffn_up.weight", inputs, (1024,)) for inputs in (512, 1024, 2048, 5120)]
    [False, True, False, True]
    >>> gains("blk.2.ffn_down.weight", 1024, (1024,)), gains("blk.2.ffn_up.weight", 1024, ())
    (False, False)
    """
    return inputs >= least or (inputs in narrow and not name.endswith(ALONE))


def sampled_rows(weight: Any) -> Floats:
    """Up to `SAMPLED` rows of a `Weight` in host memory, evenly spaced, float32 (rows, in).

    Examples
    --------
    >>> from sp.quant import Q8_0, Weight
    >>> sampled_rows(Weight.from_floats("w", np.ones((40, 256), np.float32), Q8_0)).shape
    (16, 256)
    """
    rows = np.linspace(0, weight.shape[0] - 1, min(SAMPLED, weight.shape[0])).astype(int)
    found: Floats = weight.format.decode(weight.data[rows])
    return found


def rounding_error(values: Floats) -> float:
    """What one int8 scale for 256 values costs rows, float32 (rows, in): root mean square over that of the values.

    The largest value of each group does not count among these, so that a few large ones do not hide what they cost
    their neighbours; of normal values that adds a hundredth of the error.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((16, 5120), np.float32)
    >>> round(rounding_error(rows), 4)
    0.0072
    >>> rows[:, 7] *= 1000
    >>> round(rounding_error(rows), 2)
    0.2
    """
    found = round_rows(values, ByteKind.INT8, np.empty(0, np.int64), False)
    groups = values.reshape(*found.scales.shape, -1).astype(np.float64)
    lost = np.square(found.codes.reshape(groups.shape) * found.scales[..., None] - groups).sum()
    squares = np.square(groups)
    size = squares.sum() - squares.max(axis=-1).sum()
    return float(np.sqrt(lost / size)) if size > 0 else float("inf") if lost > 0 else 0.0
