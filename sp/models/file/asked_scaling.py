"""AskedScaling: a scaling of RoPE that the user asks for, in place of the one that a file tells."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, get_args

from sp.errors import ConfigError
from sp.models.config import ModelConfig
from sp.models.file.rope_keys import MOST_FACTOR
from sp.ops.rope_scaling import LinearScaling, YarnScaling

Kind = Literal["none", "linear", "yarn"]


@dataclass(frozen=True)
class AskedScaling:
    """Which scaling, and by how much.

    Attributes
    ----------
    kind : {"none", "linear", "yarn"}
    factor : float
        Above 1; not for none.

    Examples
    --------
    >>> str(AskedScaling.parse("yarn:4", "--drafter-rope"))
    'yarn:4'
    """

    kind: Kind
    factor: float = 1.0

    @classmethod
    def parse(cls, text: str, option: str) -> AskedScaling:
        """Read ``none``, ``linear:FACTOR`` or ``yarn:FACTOR``; ConfigError, naming the option, for anything else."""
        kind, colon, number = text.partition(":")
        if kind not in get_args(Kind) or (kind == "none") == bool(colon):
            raise ConfigError(f"{option} takes none, linear:FACTOR or yarn:FACTOR, as in yarn:4, not {text!r}")
        if kind == "none":
            return cls("none")
        try:
            factor = float(number)
        except ValueError:
            factor = 0.0
        if not (isfinite(factor) and 1 < factor <= MOST_FACTOR):
            raise ConfigError(f"{option} {text}: the factor is a number above 1, up to {MOST_FACTOR}, as in yarn:4")
        return cls(kind, factor)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.kind if self.kind == "none" else f"{self.kind}:{self.factor:g}"

    def applied(self, config: ModelConfig) -> ModelConfig:
        """The model with this scaling alone, of as many positions as that serves.

        The original context is that of the file's YaRN, or else the file's context; a factor multiplies it. Nothing
        of the file's own scaling stays, and YaRN has the attention factor and the edges of the paper.

        Raises
        ------
        ConfigError
            Frequencies come from a tensor of the file, which the scaling would replace.

        Examples
        --------
        >>> from sp.models.synthetic.shapes import find_shape
        >>> AskedScaling("yarn", 4.0).applied(find_shape("qwen3-0.6b").config).context
        163840
        """
        own = config.rope.scaling
        if own is not None and not isinstance(own, LinearScaling | YarnScaling):
            raise ConfigError(
                f"RoPE {self} cannot be asked of this {config.architecture}: a tensor of its file scales the "
                "frequencies; leave the option out"
            )
        original = own.original_context if isinstance(own, YarnScaling) else config.context
        rope = replace(config.rope, scaling=None, magnitude=1.0)
        if self.kind == "linear":
            rope = replace(rope, scaling=LinearScaling(self.factor))
        elif self.kind == "yarn":
            yarn = YarnScaling(self.factor, original)
            rope = replace(rope, scaling=yarn, magnitude=yarn.attention_factor)
        return replace(config, rope=rope, context=int(original * self.factor))
