"""with_precision: marks the weights of a model that are multiplied in int8 or fp8, as requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError, known_names
from sp.kernels.device import capability, current_device
from sp.kernels.path import current_path
from sp.kernels.specs.attention.attention_bytes import HEAD_DIMS, KEYS_ONLY
from sp.kernels.specs.matmul.gemm_bytes import MOST_BY_PATH, MOST_INPUTS, MULTIPLE
from sp.keywords import recorded
from sp.models.config import ModelConfig
from sp.models.file.weights import layer_of
from sp.models.network.weights import ModelWeights, map_leaves
from sp.ops.byte_rows.rows import ByteKind, block_of, rotated, round_rows
from sp.ops.matmul.packed import PackedWeight
from sp.ops.matmul.registry import kernels
from sp.quant import Math, Weight

FASTER = {
    ("sm_90a", (9, 0)): "measured",
    ("portable", (9, 0)): "measured",
    ("portable", (8, 6)): "predicted",
    ("portable", (8, 9)): "predicted",
}
"""Paths and compute capabilities on which int8 is faster than BF16, with the evidence: measured on an H200
(``results/nvidia-h200/prefill.jsonl``), or predicted from the rates of tensor cores, four times those of BF16
(``results/nvidia-h200/notes-int8.md``)."""

LEAST_INPUTS = 4096
"""Weights with fewer inputs gain nothing: on an H200 products with 1,024 to 3,072 inputs took longer than in BF16, with
5,120 and more two thirds of the time (``results/nvidia-h200/notes-int8.md``); nothing was measured in between."""
NARROW_INPUTS = {"sm_90a": (1024,)}
"""Exceptions by path: on an H200 queries, keys and values of a 0.6B drafter take 0.93 of BF16's time, gate and up 0.85,
with rounding and search of outlier channels (``results/nvidia-h200/matmul_bytes.jsonl``). Fewer inputs were not
measured."""
ALONE = ("attn_output.weight", "ffn_down.weight", "ssm_out.weight")
"""Last products of a sublayer, whose inputs no other product shares: if narrow, quantising these inputs costs what int8
gains."""

MOST_ERROR = 0.012
"""Largest relative error, root mean square, of a quantised weight.

Normal weights lose 0.80 % with 1,024 inputs and 0.97 % with 17,408, the matrices of two real checkpoints 0.76 to
0.96 %. A row of which a few blocks are much larger than the others loses more: rotation spreads values within a block.
"""
SAMPLED = 16  # evenly spaced rows of a weight for which its error is measured


def is_faster(device: str) -> tuple[bool, str]:
    """Return True if int8 is known to be faster than BF16 on a device, and a phrase with the evidence or the reason why
    not."""
    if device == "cpu":
        return False, "int8 is slower on the CPU"
    path, compute = current_path(), capability(current_device())
    if not any(Math.INT8 in kernel.maths for kernel in kernels(path)):
        return False, f"no kernel of path {path} multiplies int8"
    where = f"by path {path} on compute capability {compute[0]}.{compute[1]}"
    if (path, compute) not in FASTER:
        return False, f"int8 is not known to be faster {where}"
    return True, f"int8 was {FASTER[path, compute]} to be faster {where}"


def gains(name: str, inputs: int, narrow: Sequence[int], least: int = LEAST_INPUTS) -> bool:
    """Return True if int8 is faster for a weight with so many inputs, on a device where it is faster at all. `narrow`:
    exceptions of the path, see `NARROW_INPUTS`. `least`: number of inputs from which every weight gains.

    >>> [gains("blk.2.ffn_up.weight", inputs, (1024,)) for inputs in (512, 1024, 2048, 5120)]
    [False, True, False, True]
    >>> gains("blk.2.ffn_down.weight", 1024, (1024,)), gains("blk.2.ffn_up.weight", 1024, ())
    (False, False)
    """
    return inputs >= least or (inputs in narrow and not name.endswith(ALONE))


def sampled_rows(weight: Any) -> Floats:
    """Return up to `SAMPLED` evenly spaced rows of a `Weight` in host memory, float32 (rows, in).

    >>> from sp.quant import Q8_0, Weight
    >>> sampled_rows(Weight.from_floats("w", np.ones((40, 256), np.float32), Q8_0)).shape
    (16, 256)
    """
    rows = np.linspace(0, weight.shape[0] - 1, min(SAMPLED, weight.shape[0])).astype(int)
    values: Floats = weight.format.decode(weight.data[rows])
    return values


def rounding_error(values: Floats) -> float:
    """Return the error of rows, float32 (rows, in), quantised to int8: its root mean square relative to that of the
    values."""
    quantised = round_rows(values, ByteKind.INT8, np.empty(0, np.int64), False)
    exact = rotated(values).astype(np.float64) * block_of(values.shape[1]) ** -0.5
    error = np.square(quantised.codes * quantised.scales[:, None] - exact).sum()
    size = np.square(exact).sum()
    return float(np.sqrt(error / size)) if size > 0 else 0.0


AUTO: Final = "auto"
AskedPrecision = Math | Literal["auto"]
"""A requested precision: one of `Math`, or int8 for the weights that `sp.models.network.arithmetic` selects."""

FEWEST_ROWS = 256  # smaller matrices (gates of DeltaNet heads) stay in BF16: their results control all others

FIRST_LAYERS = 2
"""Number of first layers that always stay in BF16, because their errors pass through all later layers.

``eight_bit_large`` (``results/nvidia-h200/eight_bit_large.jsonl``) measures the distance of 27B shapes in int8 from
BF16, by the number of first layers that stay in BF16."""

ROUTER = "ffn_gate_inp.weight"  # the choice of experts depends on small differences
EXPERTS = "_exps.weight"


@dataclass(frozen=True)
class Arithmetic:
    """Precision of a model's products of a prompt.

    Attributes
    ----------
    asked : AskedPrecision
        The requested precision.
    precision : Math
        Precision of the marked weights; BF16 if none is marked.
    weights, matrices : int
        Number of matrices of layers that are marked to be multiplied in `precision`, if that is not BF16, and their
        total number; experts are not counted.
    reason : str
        Reason for the choice of `auto`; empty if a precision was requested by name.
    attention : Math
        Precision of attention of many queries; BF16 if it uses no 8-bit kernel.
    kept : int
        Bytes on the device of the prequantized copies of the marked matrices; 0 if each product quantises them again.
        See `sp.models.device.prequantized`.
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
        """Label of records: a `Math`, with a suffix if weights are prequantized, or if only attention uses one.

        >>> Arithmetic().kind, Arithmetic(precision=Math.INT8).kind, Arithmetic(attention=Math.INT8).kind
        ('bf16', 'int8', 'int8 in attention')
        >>> Arithmetic(precision=Math.INT8, kept=1 << 30).kind
        'prequantized int8'
        """
        if self.kept:
            return prequantized_label(str(self.precision))
        alone = self.precision is Math.BF16 and self.attention is not Math.BF16
        return attention_only_label(str(self.attention)) if alone else str(self.precision)

    def __str__(self) -> str:
        """Describe in one phrase for reports."""
        text = str(self.precision) + (
            f" for {self.weights} of {self.matrices} matrices of layers" if self.weights else ""
        )
        text += f", prequantized in {self.kept / 2**30:.2f} GiB" if self.kept else ""
        return f"{text}, by auto: {self.reason}" if self.reason else text

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for traces."""
        texts = {"asked": str(self.asked), "precision": str(self.precision), "attention": str(self.attention)}
        return recorded(asdict(self) | texts)


def read_precision(text: str, option: str) -> AskedPrecision:
    """Parse ``bf16``, ``int8``, ``fp8`` or ``auto``; ConfigError, with the name of the option, for anything else.

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


def check_precision(requested: AskedPrecision, device: str) -> None:
    """Raise ConfigError if the kernels of a device do not support a precision; the CPU supports all of them, slowly."""
    if device == "cpu" or requested in (AUTO, Math.BF16):
        return
    path = current_path()
    if any(requested in kernel.maths for kernel in kernels(path)):
        return
    supported = [str(precision) for precision in Math if any(precision in kernel.maths for kernel in kernels(path))]
    needs = " needs a GPU of compute capability 9.0 (H100, H200, GH200);" if requested is Math.FP8 else ":"
    raise ConfigError(f"precision {requested}{needs} kernels of path {path} multiply {' or '.join(supported)}")


def with_precision(
    weights: ModelWeights, requested: AskedPrecision, device: str, sampled: Callable[[Any], Floats] = sampled_rows
) -> tuple[ModelWeights, str]:
    """Mark the weights of blocks that are multiplied in the requested precision when a prompt is read; return them with
    a reason.

    Left in BF16: the first `FIRST_LAYERS` layers; the head, which reads few tokens; experts and their router; matrices
    of under 256 rows, or of a width that is not a multiple of 256 or that no kernel of the path rounds; vectors; with
    ``auto`` also weights for which int8 would lose too much, see `sp.models.network.arithmetic`. `device`: where the
    model will run. `sampled`: returns some rows of a matrix, float32 (rows, in). Returns `reason`: see `Arithmetic`.
    ConfigError: see `check_precision`.
    """
    check_precision(requested, device)
    if requested == Math.BF16:
        return weights, ""
    widest = MOST_INPUTS if device == "cpu" else MOST_BY_PATH[current_path()]
    if requested != AUTO:
        return _marked(weights, Math(requested), widest, lambda leaf: True), ""
    faster, reason = is_faster(device)
    if not faster:
        return weights, reason
    # Errors are measured only for weights that would gain, as sampling reads them from disk.
    errors: dict[str, float] = {}
    narrow = NARROW_INPUTS.get(current_path(), ())

    def is_exact(leaf: Any) -> bool:
        if not gains(leaf.name, leaf.shape[1], narrow):
            return False
        errors[leaf.name] = rounding_error(sampled(leaf))
        return errors[leaf.name] <= MOST_ERROR

    marked = _marked(weights, Math.INT8, widest, is_exact)
    if not errors:
        return marked, f"no matrix has a number of inputs with which int8 is faster ({LEAST_INPUTS:,} is)"
    # The reason names the decisive number, for reports.
    over = [error for error in errors.values() if error > MOST_ERROR]
    most = f"rounding costs weights at most {max(errors.values(), default=0):.2%}"
    if over:
        most = f"rounding costs {len(over)} weights over {MOST_ERROR:.2%}, at most {max(over):.2%}"
    return marked, f"{reason}; {most}"


def _marked(weights: ModelWeights, precision: Math, widest: int, chosen: Callable[[Any], bool]) -> ModelWeights:
    def marked(leaf: Any) -> Any:
        matrix = isinstance(leaf, Weight | PackedWeight) and is_eligible(leaf.name, leaf.shape)
        if matrix and leaf.shape[1] <= widest and chosen(leaf):
            return replace(leaf, math=precision)
        return leaf

    return replace(weights, blocks=map_leaves(weights.blocks, marked))


def attention_precision(requested: AskedPrecision, device: str, config: ModelConfig) -> Math:
    """Return the precision of attention of many queries; BF16 with ``auto``, and if the kernels support no layer."""
    supported = bool(byte_layers(config)) and (device == "cpu" or current_path() == "sm_90a")
    return Math(requested) if supported and requested != AUTO else Math.BF16


def byte_layers(config: ModelConfig) -> list[int]:
    """Return the attention layers that 8-bit kernels support when they read all keys, see
    `sp.ops.attention.byte_attention.attend.fits`: heads of 64 or 128, or of 256 without a window; none with capped
    scores. Sinks, which only weights tell, are not looked at."""
    if config.attention_softcap is not None:
        return []
    sizes = {layer: config.heads_of(layer).head_dim for layer in config.attention_layers}
    return [
        layer
        for layer, size in sizes.items()
        if size in HEAD_DIMS or (size == KEYS_ONLY and config.window_of(layer) is None)
    ]


def scoring(made_in: Arithmetic, device: str, config: ModelConfig) -> Arithmetic:
    """Return the arithmetic of a model that only scores: with ``auto`` its attention uses int8 where that is faster.
    The errors change a few of the selected tokens (``eight_bit_kept``), while a target's answers would depend on them
    directly."""
    if made_in.asked != AUTO or device == "cpu":
        return made_in
    return replace(made_in, attention=attention_precision(Math.INT8, device, config))


def attention_only_label(precision: str) -> str:
    """Return the label of products in BF16 with attention in `precision`.

    >>> attention_only_label("int8")
    'int8 in attention'
    """
    return f"{precision} in attention"


def prequantized_label(precision: str) -> str:
    """Return the label of products in `precision` with prequantized weights.

    >>> prequantized_label("int8")
    'prequantized int8'
    """
    return f"prequantized {precision}"


def arithmetic(
    weights: ModelWeights,
    requested: AskedPrecision,
    reason: str,
    attention: Math = Math.BF16,
    prequantized_bytes: int = 0,
) -> Arithmetic:
    """Describe the precision of a model's products, from the marks on its weights."""
    precisions: list[Math] = []

    def look(leaf: Any) -> Any:
        # Split and packed weights have a format as well; norms and expert stacks do not count.
        if hasattr(leaf, "format") and len(leaf.shape) == 2 and not leaf.name.endswith(EXPERTS):
            precisions.append(getattr(leaf, "math", Math.BF16))
        return leaf

    map_leaves(weights.blocks, look)
    marked = [precision for precision in precisions if precision is not Math.BF16]
    return Arithmetic(
        requested,
        marked[0] if marked else Math.BF16,
        len(marked),
        len(precisions),
        reason,
        attention,
        prequantized_bytes,
    )


def is_eligible(name: str, shape: tuple[int, ...], first: int = FIRST_LAYERS) -> bool:
    """Return True if a tensor (out, in) of a file may be multiplied in int8 or fp8. Those of the first `first` layers
    may not, see `FIRST_LAYERS`; for tensors outside the layers the shape decides."""
    layer = layer_of(name)
    if layer is not None and layer < first:
        return False
    wide = len(shape) == 2 and shape[0] >= FEWEST_ROWS and shape[1] % MULTIPLE == 0 and shape[1] <= MOST_INPUTS
    return wide and not name.endswith((ROUTER, EXPERTS))
