"""The target's window: whether a prompt and its answer fit it, whole or compressed, asked before anything is read.

A kept token that stands where it stood needs a window as long as the prompt. Where the prompt is longer, what is kept
of it may still fit at contiguous positions, which are all that the target then sees.
"""

from __future__ import annotations

from dataclasses import dataclass

from sp.errors import PromptError
from sp.pipeline.load import Loaded
from sp.pipeline.options import Positions, RunOptions
from sp.selection import token_budget

SPREAD = 2
"""How many times as many tokens as in the drafter's vocabulary a prompt is reckoned with before they are counted."""


@dataclass(frozen=True)
class Fit:
    """How a prompt fits.

    Attributes
    ----------
    whole : bool
        Whether the target could read all of it.
    positions : {"original", "contiguous"}
        Where kept tokens stand.
    note : str or None
        What the report says of a prompt that fits only compressed.
    """

    whole: bool
    positions: Positions
    note: str | None = None


def check_context(loaded: Loaded, tokens: int, new_tokens: int) -> None:
    """PromptError if the prompt and the answer do not fit the target's context."""
    if tokens + new_tokens > loaded.model.config.context:
        raise PromptError(f"{_over(loaded, tokens, new_tokens)}; shorten the prompt or lower --max-new-tokens")


def fit(target: Loaded, tokens: int, options: RunOptions, drafter: bool) -> Fit:
    """How a prompt of `tokens` tokens fits the target's window.

    Parameters
    ----------
    target : Loaded
    tokens : int
        In the target's vocabulary.
    options : RunOptions
    drafter : bool
        Whether there is a model that can score the prompt.

    Raises
    ------
    PromptError
        It fits in no way that the options allow; the message says what would help.

    Examples
    --------
    >>> from sp.pipeline.load import embedded, load
    >>> target = load(embedded("target"), device="cpu")
    >>> fit(target, 1000, RunOptions(), True).positions
    'original'
    >>> fit(target, 1_000_000, RunOptions(keep_ratio=0.1), True).positions
    'contiguous'
    """
    new, context = options.max_new_tokens, target.model.config.context
    if tokens + new <= context:
        return Fit(True, options.positions)
    over, kept = _over(target, tokens, new), token_budget(options.keep_ratio, tokens)
    if not drafter or options.compress == "off":
        raise PromptError(f"{over}; let a drafter compress the prompt, shorten it or lower --max-new-tokens")
    if kept + new > context:
        share = f"--keep-ratio {options.keep_ratio:g} leaves {kept} of them, which do not fit either"
        raise PromptError(f"{over}; {share}: lower it, shorten the prompt or lower --max-new-tokens")
    if options.scorer.reads_target:
        raise PromptError(f"{over}, and the scorer has it read all of them; take a scorer that reads with the drafter")
    if options.state_gaps != "compact":
        raise PromptError(f"{over}, and state_gaps {options.state_gaps} needs them where they stand; leave it out")
    where = ", at contiguous positions" if options.positions == "original" else ""
    return Fit(False, "contiguous", f"{over}: it reads what is kept alone{where}, and no full prefill is possible")


def may_be_over(target: Loaded, drafted: int, options: RunOptions) -> bool:
    """Whether a prompt of so many tokens in the drafter's vocabulary may have too many in the target's for any way.

    It is reckoned with twice as many; where there are still more, the refusal comes after the drafter has read.
    """
    kept = token_budget(options.keep_ratio, SPREAD * drafted)
    return kept + options.max_new_tokens > target.model.config.context


def _over(loaded: Loaded, tokens: int, new_tokens: int) -> str:
    return (
        f"the prompt has {tokens} tokens and the answer up to {new_tokens}, but {loaded.path.name} has a "
        f"context of {loaded.model.config.context}"
    )
