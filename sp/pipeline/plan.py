"""Whether compression pays for a prompt, and why not when it does not."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sp.models import ModelConfig
from sp.models.cost import flops
from sp.pipeline.options import Compress

LONGEST = 1 << 22


@dataclass(frozen=True)
class Decision:
    """What was decided for one prompt.

    Parameters
    ----------
    activated : bool
        Whether the target reads a selection instead of the whole prompt.
    reason : str
        One sentence for the report.
    break_even_tokens : int or None
        Predicted prompt length above which compression is cheaper; None if there is none.
    predicted_speedup : float
        Predicted cost of the full prefill over that of drafter + selection, in FLOP.
    """

    activated: bool
    reason: str
    break_even_tokens: int | None
    predicted_speedup: float


def speedup(target: ModelConfig, drafter: ModelConfig, tokens: int, keep_ratio: float) -> float:
    """FLOP of a full prefill over FLOP of drafter prefill + target prefill of the kept tokens."""
    kept = max(1, ceil(keep_ratio * tokens))
    return flops(target, tokens) / (flops(drafter, tokens) + flops(target, kept))


def break_even(target: ModelConfig, drafter: ModelConfig, keep_ratio: float, fixed_tokens: int = 0) -> int | None:
    """Shortest prompt, to within 1 %, for which compression is predicted to be cheaper.

    `fixed_tokens` must be kept at any length (question, chat markup), so a prompt has to be at least
    `fixed_tokens / keep_ratio` long. Compression pays from there on or, where the drafter's attention grows
    faster than the target's, not at all.
    """
    tokens = max(1, ceil(fixed_tokens / keep_ratio))
    while tokens <= LONGEST:
        if speedup(target, drafter, tokens, keep_ratio) > 1:
            return tokens
        tokens = ceil(tokens * 1.01)
    return None


def decide(
    target: ModelConfig,
    drafter: ModelConfig | None,
    *,
    tokens: int,
    protected: int,
    keep_ratio: float,
    compress: Compress,
    threshold: int = 0,
) -> Decision:
    """Decide for a prompt of `tokens` tokens of which `protected` must be kept.

    With `compress="auto"` prompts below `threshold` tokens are read whole whatever is predicted.
    """
    if drafter is None:
        return Decision(False, "no drafter was given", None, 1.0)
    length = break_even(target, drafter, keep_ratio, protected) if keep_ratio < 1 else None
    gain = speedup(target, drafter, tokens, keep_ratio)
    if compress == "off":
        return Decision(False, "compression is switched off", length, gain)
    if compress == "always":
        return Decision(True, "compression was asked for whatever it costs", length, gain)
    if tokens < threshold:
        return Decision(False, f"the prompt has {tokens} tokens, below the threshold of {threshold}", length, gain)
    if keep_ratio == 1:
        return Decision(False, "keep_ratio is 1, so every token is kept", None, gain)
    if length is None:
        return Decision(False, "the drafter is predicted to cost more than it saves at any length", None, gain)
    if tokens < length:
        return Decision(False, f"the prompt has {tokens} tokens, below the break-even of {length}", length, gain)
    return Decision(True, f"predicted {gain:.1f}x less prefill work", length, gain)
