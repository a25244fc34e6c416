"""What files say of rotary embedding: their keys to a `Rope` and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import isfinite, log
from typing import Literal, get_args

from sp import values
from sp.errors import ConfigError
from sp.gguf import Value
from sp.models.config import ModelConfig
from sp.models.file.metadata_keys import Keys
from sp.ops.rope import LinearScaling, Pairing, Rope, Scaling, YarnScaling

Kind = Literal["none", "linear", "yarn"]


@dataclass(frozen=True)
class RopeScaling:
    """Which scaling, and by how much.

    Attributes
    ----------
    factor : float
        Above 1; not for none.

    Examples
    --------
    >>> str(RopeScaling.parse("yarn:4", "--drafter-rope"))
    'yarn:4'
    """

    kind: Kind
    factor: float = 1.0

    @classmethod
    def parse(cls, text: str, option: str) -> RopeScaling:
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
        """The model with this scaling alone, of as many positions as that serves. The original context is that of the
        file's YaRN, or else the file's context; a factor multiplies it. Nothing of the file's own scaling stays, and
        YaRN has the edges of the paper, and its attention factor unless the file's YaRN leaves scores as they are.
        ConfigError: frequencies come from a tensor of the file, which the scaling would replace, or only layers with a
        window have RoPE."""
        own = config.rope.scaling
        if not config.rope.dim:
            raise ConfigError(
                f"RoPE {self} cannot be asked of {config.architecture}, whose layers that see everything have none; "
                "leave the option out"
            )
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
            quiet = isinstance(own, YarnScaling) and config.rope.magnitude == 1
            rope = replace(rope, scaling=yarn, magnitude=1.0 if quiet else yarn.attention_factor)
        return replace(config, rope=rope, context=int(original * self.factor))


MOST_FACTOR = 1 << 12  # more than any model is stretched by
MOST_TURNS = 1e6  # of YaRN's pairs within the original context: far beyond the 32 and 1 of its authors
ATTENTION_FACTOR, LOG_MULTIPLIER = "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"
MOST_LOUDNESS = 16.0  # of attention factors, which lie near 1: scores grow by the square


def read_rope(
    keys: Keys,
    dim: int,
    context: int,
    pairing: Pairing = "halves",
    scaling: Scaling | None = None,
    base: float | None = None,
    quieted: bool = False,
) -> tuple[Rope, int]:
    """Rotary embedding as ``rope.freq_base`` and ``rope.scaling.*`` say, by llama.cpp's rules.

    Without a type a factor means linear scaling, ``rope.scale_linear`` is an old name of it, and 0 means none. YaRN's
    original context is the file's own if it names none. Cosines and sines are multiplied by ``attn_factor``, and with
    YaRN by 1 + 0.1 ln(factor) as well. ``yarn_attn_factor`` has no effect: llama.cpp reads it for Grok alone
    (src/models/grok.cpp) and overwrites it where YaRN is on (src/llama-context.cpp), and the ``attn_factor`` of a
    config.json, from which it is converted, is nothing that transformers reads.
    `dim`, `pairing`, `scaling`: see `Rope`. A scaling that the family has read elsewhere leaves no room for one of the
    keys. `context`: ``context_length``. `base`: ``rope.freq_base`` of files that do not tell it; needed if left out.
    `quieted`: whether ``yarn_log_multiplier`` m counts, as transformers' ``mscale_all_dim``: YaRN's factor is divided
    by 1 + 0.1 m ln(factor); elsewhere the key is refused. Returns `context`: positions that it serves: `context`, or
    what YaRN makes of an original context that the file names. ModelError for a senseless value, or a type other than
    none, linear and yarn.
    """
    base = keys.real("rope.freq_base", above=1.0, default=base)
    told = _scaling(keys, context)
    if told is not None and scaling is not None:
        keys.refuse("rope.scaling.type", "asks for a scaling, and tensors of the file for another; sp applies only one")
    if isinstance(told, YarnScaling) and keys.get("rope.scaling.original_context_length") is not None:
        context = max(context, int(told.original_context * told.factor))
    magnitude = 1.0
    if isinstance(told, YarnScaling):
        quiet = _number(keys, LOG_MULTIPLIER, 0.0, least=0.0, most=MOST_LOUDNESS if quieted else 0.0)
        magnitude = 1.0 if quiet == 1 else told.attention_factor / (1 + 0.1 * quiet * log(told.factor))
    magnitude *= _number(keys, ATTENTION_FACTOR, 1.0, most=MOST_LOUDNESS)
    return Rope(base, dim, pairing, scaling or told, magnitude), context


def rope_metadata(rope: Rope) -> dict[str, Value]:
    """The keys that `read_rope` reads, without prefix; none for frequencies that come from tensors."""
    keys: dict[str, Value] = {"rope.freq_base": rope.base}
    scaling, loudness = rope.scaling, rope.magnitude
    if isinstance(scaling, LinearScaling):
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    elif isinstance(scaling, YarnScaling):
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling.factor,
            "rope.scaling.original_context_length": scaling.original_context,
        }
        usual = YarnScaling(1.0, 1)
        for name in ("ext_factor", "beta_fast", "beta_slow"):
            if getattr(scaling, name) != getattr(usual, name):
                keys[f"rope.scaling.yarn_{name}"] = getattr(scaling, name)
        loudness /= scaling.attention_factor
    return keys if loudness == 1 else keys | {ATTENTION_FACTOR: loudness}


def rope_facts(rope: Rope) -> dict[str, object]:
    """What a trace says of rotary embedding; ``scaling`` is ``tensor`` where one of the file scales frequencies."""
    scaling = rope.scaling
    kind = "linear" if isinstance(scaling, LinearScaling) else "yarn" if isinstance(scaling, YarnScaling) else "tensor"
    named = {"scaling": None if scaling is None else kind}
    own = asdict(rope.scaling) if isinstance(rope.scaling, LinearScaling | YarnScaling) else {}
    return {"base": rope.base, "dim": rope.dim, **named, **own, "magnitude": rope.magnitude}


def _scaling(keys: Keys, context: int) -> LinearScaling | YarnScaling | None:
    """What the keys ask for."""
    named = "rope.scaling.factor" if keys.get("rope.scaling.factor") is not None else "rope.scale_linear"
    kind = keys.get("rope.scaling.type")
    if kind is not None and values.text(kind) not in ("none", "linear", "yarn"):
        keys.refuse("rope.scaling.type", f"is {values.shown(kind)}; sp reads none, linear and yarn")
        return None
    if kind == "none":
        return None
    if kind == "yarn" and keys.get(named) is None:
        keys.refuse("rope.scaling.factor", "is missing; YaRN needs it")
    zero = values.real(keys.get(named)) == 0  # as much as none, to llama.cpp
    factor = 1.0 if zero else _number(keys, named, 1.0, least=1.0, most=MOST_FACTOR)
    if factor == 1:
        return None
    if kind != "yarn":
        return LinearScaling(factor)
    ext = values.real(keys.get("rope.scaling.yarn_ext_factor"))
    unset = ext is not None and ext < 0  # as llama.cpp writes one that it was not told
    return YarnScaling(
        factor,
        keys.count("rope.scaling.original_context_length", default=context, most=1 << 40),
        1.0 if unset else _number(keys, "rope.scaling.yarn_ext_factor", 1.0, least=0.0, most=1.0),
        _number(keys, "rope.scaling.yarn_beta_fast", 32.0, most=MOST_TURNS),
        _number(keys, "rope.scaling.yarn_beta_slow", 1.0, most=MOST_TURNS),
    )


def _number(keys: Keys, key: str, default: float, *, most: float, least: float = 2.0**-20) -> float:
    """A number in [least, most], or the default where there is none."""
    if keys.get(key) is None:
        return default
    value = keys.real(key, above=0.0 if least else -1.0)
    if least <= value <= most:
        return value
    keys.refuse(key, f"is {value:g}; it must lie in {least:g}..{most:g}")
    return default


FACTORS = tuple(1 << power for power in range(1, MOST_FACTOR.bit_length()))
"""Few, so that prompts of like lengths are read alike, and keys kept from turn to turn seldom change."""


def needed_scaling(config: ModelConfig, tokens: int) -> RopeScaling | None:
    """YaRN of the smallest of `FACTORS` that covers a prompt of so many tokens.

    Parameters
    ----------
    config : ModelConfig
        With the scaling that the file names, and the context that this serves.

    Returns
    -------
    RopeScaling or None
        In place of the file's YaRN, if it has one; None within the window, beyond what all factors cover, and for
        models that are left as they are, see `unscalable`.

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> config = find_shape("qwen3-0.6b").config
    >>> [str(needed_scaling(config, tokens)) for tokens in (config.context, config.context + 1, 131072)]
    ['None', 'yarn:2', 'yarn:4']
    """
    if tokens <= config.context or unscalable(config) is not None:
        return None
    found = (RopeScaling("yarn", float(factor)) for factor in FACTORS)
    return next((scaling for scaling in found if scaling.applied(config).context >= tokens), None)


def unscalable(config: ModelConfig) -> str | None:
    """Why a model is not given YaRN unasked; None where it is.

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> unscalable(find_shape("qwen3.6-27b").config)
    'it has recurrent layers'
    """
    scaling = config.rope.scaling
    if not config.rope.dim:
        return "layers that see everything have no RoPE"
    if config.delta_layers:
        return "it has recurrent layers"
    if isinstance(scaling, LinearScaling):
        return "its file scales RoPE linearly"
    if not (scaling is None or isinstance(scaling, YarnScaling)):
        return "a tensor of its file scales RoPE"
    return None


def describe_window(config: ModelConfig, tokens: int | None = None) -> str:
    """How a model that scores reads prompts beyond its window, or one of so many tokens, in a line.

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> config = find_shape("qwen3-0.6b").config
    >>> describe_window(config)
    'window 40,960 tokens; longer prompts are read with YaRN: x2 to 81,920, x4 to 163,840, ...'
    >>> describe_window(config, 131072)
    'window 40,960 tokens; 131,072 are read with YaRN x4'
    >>> describe_window(config, 8192)
    'window 40,960 tokens'
    """
    window = f"window {config.context:,} tokens"
    if tokens is not None and tokens <= config.context:
        return window
    what = "longer prompts" if tokens is None else f"{tokens:,}"
    if (reason := unscalable(config)) is not None:
        return f"{window}; {what} are extrapolated, for {reason}"
    if tokens is not None:
        scaling = needed_scaling(config, tokens)
        return f"{window}; {what} are " + ("extrapolated" if scaling is None else f"read with YaRN x{scaling.factor:g}")
    first = needed_scaling(config, config.context + 1)
    if first is None:
        return f"{window}; {what} are extrapolated"
    steps = [RopeScaling("yarn", factor * first.factor) for factor in (1, 2)]
    shown = (f"x{step.factor:g} to {step.applied(config).context:,}" for step in steps)
    return f"{window}; {what} are read with YaRN: {', '.join(shown)}, ..."
