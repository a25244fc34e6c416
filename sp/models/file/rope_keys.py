"""Rotary embedding in files: from their keys to a `Rope`, and back."""

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
    """A requested scaling of RoPE: its kind and its factor.

    Attributes
    ----------
    factor : float
        Above 1; unused for kind ``none``.

    Examples
    --------
    >>> str(RopeScaling.parse("yarn:4", "--drafter-rope"))
    'yarn:4'
    """

    kind: Kind
    factor: float = 1.0

    @classmethod
    def parse(cls, text: str, option: str) -> RopeScaling:
        """Parse ``none``, ``linear:FACTOR`` or ``yarn:FACTOR``; ConfigError, with the name of the option, for anything
        else."""
        kind, colon, number = text.partition(":")
        if kind not in get_args(Kind) or (kind == "none") == bool(colon):
            raise ConfigError(f"{option} takes none, linear:FACTOR or yarn:FACTOR, as in yarn:4; got {text!r}")
        if kind == "none":
            return cls("none")
        try:
            factor = float(number)
        except ValueError:
            factor = 0.0
        if not (isfinite(factor) and 1 < factor <= MOST_FACTOR):
            raise ConfigError(f"{option} {text}: the factor must be above 1, and at most {MOST_FACTOR}, as in yarn:4")
        return cls(kind, factor)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.kind if self.kind == "none" else f"{self.kind}:{self.factor:g}"

    def applied(self, config: ModelConfig) -> ModelConfig:
        """Return the model with this scaling only, and the context that it covers. The original context is that of the
        file's YaRN, or else the file's context; the factor multiplies it. The file's own scaling is dropped. YaRN uses
        the edges of the paper, and the paper's attention factor unless the file's YaRN leaves the magnitude of scores
        unchanged. ConfigError if the frequencies come from a tensor of the file, which the scaling would replace, or if
        only windowed layers have RoPE."""
        own = config.rope.scaling
        if not config.rope.dim:
            raise ConfigError(
                f"RoPE {self} cannot be applied to {config.architecture}, whose layers with full attention have no "
                "RoPE; omit the option"
            )
        if own is not None and not isinstance(own, LinearScaling | YarnScaling):
            raise ConfigError(
                f"RoPE {self} cannot be applied to this {config.architecture}: a tensor of its file scales the "
                "frequencies; omit the option"
            )
        # A second YaRN replaces the first, so factors refer to the original context.
        original = own.original_context if isinstance(own, YarnScaling) else config.context
        rope = replace(config.rope, scaling=None, magnitude=1.0)
        if self.kind == "linear":
            rope = replace(rope, scaling=LinearScaling(self.factor))
        elif self.kind == "yarn":
            yarn = YarnScaling(self.factor, original)
            # If the file's YaRN leaves the magnitude of scores unchanged, so does the new one.
            quiet = isinstance(own, YarnScaling) and config.rope.magnitude == 1
            rope = replace(rope, scaling=yarn, magnitude=1.0 if quiet else yarn.attention_factor)
        return replace(config, rope=rope, context=int(original * self.factor))


MOST_FACTOR = 1 << 12  # limit of scaling factors, above any in use
MOST_TURNS = 1e6  # limit of YaRN's beta_fast and beta_slow, far above the 32 and 1 of its authors
ATTENTION_FACTOR, LOG_MULTIPLIER = "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"
MOST_MAGNITUDE = 16.0  # limit of attention factors, which are near 1: scores grow with the square


def read_rope(
    keys: Keys,
    dim: int,
    context: int,
    pairing: Pairing = "halves",
    scaling: Scaling | None = None,
    base: float | None = None,
    quieted: bool = False,
) -> tuple[Rope, int]:
    """Read the rotary embedding from ``rope.freq_base`` and ``rope.scaling.*``, by llama.cpp's rules.

    A factor without a type means linear scaling, ``rope.scale_linear`` is an old name for it, and 0 means none. YaRN's
    original context is the file's context unless it names one. Cosines and sines are multiplied by ``attn_factor``, and
    with YaRN by 1 + 0.1 ln(factor) as well. ``yarn_attn_factor`` has no effect: llama.cpp reads it for Grok only
    (src/models/grok.cpp) and overwrites it if YaRN is on (src/llama-context.cpp), and transformers does not read the
    ``attn_factor`` of a config.json, from which it is converted.

    Parameters
    ----------
    dim, pairing, scaling
        See `Rope`. A `scaling` that the family has read elsewhere excludes one from the keys.
    context : int
        ``context_length``.
    base : float, optional
        ``rope.freq_base`` of files without the key; the key is required if omitted.
    quieted : bool
        True if ``yarn_log_multiplier`` m counts, like transformers' ``mscale_all_dim``: YaRN's factor is divided by 1 +
        0.1 m ln(factor). Otherwise the key is refused.

    Returns
    -------
    rope : Rope
    context : int
        Positions that it covers: `context`, or the result of YaRN if the file names an original context.

    Raises
    ------
    ModelError
        For an invalid value, or a type other than none, linear and yarn.
    """
    base = keys.real("rope.freq_base", above=1.0, default=base)
    from_keys = _scaling(keys, context)
    if from_keys is not None and scaling is not None:
        keys.refuse("rope.scaling.type", "sets a scaling, and tensors of the file another one; sp applies only one")
    if isinstance(from_keys, YarnScaling) and keys.get("rope.scaling.original_context_length") is not None:
        context = max(context, int(from_keys.original_context * from_keys.factor))
    magnitude = 1.0
    if isinstance(from_keys, YarnScaling):
        quiet = _number(keys, LOG_MULTIPLIER, 0.0, least=0.0, most=MOST_MAGNITUDE if quieted else 0.0)
        attention_factor = from_keys.attention_factor
        # At 1 both factors are equal: exactly 1, without the rounding of their quotient.
        magnitude = 1.0 if quiet == 1 else attention_factor / (1 + 0.1 * quiet * log(from_keys.factor))
    magnitude *= _number(keys, ATTENTION_FACTOR, 1.0, most=MOST_MAGNITUDE)
    return Rope(base, dim, pairing, scaling or from_keys, magnitude), context


def rope_metadata(rope: Rope) -> dict[str, Value]:
    """Return the keys that `read_rope` reads, without prefix; no scaling keys for frequencies that come from
    tensors."""
    keys: dict[str, Value] = {"rope.freq_base": rope.base}
    scaling, magnitude = rope.scaling, rope.magnitude
    if isinstance(scaling, LinearScaling):
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    elif isinstance(scaling, YarnScaling):
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling.factor,
            "rope.scaling.original_context_length": scaling.original_context,
        }
        # Keys at their defaults are omitted.
        usual = YarnScaling(1.0, 1)
        for name in ("ext_factor", "beta_fast", "beta_slow"):
            if getattr(scaling, name) != getattr(usual, name):
                keys[f"rope.scaling.yarn_{name}"] = getattr(scaling, name)
        # Readers multiply by YaRN's own factor again; only the rest is stored.
        magnitude /= scaling.attention_factor
    return keys if magnitude == 1 else keys | {ATTENTION_FACTOR: magnitude}


def rope_facts(rope: Rope) -> dict[str, object]:
    """Return facts about the rotary embedding for a trace; ``scaling`` is ``tensor`` if a tensor of the file scales
    frequencies."""
    scaling = rope.scaling
    kind = "linear" if isinstance(scaling, LinearScaling) else "yarn" if isinstance(scaling, YarnScaling) else "tensor"
    named = {"scaling": None if scaling is None else kind}
    own = asdict(rope.scaling) if isinstance(rope.scaling, LinearScaling | YarnScaling) else {}
    return {"base": rope.base, "dim": rope.dim, **named, **own, "magnitude": rope.magnitude}


def _scaling(keys: Keys, context: int) -> LinearScaling | YarnScaling | None:
    """Read the scaling that the keys describe."""
    named = "rope.scaling.factor" if keys.get("rope.scaling.factor") is not None else "rope.scale_linear"
    kind = keys.get("rope.scaling.type")
    if kind is not None and values.text(kind) not in ("none", "linear", "yarn"):
        keys.refuse("rope.scaling.type", f"is {values.preview(kind)}; sp supports none, linear and yarn")
        return None
    if kind == "none":
        return None
    if kind == "yarn" and keys.get(named) is None:
        keys.refuse("rope.scaling.factor", "is missing; YaRN needs it")
    zero = values.real(keys.get(named)) == 0  # llama.cpp treats 0 as no scaling
    factor = 1.0 if zero else _number(keys, named, 1.0, least=1.0, most=MOST_FACTOR)
    if factor == 1:
        return None
    if kind != "yarn":
        return LinearScaling(factor)
    ext = values.real(keys.get("rope.scaling.yarn_ext_factor"))
    unset = ext is not None and ext < 0  # llama.cpp writes a negative number for an unset factor
    return YarnScaling(
        factor,
        keys.count("rope.scaling.original_context_length", default=context, most=1 << 40),
        1.0 if unset else _number(keys, "rope.scaling.yarn_ext_factor", 1.0, least=0.0, most=1.0),
        _number(keys, "rope.scaling.yarn_beta_fast", 32.0, most=MOST_TURNS),
        _number(keys, "rope.scaling.yarn_beta_slow", 1.0, most=MOST_TURNS),
    )


def _number(keys: Keys, key: str, default: float, *, most: float, least: float = 2.0**-20) -> float:
    """Read a number in [least, most]; the default without the key."""
    if keys.get(key) is None:
        return default
    value = keys.real(key, above=0.0 if least else -1.0)
    if least <= value <= most:
        return value
    keys.refuse(key, f"is {value:g}; it must lie in {least:g}..{most:g}")
    return default


FACTORS = tuple(1 << power for power in range(1, MOST_FACTOR.bit_length()))
"""Powers of two only: prompts of similar length use the same factor, and cached keys stay valid between turns."""


def needed_scaling(config: ModelConfig, tokens: int) -> RopeScaling | None:
    """Return YaRN with the smallest of `FACTORS` that covers a prompt of so many tokens.

    Parameters
    ----------
    config : ModelConfig
        With the scaling that the file names, and the context that it covers.

    Returns
    -------
    RopeScaling or None
        Replaces the file's YaRN, if any; None within the context, for prompts that no factor covers, and for models
        that cannot be scaled, see `unscalable`.

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> config = find_shape("qwen3-0.6b").config
    >>> [str(needed_scaling(config, tokens)) for tokens in (config.context, config.context + 1, 131072)]
    ['None', 'yarn:2', 'yarn:4']
    """
    if tokens <= config.context or unscalable(config) is not None:
        return None
    scalings = (RopeScaling("yarn", float(factor)) for factor in FACTORS)
    return next((scaling for scaling in scalings if scaling.applied(config).context >= tokens), None)


def unscalable(config: ModelConfig) -> str | None:
    """Return the reason why YaRN is not applied to a model automatically; None if it is.

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> unscalable(find_shape("qwen3.6-27b").config)
    'it has recurrent layers'
    """
    scaling = config.rope.scaling
    if not config.rope.dim:
        return "its layers with full attention have no RoPE"
    if config.delta_layers:
        return "it has recurrent layers"
    if isinstance(scaling, LinearScaling):
        return "its file scales RoPE linearly"
    if not (scaling is None or isinstance(scaling, YarnScaling)):
        return "a tensor of its file scales RoPE"
    return None


def describe_window(config: ModelConfig, tokens: int | None = None) -> str:
    """Describe in one line how a scoring model reads prompts beyond its context, or a prompt of so many tokens.

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
    prompts = "longer prompts" if tokens is None else f"{tokens:,}"
    if (reason := unscalable(config)) is not None:
        return f"{window}; {prompts} are extrapolated, because {reason}"
    if tokens is not None:
        scaling = needed_scaling(config, tokens)
        return f"{window}; {prompts} are " + (
            "extrapolated" if scaling is None else f"read with YaRN x{scaling.factor:g}"
        )
    # The two smallest factors stand for the whole series.
    first = needed_scaling(config, config.context + 1)
    if first is None:
        return f"{window}; {prompts} are extrapolated"
    steps = [RopeScaling("yarn", factor * first.factor) for factor in (1, 2)]
    ranges = (f"x{step.factor:g} to {step.applied(config).context:,}" for step in steps)
    return f"{window}; {prompts} are read with YaRN: {', '.join(ranges)}, ..."
