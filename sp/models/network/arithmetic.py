"""with_math: which weights of a model are multiplied in what, as it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from sp.arrays import Floats
from sp.errors import ConfigError, known_names
from sp.kernels.path import current_path
from sp.kernels.specs.attention.attention_bytes import HEAD_DIM
from sp.kernels.specs.matmul.gemm_bytes import GROUPED
from sp.models.file.recording import layer_of
from sp.models.network.auto_math import (
    LEAST_INPUTS,
    MOST_ERROR,
    NARROW_INPUTS,
    gains,
    is_faster,
    rounding_error,
    sampled_rows,
)
from sp.models.network.trunk import Trunk, mapped
from sp.ops.matmul.packed import PackedWeight
from sp.ops.matmul.registry import kernels
from sp.quant import Math, Weight

AUTO: Final = "auto"
AskedMath = Math | Literal["auto"]
"""What can be asked for: one of `Math`, or int8 where `sp.models.network.auto_math` says so."""

FEWEST_ROWS = 256
"""Narrower matrices (gates of a DeltaNet head) are multiplied in BF16: their results steer all others."""

FIRST_LAYERS = 2
"""So many layers at the start are multiplied in BF16, whatever is asked: their errors go through all later layers.

``eight_bit_large`` (``results/nvidia-h200/eight_bit_large.jsonl``) has how far 27B shapes in int8 are from BF16, by how
many of their first layers are left in it."""

ROUTER = "ffn_gate_inp.weight"
"""Which experts are chosen hangs on small differences."""
EXPERTS = "_exps.weight"


@dataclass(frozen=True)
class Arithmetic:
    """What a model's products of a prompt are made in.

    Attributes
    ----------
    asked : Math or "auto"
    math : Math
        Of the weights that are marked; BF16 where none is.
    weights, matrices : int
        How many matrices of layers are marked to be multiplied in `math` if that is not BF16, and of how many;
        experts are not among them.
    reason : str
        Why `auto` chose so; empty for what was asked by its name.
    attention : Math
        Of many queries at once; BF16 where it is not made in eight bits.
    kept : int
        Bytes of the device that hold the marked matrices rounded from product to product; 0 where each product rounds
        them anew. See `sp.models.device.kept`.
    """

    asked: AskedMath = Math.BF16
    math: Math = Math.BF16
    weights: int = 0
    matrices: int = 0
    reason: str = ""
    attention: Math = Math.BF16
    kept: int = 0

    @property
    def kind(self) -> str:
        """What records are told apart by: a `Math`, whether weights are kept for it, or that attention alone is in one.

        >>> Arithmetic().kind, Arithmetic(math=Math.INT8).kind, Arithmetic(attention=Math.INT8).kind
        ('bf16', 'int8', 'int8 in attention')
        >>> Arithmetic(math=Math.INT8, kept=1 << 30).kind
        'int8 kept'
        """
        if self.kept:
            return kept_rounded(str(self.math))
        alone = self.math is Math.BF16 and self.attention is not Math.BF16
        return in_attention(str(self.attention)) if alone else str(self.math)

    def __str__(self) -> str:
        """One phrase for reports.

        >>> str(Arithmetic(Math.INT8, Math.INT8, 60, 72))
        'int8 for 60 of 72 matrices of layers'
        >>> str(Arithmetic(Math.INT8, Math.INT8, 60, 72, kept=3 << 29))
        'int8 for 60 of 72 matrices of layers, kept rounded in 1.50 GiB'
        """
        made = str(self.math) + (f" for {self.weights} of {self.matrices} matrices of layers" if self.weights else "")
        made += f", kept rounded in {self.kept / 2**30:.2f} GiB" if self.kept else ""
        return f"{made}, by auto: {self.reason}" if self.reason else made

    def as_dict(self) -> dict[str, Any]:
        """For traces."""
        maths = {"asked": str(self.asked), "math": str(self.math), "attention": str(self.attention)}
        return asdict(self) | maths


def read_math(text: str, option: str) -> AskedMath:
    """Read ``bf16``, ``int8``, ``fp8`` or ``auto``; ConfigError, naming the option, for anything else.

    Examples
    --------
    >>> read_math("int8", "--math").name, read_math("auto", "--math")
    ('INT8', 'auto')
    >>> read_math("int4", "--math")
    Traceback (most recent call last):
    sp.errors.ConfigError: --math is 'int4'; did you mean 'int8'? Known: auto, bf16, fp8, int8
    """
    if text == AUTO:
        return "auto"
    try:
        return Math(text)
    except ValueError:
        raise ConfigError(f"{option} is {text!r}{known_names(str(text), (*map(str, Math), AUTO))}") from None


def check_math(asked: AskedMath, device: str) -> None:
    """ConfigError where the kernels of a device make no such products; the CPU makes all of them, slowly."""
    if device == "cpu" or asked in (AUTO, Math.BF16):
        return
    path = current_path()
    if any(asked in kernel.maths for kernel in kernels(path)):
        return
    able = [str(math) for math in Math if any(math in kernel.maths for kernel in kernels(path))]
    needs = " needs a GPU of compute capability 9.0 (H100, H200, GH200);" if asked is Math.FP8 else ":"
    raise ConfigError(f"math {asked}{needs} kernels of path {path} multiply {' or '.join(able)}")


def with_math(
    trunk: Trunk, asked: AskedMath, device: str, sampled: Callable[[Any], Floats] = sampled_rows
) -> tuple[Trunk, str]:
    """The same weights, those of blocks to be multiplied in what is asked where a prompt is read, and why so.

    Left in BF16: the first `FIRST_LAYERS` layers; the head, which reads few tokens; experts and their router; matrices
    of under 256 rows or of a width that is no multiple of 256; vectors; with ``auto`` what int8 would cost too much,
    see `sp.models.network.auto_math`.

    Parameters
    ----------
    trunk : Trunk
    asked : Math or "auto"
    device : {"cpu", "cuda"}
        Where the model runs, or will.
    sampled : callable
        Some rows of a matrix, float32 (rows, in).

    Returns
    -------
    trunk : Trunk
    reason : str
        See `Arithmetic`.

    Raises
    ------
    ConfigError
        See `check_math`.
    """
    check_math(asked, device)
    if asked == Math.BF16:
        return trunk, ""
    if asked != AUTO:
        return _marked(trunk, Math(asked), lambda leaf: True), ""
    faster, reason = is_faster(device)
    if not faster:
        return trunk, reason
    errors: dict[str, float] = {}
    narrow = NARROW_INPUTS.get(current_path(), ())

    def small(leaf: Any) -> bool:
        if not gains(leaf.name, leaf.shape[1], narrow):
            return False
        errors[leaf.name] = rounding_error(sampled(leaf))
        return errors[leaf.name] <= MOST_ERROR

    found = _marked(trunk, Math.INT8, small)
    if not errors:
        return found, f"no matrix has a number of inputs with which int8 is faster ({LEAST_INPUTS:,} is)"
    over = [error for error in errors.values() if error > MOST_ERROR]
    most = f"rounding costs weights at most {max(errors.values(), default=0):.2%}"
    if over:
        most = f"rounding costs {len(over)} weights over {MOST_ERROR:.2%}, at most {max(over):.2%}"
    return found, f"{reason}; {most}"


def _marked(trunk: Trunk, math: Math, chosen: Callable[[Any], bool]) -> Trunk:
    def marked(leaf: Any) -> Any:
        if isinstance(leaf, Weight | PackedWeight) and is_eligible(leaf.name, leaf.shape) and chosen(leaf):
            return replace(leaf, math=math)
        return leaf

    return replace(trunk, blocks=mapped(trunk.blocks, marked))


def attention_math(asked: AskedMath, device: str, head_dim: int) -> Math:
    """What attention of many queries is made in; BF16 where no kernel takes such heads, and with ``auto``.

    Examples
    --------
    >>> attention_math(Math.INT8, "cpu", 128), attention_math(Math.INT8, "cpu", 64), attention_math("auto", "cpu", 128)
    (<Math.INT8: 'int8'>, <Math.BF16: 'bf16'>, <Math.BF16: 'bf16'>)
    """
    able = head_dim == HEAD_DIM and (device == "cpu" or current_path() == "sm_90a")
    return Math(asked) if able and asked != AUTO else Math.BF16


def scoring(made_in: Arithmetic, device: str, head_dim: int) -> Arithmetic:
    """The same of a model that only scores: with ``auto`` its attention is made in eight bits where that is faster.

    What it gets wrong is a few of the tokens kept (``eight_bit_kept``), which a target's answers would be made of.
    """
    if made_in.asked != AUTO or device == "cpu":
        return made_in
    return replace(made_in, attention=attention_math(Math.INT8, device, head_dim))


def in_attention(math: str) -> str:
    """What products in BF16 beside attention in `math` are called.

    >>> in_attention("int8")
    'int8 in attention'
    """
    return f"{math} in attention"


def kept_rounded(math: str) -> str:
    """What products in `math` are called whose weights are kept rounded.

    >>> kept_rounded("int8")
    'int8 kept'
    """
    return f"{math} kept"


def arithmetic(trunk: Trunk, asked: AskedMath, reason: str, attention: Math = Math.BF16, kept: int = 0) -> Arithmetic:
    """What a trunk's products are made in, by the marks on its weights where they lie."""
    maths: list[Math] = []

    def look(leaf: Any) -> Any:
        if hasattr(leaf, "format") and len(leaf.shape) == 2 and not leaf.name.endswith(EXPERTS):
            maths.append(getattr(leaf, "math", Math.BF16))
        return leaf

    mapped(trunk.blocks, look)
    marked = [math for math in maths if math is not Math.BF16]
    return Arithmetic(asked, marked[0] if marked else Math.BF16, len(marked), len(maths), reason, attention, kept)


def is_eligible(name: str, shape: tuple[int, ...], left: int = FIRST_LAYERS) -> bool:
    """Whether a tensor (out, in) of a file may be multiplied in eight bits, be it int8 or e4m3.

    Those of the first `left` layers may not, see `FIRST_LAYERS`; of what belongs to no layer the shape decides.

    Examples
    --------
    >>> is_eligible("blk.2.ffn_up.weight", (17408, 5120)), is_eligible("blk.2.ssm_beta.weight", (48, 5120))
    (True, False)
    >>> is_eligible("blk.1.ffn_up.weight", (17408, 5120)), is_eligible("blk.1.ffn_up.weight", (17408, 5120), left=1)
    (False, True)
    """
    layer = layer_of(name)
    if layer is not None and layer < left:
        return False
    wide = len(shape) == 2 and shape[0] >= FEWEST_ROWS and shape[1] % GROUPED == 0
    return wide and not name.endswith((ROUTER, EXPERTS))
