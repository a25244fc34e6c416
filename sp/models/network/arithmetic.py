"""with_precision: which weights of a model are multiplied in what, as it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError, known_names
from sp.kernels.device import capability, current_device
from sp.kernels.path import current_path
from sp.kernels.specs.attention.attention_bytes import HEAD_DIM
from sp.kernels.specs.matmul.gemm_bytes import GROUPED
from sp.keywords import recorded
from sp.models.file.weights import layer_of
from sp.models.network.weights import ModelWeights, map_leaves
from sp.ops.byte_rows.rows import ByteKind, round_rows
from sp.ops.matmul.packed import PackedWeight
from sp.ops.matmul.registry import kernels
from sp.quant import Math, Weight

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
SAMPLED = 16  # rows of a weight that its error is taken from, evenly spaced: 320 groups of 5,120 inputs


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
    """Whether int8 is faster for a weight of so many inputs, where it is faster at all. `narrow`: of `NARROW_INPUTS`,
    those of a path. `least`: so many gain without these.

    >>> [gains("blk.2.ffn_up.weight", inputs, (1024,)) for inputs in (512, 1024, 2048, 5120)]
    [False, True, False, True]
    >>> gains("blk.2.ffn_down.weight", 1024, (1024,)), gains("blk.2.ffn_up.weight", 1024, ())
    (False, False)
    """
    return inputs >= least or (inputs in narrow and not name.endswith(ALONE))


def sampled_rows(weight: Any) -> Floats:
    """Up to `SAMPLED` rows of a `Weight` in host memory, evenly spaced, float32 (rows, in).

    >>> from sp.quant import Q8_0, Weight
    >>> sampled_rows(Weight.from_floats("w", np.ones((40, 256), np.float32), Q8_0)).shape
    (16, 256)
    """
    rows = np.linspace(0, weight.shape[0] - 1, min(SAMPLED, weight.shape[0])).astype(int)
    found: Floats = weight.format.decode(weight.data[rows])
    return found


def rounding_error(values: Floats) -> float:
    """What one int8 scale for 256 values costs rows, float32 (rows, in): root mean square over that of the values. The
    largest value of each group does not count among these, so that a few large ones do not hide what they cost their
    neighbours; of normal values that adds a hundredth of the error."""
    found = round_rows(values, ByteKind.INT8, np.empty(0, np.int64), False)
    groups = values.reshape(*found.scales.shape, -1).astype(np.float64)
    lost = np.square(found.codes.reshape(groups.shape) * found.scales[..., None] - groups).sum()
    squares = np.square(groups)
    size = squares.sum() - squares.max(axis=-1).sum()
    return float(np.sqrt(lost / size)) if size > 0 else float("inf") if lost > 0 else 0.0


AUTO: Final = "auto"
AskedPrecision = Math | Literal["auto"]
"""What can be asked for: one of `Math`, or int8 where `sp.models.network.arithmetic` says so."""

FEWEST_ROWS = 256  # narrower matrices (gates of a DeltaNet head) are multiplied in BF16: their results steer all others

FIRST_LAYERS = 2
"""So many layers at the start are multiplied in BF16, whatever is asked: their errors go through all later layers.

``eight_bit_large`` (``results/nvidia-h200/eight_bit_large.jsonl``) has how far 27B shapes in int8 are from BF16, by how
many of their first layers are left in it."""

ROUTER = "ffn_gate_inp.weight"  # which experts are chosen hangs on small differences
EXPERTS = "_exps.weight"


@dataclass(frozen=True)
class Arithmetic:
    """What a model's products of a prompt are made in.

    Attributes
    ----------
    precision : Math
        Of the weights that are marked; BF16 where none is.
    weights, matrices : int
        How many matrices of layers are marked to be multiplied in `precision` if that is not BF16, and of how many;
        experts are not among them.
    reason : str
        Why `auto` chose so; empty for what was asked by its name.
    attention : Math
        Of many queries at once; BF16 where it is not made in 8 bits.
    kept : int
        Bytes of the device that hold the marked matrices rounded from product to product; 0 where each product rounds
        them anew. See `sp.models.device.to_device`.
    """

    asked: AskedPrecision = Math.BF16
    precision: Math = Math.BF16
    weights: int = 0
    matrices: int = 0
    reason: str = ""
    attention: Math = Math.BF16
    kept: int = 0

    @property
    def kind(self) -> str:
        """What records are told apart by: a `Math`, whether weights are kept for it, or that attention alone is in one.

        >>> Arithmetic().kind, Arithmetic(precision=Math.INT8).kind, Arithmetic(attention=Math.INT8).kind
        ('bf16', 'int8', 'int8 in attention')
        >>> Arithmetic(precision=Math.INT8, kept=1 << 30).kind
        'int8 kept'
        """
        if self.kept:
            return prequantized_label(str(self.precision))
        alone = self.precision is Math.BF16 and self.attention is not Math.BF16
        return attention_only_label(str(self.attention)) if alone else str(self.precision)

    def __str__(self) -> str:
        """One phrase for reports."""
        made = str(self.precision) + (
            f" for {self.weights} of {self.matrices} matrices of layers" if self.weights else ""
        )
        made += f", kept rounded in {self.kept / 2**30:.2f} GiB" if self.kept else ""
        return f"{made}, by auto: {self.reason}" if self.reason else made

    def as_dict(self) -> dict[str, Any]:
        """For traces."""
        texts = {"asked": str(self.asked), "precision": str(self.precision), "attention": str(self.attention)}
        return recorded(asdict(self) | texts)


def read_precision(text: str, option: str) -> AskedPrecision:
    """Read ``bf16``, ``int8``, ``fp8`` or ``auto``; ConfigError, naming the option, for anything else.

    Examples
    --------
    >>> read_precision("int8", "--precision").name, read_precision("auto", "--precision")
    ('INT8', 'auto')
    >>> read_precision("int4", "--precision")
    Traceback (most recent call last):
    sp.errors.ConfigError: --precision is 'int4'; did you mean 'int8'? Known: auto, bf16, fp8, int8
    """
    if text == AUTO:
        return "auto"
    try:
        return Math(text)
    except ValueError:
        raise ConfigError(f"{option} is {text!r}{known_names(str(text), (*map(str, Math), AUTO))}") from None


def check_precision(asked: AskedPrecision, device: str) -> None:
    """ConfigError where the kernels of a device make no such products; the CPU makes all of them, slowly."""
    if device == "cpu" or asked in (AUTO, Math.BF16):
        return
    path = current_path()
    if any(asked in kernel.maths for kernel in kernels(path)):
        return
    able = [str(precision) for precision in Math if any(precision in kernel.maths for kernel in kernels(path))]
    needs = " needs a GPU of compute capability 9.0 (H100, H200, GH200);" if asked is Math.FP8 else ":"
    raise ConfigError(f"precision {asked}{needs} kernels of path {path} multiply {' or '.join(able)}")


def with_precision(
    weights: ModelWeights, asked: AskedPrecision, device: str, sampled: Callable[[Any], Floats] = sampled_rows
) -> tuple[ModelWeights, str]:
    """The same weights, those of blocks to be multiplied in what is asked where a prompt is read, and why so.

    Left in BF16: the first `FIRST_LAYERS` layers; the head, which reads few tokens; experts and their router; matrices
    of under 256 rows or of a width that is no multiple of 256; vectors; with ``auto`` what int8 would cost too much,
    see `sp.models.network.arithmetic`.
    `device`: where the model runs, or will. `sampled`: some rows of a matrix, float32 (rows, in). Returns `reason`: see
    `Arithmetic`. ConfigError: see `check_precision`.
    """
    check_precision(asked, device)
    if asked == Math.BF16:
        return weights, ""
    if asked != AUTO:
        return _marked(weights, Math(asked), lambda leaf: True), ""
    faster, reason = is_faster(device)
    if not faster:
        return weights, reason
    errors: dict[str, float] = {}
    narrow = NARROW_INPUTS.get(current_path(), ())

    def small(leaf: Any) -> bool:
        if not gains(leaf.name, leaf.shape[1], narrow):
            return False
        errors[leaf.name] = rounding_error(sampled(leaf))
        return errors[leaf.name] <= MOST_ERROR

    found = _marked(weights, Math.INT8, small)
    if not errors:
        return found, f"no matrix has a number of inputs with which int8 is faster ({LEAST_INPUTS:,} is)"
    over = [error for error in errors.values() if error > MOST_ERROR]
    most = f"rounding costs weights at most {max(errors.values(), default=0):.2%}"
    if over:
        most = f"rounding costs {len(over)} weights over {MOST_ERROR:.2%}, at most {max(over):.2%}"
    return found, f"{reason}; {most}"


def _marked(weights: ModelWeights, precision: Math, chosen: Callable[[Any], bool]) -> ModelWeights:
    def marked(leaf: Any) -> Any:
        if isinstance(leaf, Weight | PackedWeight) and is_eligible(leaf.name, leaf.shape) and chosen(leaf):
            return replace(leaf, math=precision)
        return leaf

    return replace(weights, blocks=map_leaves(weights.blocks, marked))


def attention_precision(asked: AskedPrecision, device: str, head_dim: int) -> Math:
    """What attention of many queries is made in; BF16 where no kernel takes such heads, and with ``auto``."""
    able = head_dim == HEAD_DIM and (device == "cpu" or current_path() == "sm_90a")
    return Math(asked) if able and asked != AUTO else Math.BF16


def scoring(made_in: Arithmetic, device: str, head_dim: int) -> Arithmetic:
    """The same of a model that only scores: with ``auto`` its attention is made in 8 bits where that is faster.
    What it gets wrong is a few of the tokens kept (``eight_bit_kept``), which a target's answers would be made of."""
    if made_in.asked != AUTO or device == "cpu":
        return made_in
    return replace(made_in, attention=attention_precision(Math.INT8, device, head_dim))


def attention_only_label(precision: str) -> str:
    """What products in BF16 beside attention in `precision` are called.

    >>> attention_only_label("int8")
    'int8 in attention'
    """
    return f"{precision} in attention"


def prequantized_label(precision: str) -> str:
    """What products in `precision` are called whose weights are kept rounded.

    >>> prequantized_label("int8")
    'int8 kept'
    """
    return f"{precision} kept"


def arithmetic(
    weights: ModelWeights, asked: AskedPrecision, reason: str, attention: Math = Math.BF16, kept: int = 0
) -> Arithmetic:
    """What a weights's products are made in, by the marks on its weights where they lie."""
    precisions: list[Math] = []

    def look(leaf: Any) -> Any:
        if hasattr(leaf, "format") and len(leaf.shape) == 2 and not leaf.name.endswith(EXPERTS):
            precisions.append(getattr(leaf, "math", Math.BF16))
        return leaf

    map_leaves(weights.blocks, look)
    marked = [precision for precision in precisions if precision is not Math.BF16]
    return Arithmetic(asked, marked[0] if marked else Math.BF16, len(marked), len(precisions), reason, attention, kept)


def is_eligible(name: str, shape: tuple[int, ...], left: int = FIRST_LAYERS) -> bool:
    """Whether a tensor (out, in) of a file may be multiplied in int8 or fp8. Those of the first
    `left` layers may not, see `FIRST_LAYERS`; of what belongs to no layer the shape decides."""
    layer = layer_of(name)
    if layer is not None and layer < left:
        return False
    wide = len(shape) == 2 and shape[0] >= FEWEST_ROWS and shape[1] % GROUPED == 0
    return wide and not name.endswith((ROUTER, EXPERTS))
