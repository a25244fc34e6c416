"""What is settled of a turn before a model reads: whether new tokens are compressed, and that all of it fits."""

from __future__ import annotations

from sp.arrays import Bools
from sp.conversation.choose import fixed
from sp.errors import PromptError
from sp.pipeline import Loaded, Pipeline, RunOptions
from sp.pipeline.measured import find_break_even
from sp.pipeline.plan import Decision, decide
from sp.pipeline.window import check_memory
from sp.prompt import TokenisedPrompt
from sp.selection import token_budget


def decide_new(pipeline: Pipeline, options: RunOptions, prompt: TokenisedPrompt, decided: int) -> Decision:
    """Whether the tokens of a transcript from `decided` on are compressed."""
    target, drafter = pipeline.target.model, pipeline.drafter.model.config if pipeline.drafter else None
    scorer = options.scorer.settled(target.device, len(prompt))
    protected = fixed(prompt, decided)
    return decide(
        target.config,
        drafter,
        tokens=len(protected),
        protected=int(protected.sum()),
        keep_ratio=options.keep_ratio,
        compress=options.compress,
        threshold=options.threshold,
        measured=None
        if options.target_sparse
        else find_break_even(pipeline.break_evens, options.keep_ratio, scorer, drafter),
        scorer=scorer,
        sparse=options.target_sparse,
    )


def check_turn(
    pipeline: Pipeline, options: RunOptions, prompt: TokenisedPrompt, present: Bools, compressed: bool
) -> None:
    """PromptError if a turn and its answer fit neither the window nor a budget of memory, whatever is chosen.

    Parameters
    ----------
    pipeline, options
    prompt : TokenisedPrompt
        The transcript.
    present : boolean array (decided,)
        Which of the tokens that earlier turns decided the target holds, and goes on holding.
    compressed : bool
        Whether the others are compressed.
    """
    target, new, n, old = pipeline.target, options.max_new_tokens, len(prompt), len(present)
    kept = n - old
    if compressed:
        kept = token_budget(options.keep_ratio, n - old, int(fixed(prompt, old).sum()))
    held = int(present.sum()) + kept
    end = n if options.positions == "original" else held
    if end + new > target.model.config.context:
        raise over(target, end, options)
    check_memory(target, held, options, pipeline.residency.budget)


def over(target: Loaded, end: int, options: RunOptions) -> PromptError:
    """The error of a transcript that the window is too short for."""
    other = "use positions contiguous" if options.positions == "original" else "lower --keep-ratio"
    return PromptError(
        f"the transcript ends at position {end} and the answer has up to {options.max_new_tokens} tokens, but "
        f"{target.path.name} has a context of {target.model.config.context}; shorten the transcript, or {other}"
    )
