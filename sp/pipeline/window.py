"""Whether a prompt and its answer fit: the target's window, whole or compressed, and a budget of device memory.

It is asked before anything is read. A kept token that stands where it stood needs a window as long as the prompt. Where
the prompt is longer, what is kept of it may still fit at contiguous positions, which are all that the target then sees.
"""

from __future__ import annotations

from dataclasses import dataclass

from sp.errors import PromptError
from sp.models.passes.forward import chunk_tokens
from sp.models.passes.layerwise import CHUNK_BY_LAYER
from sp.pipeline.load import Loaded
from sp.pipeline.options import Positions, RunOptions
from sp.planning.memory import least_bytes, product_bytes
from sp.prompt import TokenisedPrompt
from sp.scoring import Scorer
from sp.scoring.base import ModelFreeScorer
from sp.selection import token_budget

SPREAD = 2
"""How many times as many, or as few, tokens as in the drafter's vocabulary a prompt is reckoned with before they are
counted, where no more is known than that."""
FRAME = 8
"""Tokens of a prompt, at most, that stand for no byte of it: BOS, EOS, and what SentencePiece writes in front."""


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


def fit(target: Loaded, tokens: int, options: RunOptions, drafter: bool, protected: int = 0) -> Fit:
    """How a prompt of `tokens` tokens fits the target's window.

    Parameters
    ----------
    target : Loaded
    tokens : int
        In the target's vocabulary.
    options : RunOptions
    drafter : bool
        Whether there is a model that can score the prompt.
    protected : int
        Tokens of it that are kept in any case.

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
    over, kept = _over(target, tokens, new), token_budget(options.keep_ratio, tokens, protected)
    if not drafter or options.compress == "off":
        raise PromptError(f"{over}; let a drafter compress the prompt, shorten it or lower --max-new-tokens")
    if kept + new > context:
        share = f"--keep-ratio {options.keep_ratio:g} leaves {kept} of them, which do not fit either"
        help_ = (
            "lower it, shorten the prompt" if protected + new <= context else f"shorten the {protected} protected ones"
        )
        raise PromptError(f"{over}; {share}: {help_} or lower --max-new-tokens")
    if options.scorer.reads_target:
        raise PromptError(f"{over}, and the scorer has it read all of them; take a scorer that reads with the drafter")
    if options.state_gaps != "compact":
        raise PromptError(f"{over}, and state_gaps {options.state_gaps} needs them where they stand; leave it out")
    where = ", at contiguous positions" if options.positions == "original" else ""
    return Fit(False, "contiguous", f"{over}: it reads what is kept alone{where}, and no full prefill is possible")


def may_be_over(
    target: Loaded, drafted: TokenisedPrompt, options: RunOptions, budget: int | None = None, full: bool = False
) -> bool:
    """Whether a prompt may have too many tokens in the target's vocabulary for any way, as far as the drafter's tell.

    For the window a token is reckoned with for each byte, so that False is certain; for a `budget` of memory twice as
    many as the drafter's. With `full` all of them are to be read besides. Where half as many of those that may be left
    out are too few to leave one out, it is asked as well.
    """
    n, new, protected = len(drafted), options.max_new_tokens, drafted.mask("protected")
    fixed, free = int(protected.sum()), int((drafted.bytes[~protected, 1] - drafted.bytes[~protected, 0]).sum())
    size = len(drafted.prompt.text.encode())
    most = token_budget(options.keep_ratio, size + FRAME, size - free + FRAME)
    if most + new > target.model.config.context:
        return True
    if token_budget(options.keep_ratio, few := (n - fixed) // SPREAD) == few:
        return True
    read = token_budget(1.0 if full else options.keep_ratio, SPREAD * n, SPREAD * fixed)
    return budget is not None and _held(target, read + new, options) > budget


def check_memory(
    target: Loaded, tokens: int, options: RunOptions, budget: int | None, beside: int = 0, full: bool = False
) -> None:
    """PromptError if a budget of device memory cannot hold what the target needs to read so many tokens and answer.

    Parameters
    ----------
    target : Loaded
    tokens : int
        That it reads.
    options : RunOptions
    budget : int or None
        Bytes; None if it is not known.
    beside : int
        Bytes of what never leaves: a draft.
    full : bool
        So many tokens are read for the sake of a full prefill beside the answer.
    """
    new = options.max_new_tokens
    if budget is None or (least := _held(target, tokens + new, options) + beside) <= budget:
        return
    what = f"{tokens} tokens read by {target.path.name} and an answer of up to {new} take {least / 2**30:.2f} GiB"
    help_ = "leave the full prefill out (--no-full)" if full else "lower --keep-ratio"
    raise PromptError(
        f"{what} at least, and the budget is {budget / 2**30:.2f} GiB; {help_}, take --kv q4_0, a shorter prompt or "
        "a larger --vram"
    )


def check_scoring(reader: Loaded, tokens: int, scorer: Scorer, budget: int | None) -> None:
    """The same of who scores so many tokens, in its vocabulary: its weights, and their stream through its layers."""
    if budget is None or scorer.oracle or isinstance(scorer, ModelFreeScorer):
        return
    config, math = reader.model.config, reader.model.arithmetic.math
    rounded = product_bytes(config, min(tokens, CHUNK_BY_LAYER["cuda"]), math)
    least = reader.model.nbytes + 4 * config.hidden * tokens + rounded
    if least > budget:
        raise PromptError(
            f"{tokens} tokens scored by {reader.path.name} take {least / 2**30:.2f} GiB at least, and the budget is "
            f"{budget / 2**30:.2f} GiB; take a shorter prompt, a smaller drafter or a larger --vram"
        )


def _held(target: Loaded, tokens: int, options: RunOptions) -> int:
    model = target.model
    math = model.arithmetic.math
    rounded = product_bytes(model.config, min(tokens, chunk_tokens("cuda", math)), math)
    return least_bytes(model.config, model.nbytes, tokens, options.kv) + rounded


def _over(loaded: Loaded, tokens: int, new_tokens: int) -> str:
    return (
        f"the prompt has {tokens} tokens and the answer up to {new_tokens}, but {loaded.path.name} has a "
        f"context of {loaded.model.config.context}"
    )
