"""How a model that scores reads a prompt longer than its window: with YaRN of the factor that the prompt needs."""

from __future__ import annotations

from sp.models.config import ModelConfig
from sp.models.file.asked_scaling import AskedScaling
from sp.models.file.rope_keys import MOST_FACTOR
from sp.ops.rope_scaling import LinearScaling, YarnScaling

FACTORS = tuple(1 << power for power in range(1, MOST_FACTOR.bit_length()))
"""Few, so that prompts of like lengths are read alike, and keys kept from turn to turn seldom change."""


def needed_scaling(config: ModelConfig, tokens: int) -> AskedScaling | None:
    """YaRN of the smallest of `FACTORS` that covers a prompt of so many tokens.

    Parameters
    ----------
    config : ModelConfig
        With the scaling that the file names, and the context that this serves.
    tokens : int

    Returns
    -------
    AskedScaling or None
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
    found = (AskedScaling("yarn", float(factor)) for factor in FACTORS)
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
    steps = [AskedScaling("yarn", factor * first.factor) for factor in (1, 2)]
    shown = (f"x{step.factor:g} to {step.applied(config).context:,}" for step in steps)
    return f"{window}; {what} are read with YaRN: {', '.join(shown)}, ..."
