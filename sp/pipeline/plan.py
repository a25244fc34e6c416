"""Whether compression pays for a prompt, and why not when it does not."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from sp.models import ModelConfig
from sp.models.cost import flops
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.pipeline.measured import BreakEven
from sp.pipeline.options import Compress
from sp.scoring import Scorer
from sp.selection import token_budget

LONGEST = 1 << 22
LEAST = 64
"""Tokens that `compress="auto"` must be able to choose: sink and tail take half of them, a chunk the other half."""


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
        Prompt length above which compression is cheaper; None if there is none.
    predicted_speedup : float
        Predicted cost of the full prefill over that of drafter + selection, in FLOP.
    break_even_source : {"predicted", "measured"}
        Where `break_even_tokens` comes from.
    """

    activated: bool
    reason: str
    break_even_tokens: int | None
    predicted_speedup: float
    break_even_source: Literal["predicted", "measured"] = "predicted"


def speedup(
    target: ModelConfig,
    drafter: ModelConfig,
    tokens: int,
    keep_ratio: float,
    scorer: Scorer | None = None,
    sparse: FlashPrefill | None = None,
    fixed_tokens: int = 0,
) -> float:
    """FLOP of a full prefill over FLOP of scoring + target prefill of the kept tokens.

    What scoring costs is for the scorer to say (its attention may be sparse, or it may run no model); without one it
    is a dense reading by the drafter. With `sparse` the target's attention reads what that is expected to list.
    `fixed_tokens` of the prompt are kept whatever the ratio is.
    """

    def reading(n: int) -> float:
        return flops(target, n, density=1.0 if sparse is None else expected_density(sparse, n))

    kept = max(1, token_budget(keep_ratio, tokens, fixed_tokens))
    reader = target if scorer is not None and scorer.reads_target else drafter
    scoring = flops(reader, tokens) if scorer is None else scorer.flops(reader, tokens)
    return reading(tokens) / (scoring + reading(kept))


def break_even(
    target: ModelConfig,
    drafter: ModelConfig,
    keep_ratio: float,
    fixed_tokens: int = 0,
    scorer: Scorer | None = None,
    sparse: FlashPrefill | None = None,
) -> int | None:
    """Shortest prompt, to within 1 %, for which compression is predicted to be cheaper.

    `fixed_tokens` are kept at any length (question, chat markup), and the ratio is one of the others. Compression pays
    from there on or, where the drafter's attention grows faster than the target's, not at all.
    """
    tokens = max(1, fixed_tokens)
    while tokens <= LONGEST:
        if speedup(target, drafter, tokens, keep_ratio, scorer, sparse, fixed_tokens) > 1:
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
    fits: bool = True,
    threshold: int = 0,
    measured: BreakEven | None = None,
    scorer: Scorer | None = None,
    sparse: FlashPrefill | None = None,
) -> Decision:
    """Decide for a prompt of `tokens` tokens of which `protected` must be kept.

    A prompt of which nothing would be left out is read whole, whatever was asked for. One that does not fit the
    target's window is compressed whatever that costs, unless that is switched off. With `compress="auto"` prompts below
    `threshold` tokens are read whole whatever is known, and prompts of which the ratio keeps fewer than `LEAST` tokens
    besides the protected ones. A measured break-even goes before the predicted one, unless compression never paid and
    the prompt is longer than what was measured; it is one of tokens that may be left out, as nearly all were where it
    was measured.
    """
    if drafter is None:
        return Decision(False, "no drafter was given", None, 1.0)
    if measured is not None and measured.tokens is None and tokens > measured.longest:
        measured = None
    gain = speedup(target, drafter, tokens, keep_ratio, scorer, sparse, protected)
    if keep_ratio == 1:
        length = None
    elif measured is not None:
        length = measured.tokens and measured.tokens + protected
    else:
        length = break_even(target, drafter, keep_ratio, protected, scorer, sparse)
    if length is not None:
        length = max(length, protected + ceil(LEAST / keep_ratio))
    kept = token_budget(keep_ratio, tokens, protected)
    source: Literal["predicted", "measured"] = "predicted" if measured is None else "measured"

    def decided(activated: bool, reason: str) -> Decision:
        return Decision(activated, reason, length, gain, source)

    if compress == "off":
        return decided(False, "compression is switched off")
    if keep_ratio < 1 and kept == tokens:
        return decided(False, nothing_to_leave_out(tokens, protected))
    if compress == "always":
        return decided(True, "compression was asked for whatever it costs")
    if not fits:
        return decided(True, "the whole prompt does not fit the target's window")
    if tokens < threshold:
        return decided(False, f"the prompt has {tokens} tokens, below the threshold of {threshold}")
    if keep_ratio == 1:
        return decided(False, "keep_ratio is 1, so every token is kept")
    if kept - protected < LEAST:
        chosen, free = kept - protected, tokens - protected
        return decided(False, f"of {free} tokens that may be left out {chosen} would be kept, fewer than {LEAST}")
    if length is not None and tokens < length:
        return decided(False, f"the prompt has {tokens} tokens, below the {source} break-even of {length}")
    if measured is not None:
        return decided(length is not None, f"compression was {measured.describe()}")
    if length is None:
        return decided(False, "the drafter is predicted to cost more than it saves at any length")
    return decided(True, f"predicted {gain:.1f}x less prefill work")


def nothing_to_leave_out(tokens: int, protected: int) -> str:
    """Why a keep ratio leaves out nothing of a prompt.

    Examples
    --------
    >>> nothing_to_leave_out(30, 30)
    'nothing may be left out: all 30 tokens are protected (question, chat markup)'
    >>> nothing_to_leave_out(31, 30)
    'too little may be left out: 30 of 31 tokens are protected (question, chat markup)'
    """
    share = f"all {tokens}" if protected == tokens else f"{protected} of {tokens}"
    much = "nothing" if protected == tokens else "too little"
    return f"{much} may be left out: {share} tokens are protected (question, chat markup)"
