"""Whether compression pays for a prompt, and whether it fits the window and the memory: before anything is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Literal

from sp.arrays import Bools
from sp.errors import ConfigError, TooLongError
from sp.models import ContextParallel, Draft, ModelConfig
from sp.models.network.cost import flops
from sp.models.run.chunked import chunk_tokens
from sp.models.run.layer_major import chunk_on_device
from sp.models.shards.shards import SharedModel
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.planning.memory import least_bytes, product_bytes
from sp.prompt import Prompt, TokenisedPrompt
from sp.prompt.heat import whole_characters
from sp.prompt.spans import with_characters
from sp.scoring import Scorer
from sp.scoring.base import ModelFreeScorer
from sp.selection import token_budget
from sp.session.loaded import Loaded
from sp.session.measured import BreakEven, find_break_even
from sp.session.options import Compress, Positions, RunOptions
from sp.session.residency import Residency

LONGEST = 1 << 22
MOST = 1 << 53  # tokens; of the smallest ratios a quotient would be infinite
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
    """FLOP of a full prefill over FLOP of scoring + target prefill of the kept tokens. What scoring costs is for the
    scorer to say (its attention may be sparse, or it may run no model); without one it is a dense reading by the
    drafter. With `sparse` the target's attention reads what that is expected to list. `fixed_tokens` of the prompt are
    kept whatever the ratio is.
    """
    kept = max(1, token_budget(keep_ratio, tokens, fixed_tokens))
    reader = target if scorer is not None and scorer.reads_target else drafter
    scoring = flops(reader, tokens) if scorer is None else scorer.flops(reader, tokens)
    whole, part = (
        flops(target, n, density=1.0 if sparse is None else expected_density(sparse, n)) for n in (tokens, kept)
    )
    return whole / (scoring + part)


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
    from there on or, where the drafter's attention grows faster than the target's, not at all, or only up to a length:
    a target most of whose layers have windows reads long prompts for little.
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
        length = max(length, protected + ceil(min(LEAST / keep_ratio, MOST)))
    kept, free = token_budget(keep_ratio, tokens, protected) - protected, tokens - protected
    source: Literal["predicted", "measured"] = "predicted" if measured is None else "measured"
    activated = False
    if compress == "off":
        reason = "compression is switched off"
    elif keep_ratio < 1 and kept == free:
        much, share = ("too little", f"{protected} of {tokens}") if free else ("nothing", f"all {tokens}")
        reason = f"{much} may be left out: {share} tokens are protected (question, chat markup)"
    elif compress == "always":
        activated, reason = True, "compression was asked for whatever it costs"
    elif not fits:
        activated, reason = True, "the whole prompt does not fit the target's window"
    elif tokens < threshold:
        reason = f"the prompt has {tokens} tokens, below the threshold of {threshold}"
    elif keep_ratio == 1:
        reason = "keep_ratio is 1, so every token is kept"
    elif kept < LEAST:
        reason = f"of {free} tokens that may be left out {kept} would be kept, fewer than {LEAST}"
    elif length is not None and tokens < length:
        reason = f"the prompt has {tokens} tokens, below the {source} break-even of {length}"
    elif measured is not None:
        activated, reason = length is not None, f"compression was {measured.describe()}"
    elif length is None:
        reason = "the drafter is predicted to cost more than it saves at any length"
    elif gain <= 1:
        reason = f"the prompt is so long that the drafter is predicted to cost more than it saves ({gain:.2f}x)"
    else:
        activated, reason = True, f"predicted {gain:.1f}x less prefill work"
    return Decision(activated, reason, length, gain, source)


SPREAD = 2
"""How many times as many, or as few, tokens as in the drafter's vocabulary a prompt is reckoned with before they are
counted, where no more is known than that."""
FRAME = 8  # tokens of a prompt, at most, that stand for no byte of it: BOS, EOS, and what SentencePiece writes in front


@dataclass(frozen=True)
class Fit:
    """How a prompt fits."""

    whole: bool  # whether the target could read all of it
    positions: Positions  # where kept tokens stand
    note: str | None = None  # what the report says of a prompt that fits only compressed


def check_context(loaded: Loaded, tokens: int, new_tokens: int) -> None:
    """PromptError if the prompt and the answer do not fit the target's context."""
    if tokens + new_tokens > loaded.model.config.context:
        room = loaded.model.config.context - tokens
        raise TooLongError(f"{_over(loaded, tokens, new_tokens)}; shorten the prompt or lower --max-new-tokens", room)


def fit(target: Loaded, tokens: int, options: RunOptions, drafter: bool, protected: int = 0) -> Fit:
    """How a prompt of `tokens` tokens fits the target's window. PromptError: it fits in no way that the options allow;
    the message says what would help.
    """
    new, context = options.max_new_tokens, target.model.config.context
    if tokens + new <= context:
        return Fit(True, options.positions)
    over, kept = _over(target, tokens, new), token_budget(options.keep_ratio, tokens, protected)
    if not drafter or options.compress == "off":
        help_ = "let a drafter compress the prompt, shorten it or lower --max-new-tokens"
        raise TooLongError(f"{over}; {help_}", context - tokens)
    if kept + new > context:
        share = f"--keep-ratio {options.keep_ratio:g} leaves {kept} of them, which do not fit either"
        help_ = (
            "lower it, shorten the prompt" if protected + new <= context else f"shorten the {protected} protected ones"
        )
        raise TooLongError(f"{over}; {share}: {help_} or lower --max-new-tokens", context - kept)
    if options.scorer.reads_target:
        raise TooLongError(f"{over}, and the scorer has it read all of them; take a scorer that reads with the drafter")
    if options.state_gaps != "compact":
        raise TooLongError(f"{over}, and state_gaps {options.state_gaps} needs them where they stand; leave it out")
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
    target: Loaded, tokens: int, options: RunOptions, budget: int, beside: int = 0, full: bool = False
) -> None:
    """PromptError if a budget of device memory cannot hold what the target needs to read so many tokens and answer.
    What never leaves, a draft, takes `beside` bytes; with `full` the tokens are those of a full prefill.
    """
    new = options.max_new_tokens
    if (least := _held(target, tokens + new, options) + beside) <= budget:
        return
    what = f"{tokens} tokens read by {target.path.name} and an answer of up to {new} take {least / 2**30:.2f} GiB"
    help_ = "leave the full prefill out (--no-full)" if full else "lower --keep-ratio"
    raise TooLongError(
        f"{what} at least, and the budget is {budget / 2**30:.2f} GiB; {help_}, take --kv q4_0, a shorter prompt or "
        "a larger --vram"
    )


def check_scoring(reader: Loaded, tokens: int, scorer: Scorer, budget: int) -> None:
    """The same of who scores so many tokens, in its vocabulary: its weights, and their stream through its layers."""
    if scorer.oracle or isinstance(scorer, ModelFreeScorer):
        return
    config, precision = reader.model.config, reader.model.arithmetic.precision
    rounded = product_bytes(config, min(tokens, chunk_on_device(config)), precision)
    least = reader.model.nbytes + 4 * config.hidden * tokens + rounded
    if least > budget:
        raise TooLongError(
            f"{tokens} tokens scored by {reader.path.name} take {least / 2**30:.2f} GiB at least, and the budget is "
            f"{budget / 2**30:.2f} GiB; take a shorter prompt, a smaller drafter or a larger --vram"
        )


def _held(target: Loaded, tokens: int, options: RunOptions) -> int:
    model = target.model
    precision = model.arithmetic.precision
    rounded = product_bytes(model.config, min(tokens, chunk_tokens("cuda", precision)), precision)
    return least_bytes(model.config, model.nbytes, tokens, options.kv) + rounded


def _over(loaded: Loaded, tokens: int, new_tokens: int) -> str:
    return (
        f"the prompt has {tokens} tokens and the answer up to {new_tokens}, but {loaded.path.name} has a "
        f"context of {loaded.model.config.context}"
    )


def fixed(prompt: TokenisedPrompt, start: int) -> Bools:
    """Which tokens from `start` on are kept in any case, (n - start,)."""
    protected = prompt.mask("protected")
    protected[-1] = True  # its logits begin the answer
    return with_characters(protected, whole_characters(prompt))[start:]


@dataclass(frozen=True)
class Pair:
    """What a request reads with; `Pipeline` says what it consists of."""

    target: Loaded
    drafter: Loaded | None = None
    residency: Residency = field(default_factory=Residency, compare=False)
    speculator: Draft | None = None
    break_evens: tuple[BreakEven, ...] = ()
    beside: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "sp-tokenise"), compare=False)
    gpus: ContextParallel | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self.residency.add("target", self.target.model)
        if self.drafter is not None:
            self.residency.add("drafter", self.drafter.model)

    def scoring_model(self, options: RunOptions) -> tuple[str, Loaded]:
        """Who scores, by role: the drafter, or whom the scorer asks for; for one that runs no model, whose tokens.

        Those of the target are there already.
        """
        if options.scorer.reads_target and isinstance(self.target.model, SharedModel):
            raise ConfigError(
                "the scorer reads with the target, which GPUs share; add --target-gpus 1, or take another"
            )
        if not options.scorer.drafts:
            return "target", self.target
        assert self.drafter is not None, "score needs a drafter"
        return "drafter", self.drafter

    def check_files(self) -> None:
        """ChangedError if a file was written to of which weights are in use: on the CPU they are views of it."""
        for one in (self.target, self.drafter):
            if one is not None and one.file is not None and one.model.device == "cpu":
                one.file.check()

    def drafts_ahead(self, options: RunOptions) -> bool:
        """Whether the drafter may begin before the target's tokens are known.

        On the device it leaves the host free for them. What they decide, `compress` must have settled.
        """
        drafter, target = self.drafter, self.target.tokenizer
        if drafter is None or drafter.model.device == "cpu" or not options.scorer.drafts:
            return False
        return options.compress == "always" and not drafter.tokenizer.same_as(target)

    def tokenise(self, prompt: Prompt) -> TokenisedPrompt:
        """The prompt in the target's vocabulary."""
        return prompt.tokenise(self.target.tokenizer)


@dataclass(frozen=True)
class Settled:
    """What a prompt's tokens settle before a model reads them."""

    options: RunOptions  # of a run with scorer and positions settled
    decision: Decision
    fit: Fit
    fixed: Bools  # which of the tokens that no earlier turn decided are kept in any case
    budget: int  # new tokens that are kept at most


def settle(
    pipeline: Pair, prompt: TokenisedPrompt, options: RunOptions, full: bool = False, present: Bools | None = None
) -> Settled:
    """Whether the new tokens of a prompt are compressed, and how it fits; PromptError if it does not. With `full` a
    full prefill is wanted beside the answer. Of a turn, `present` (decided,) says which of the tokens that earlier
    turns decided the target holds, and goes on holding.
    """
    target, budget = pipeline.target, pipeline.residency.budget
    drafter = pipeline.drafter.model.config if pipeline.drafter else None
    scorer = options.scorer.resolve(target.model.device, len(prompt))
    window, protected = Fit(True, options.positions), prompt.mask("protected")
    if present is None:
        window = fit(target, len(prompt), options, drafter is not None, int(protected.sum()))
        if (scorer, window.positions) != (options.scorer, options.positions):
            options = replace(options, scorer=scorer, positions=window.positions)
    else:
        protected = fixed(prompt, len(present))
    if drafter is not None:
        scorer = scorer.scorer_for(drafter)  # once, not for every length that a break-even is looked for at
    n, must = len(protected), int(protected.sum())
    # Times were measured with a target that reads densely.
    known = () if options.target_sparse else pipeline.break_evens
    measured = find_break_even(known, options.keep_ratio, scorer) if known else None
    decision = decide(
        target.model.config,
        drafter,
        tokens=n,
        protected=must,
        keep_ratio=options.keep_ratio,
        compress=options.compress,
        fits=window.whole,
        threshold=options.threshold,
        measured=measured,
        scorer=scorer,
        sparse=options.target_sparse,
    )
    most = token_budget(options.keep_ratio, n, must) if decision.activated else n
    held = most + (0 if present is None else int(present.sum()))
    end = len(prompt) if options.positions == "original" else held
    if present is not None and end + options.max_new_tokens > target.model.config.context:
        raise over(target, end, options)
    if budget is not None:
        beside = pipeline.speculator.nbytes if pipeline.speculator else 0
        check_memory(target, held, options, budget, beside)
        if full and window.whole:
            check_memory(target, len(prompt), options, budget, beside, full=True)
    return Settled(options, decision, window, protected, most)


def over(target: Loaded, end: int, options: RunOptions) -> TooLongError:
    """The error of a transcript that the window is too short for."""
    other = "use positions contiguous" if options.positions == "original" else "lower --keep-ratio"
    return TooLongError(
        f"the transcript ends at position {end} and the answer has up to {options.max_new_tokens} tokens, but "
        f"{target.path.name} has a context of {target.model.config.context}; shorten the transcript, or {other}",
        target.model.config.context - end,
    )
