"""Decisions before anything is read: whether compression pays for a prompt, and whether it fits window and memory."""

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
from sp.ops.skip_softmax import SkipSoftmax
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.planning.memory import least_bytes, product_bytes
from sp.prompt import Prompt, TokenisedPrompt
from sp.prompt.heat import whole_characters
from sp.prompt.spans import with_characters
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import ModelFreeScorer
from sp.scoring.sparse import predicted_density
from sp.selection import token_budget
from sp.session.compress import positions_for
from sp.session.device.memory_manager import MemoryManager
from sp.session.loaded import Loaded
from sp.session.measured import BreakEven, find_break_even
from sp.session.options import Compress, Positions, RunOptions

LONGEST = 1 << 22  # tokens of the longest prompt for which a break-even is searched
MOST = 1 << 53  # tokens; bounds the quotient of a tiny keep ratio, which may be infinite
LEAST = 64
"""Fewest tokens to select for `compress="auto"`: sink and tail take half of them, a chunk the other half."""


@dataclass(frozen=True)
class Decision:
    """The decision about one prompt.

    Parameters
    ----------
    activated : bool
        True if the target reads a selection instead of the whole prompt.
    reason : str
        One sentence for the report.
    break_even_tokens : int or None
        Prompt length in tokens above which compression is cheaper; None if there is none.
    predicted_speedup : float
        Predicted cost of the full prefill over that of drafter + selection, in FLOP.
    break_even_source : {"predicted", "measured"}
        Origin of `break_even_tokens`.
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
    sparse: FlashPrefill | SkipSoftmax | None = None,
    fixed_tokens: int = 0,
) -> float:
    """Return the FLOP of a full prefill over the FLOP of scoring + target prefill of the selected tokens.

    The scorer defines its own cost (its attention may be sparse, or it may run no model); without one it is a dense
    prefill by the drafter. With `sparse` the target's attention reads the expected share of blocks. `fixed_tokens` of
    the prompt are kept whatever the ratio is.
    """
    # At least the last token, whose logits start the answer.
    selected = max(1, token_budget(keep_ratio, tokens, fixed_tokens))
    reader = target if scorer is not None and scorer.reads_target else drafter
    scoring = flops(reader, tokens) if scorer is None else scorer.flops(reader, tokens)
    whole, part = (
        flops(target, n, density=1.0 if sparse is None else predicted_density(sparse, n)) for n in (tokens, selected)
    )
    return whole / (scoring + part)


def break_even(
    target: ModelConfig,
    drafter: ModelConfig,
    keep_ratio: float,
    fixed_tokens: int = 0,
    scorer: Scorer | None = None,
    sparse: FlashPrefill | SkipSoftmax | None = None,
) -> int | None:
    """Return the shortest prompt, to within 1 %, for which compression is predicted to be cheaper, or None.

    `fixed_tokens` are kept at any length (question, chat markup), and the ratio applies to the others. Compression pays
    from there on or, where the drafter's attention grows faster than the target's, not at all, or only up to a length:
    a target with mostly windowed layers reads long prompts cheaply.
    """
    tokens = max(1, fixed_tokens)
    while tokens <= LONGEST:
        if speedup(target, drafter, tokens, keep_ratio, scorer, sparse, fixed_tokens) > 1:
            return tokens
        # The speed-up is not monotonic in the length, so a bisection could miss the first crossing.
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
    sparse: FlashPrefill | SkipSoftmax | None = None,
) -> Decision:
    """Decide for a prompt of `tokens` tokens of which `protected` must be kept.

    A prompt of which nothing would be left out is read whole in any case. One that does not fit the target's window is
    compressed at any cost, unless that is switched off. With `compress="auto"` prompts below `threshold` tokens are
    read whole, and prompts of which the ratio selects fewer than `LEAST` tokens besides the protected ones. A measured
    break-even takes precedence over the predicted one, unless compression never paid and the prompt is longer than any
    measured; it counts unprotected tokens, as nearly all were where it was measured.
    """
    if drafter is None:
        return Decision(False, "no drafter was given", None, 1.0)
    # Never paid, but only at shorter lengths.
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
        # Shorter prompts would select fewer than LEAST tokens.
        length = max(length, protected + ceil(min(LEAST / keep_ratio, MOST)))
    selected, free = token_budget(keep_ratio, tokens, protected) - protected, tokens - protected
    source: Literal["predicted", "measured"] = "predicted" if measured is None else "measured"
    activated = False  # only the branches that compress set it
    if compress == "off":
        reason = "compression is switched off"
    elif keep_ratio < 1 and selected == free:
        much, share = ("too little", f"{protected} of {tokens}") if free else ("nothing", f"all {tokens}")
        reason = f"{much} may be left out: {share} tokens are protected (question, chat markup)"
    elif compress == "always":
        activated, reason = True, "compression was asked for whatever it costs"
    elif not fits:  # the only way to answer at all
        activated, reason = True, "the whole prompt does not fit the target's window"
    elif tokens < threshold:
        reason = f"the prompt has {tokens} tokens, below the threshold of {threshold}"
    elif keep_ratio == 1:
        reason = "keep_ratio is 1, so every token is kept"
    elif selected < LEAST:
        reason = f"of {free} tokens that may be left out {selected} would be kept, fewer than {LEAST}"
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
"""Factor between the numbers of tokens of a prompt in two vocabularies that is assumed before they are counted."""
FRAME = 8  # upper limit of tokens without a byte in a prompt: BOS, EOS, and the space that SentencePiece puts first


@dataclass(frozen=True)
class Fit:
    """How a prompt fits the target's window."""

    whole: bool  # the target could read all of it
    positions: Positions  # positions of the selected tokens
    note: str | None = None  # remark for the report on a prompt that fits only compressed


def check_context(loaded: Loaded, tokens: int, new_tokens: int) -> None:
    """Raise PromptError if the prompt and the answer do not fit the target's context."""
    if tokens + new_tokens > loaded.model.config.context:
        room = loaded.model.config.context - tokens
        raise TooLongError(f"{_over(loaded, tokens, new_tokens)}; shorten the prompt or lower --max-new-tokens", room)


def fit(target: Loaded, tokens: int, options: RunOptions, drafter: bool, protected: int = 0) -> Fit:
    """Return how a prompt of `tokens` tokens fits the target's window.

    PromptError if it fits in no way that the options allow; the message names the remedy.
    """
    new, context = options.max_new_tokens, target.model.config.context
    positions = positions_for(options, target.model.config)
    if tokens + new <= context:
        return Fit(True, positions)
    over, selected = _over(target, tokens, new), token_budget(options.keep_ratio, tokens, protected)
    if not drafter or options.compress == "off":
        help_ = "compress the prompt with a drafter, shorten it or lower --max-new-tokens"
        raise TooLongError(f"{over}; {help_}", context - tokens)
    if selected + new > context:
        share = f"--keep-ratio {options.keep_ratio:g} leaves {selected} of them, which do not fit either"
        help_ = (
            "lower it, shorten the prompt" if protected + new <= context else f"shorten the {protected} protected ones"
        )
        raise TooLongError(f"{over}; {share}: {help_} or lower --max-new-tokens", context - selected)
    if options.scorer.reads_target:
        raise TooLongError(f"{over}, and the scorer runs on the target with all of them; use a drafter-based scorer")
    # Contiguous positions would hide the gaps that this option treats.
    if options.state_gaps != "compact":
        raise TooLongError(f"{over}, and state_gaps {options.state_gaps} needs their original positions; omit it")
    where = ", at contiguous positions" if positions == "original" else ""
    return Fit(
        False, "contiguous", f"{over}: it reads only the selected tokens{where}, and no full prefill is possible"
    )


def may_be_over(
    target: Loaded, drafted: TokenisedPrompt, options: RunOptions, budget: int | None = None, full: bool = False
) -> bool:
    """Return True if a prompt may be too long in the target's vocabulary, judged by its tokens in the drafter's.

    For the window each byte counts as a token, so that False is certain; for a `budget` of memory twice as many tokens
    as the drafter's are assumed. With `full` all of them are to be read as well. True, too, if with half as many
    unprotected tokens nothing would be left out.
    """
    n, new, protected = len(drafted), options.max_new_tokens, drafted.mask("protected")
    # Protected tokens, and the bytes of the other ones.
    fixed, free = int(protected.sum()), int((drafted.bytes[~protected, 1] - drafted.bytes[~protected, 0]).sum())
    size = len(drafted.prompt.text.encode())
    most = token_budget(options.keep_ratio, size + FRAME, size - free + FRAME)
    if most + new > target.model.config.context:
        return True
    if token_budget(options.keep_ratio, few := (n - fixed) // SPREAD) == few:
        return True
    count = token_budget(1.0 if full else options.keep_ratio, SPREAD * n, SPREAD * fixed)
    return budget is not None and _required_bytes(target, count + new, options) > budget


def check_memory(
    target: Loaded, tokens: int, options: RunOptions, budget: int, beside: int = 0, full: bool = False
) -> None:
    """Raise PromptError if a budget of device memory is too small for the target to read so many tokens and answer.

    A draft, which is never offloaded, takes `beside` bytes more; with `full` the tokens are those of a full prefill.
    """
    new = options.max_new_tokens
    if (least := _required_bytes(target, tokens + new, options) + beside) <= budget:
        return
    need = f"{tokens} tokens read by {target.path.name} and an answer of up to {new} take {least / 2**30:.2f} GiB"
    help_ = "omit the full prefill (--no-full)" if full else "lower --keep-ratio"
    raise TooLongError(
        f"{need} at least, and the budget is {budget / 2**30:.2f} GiB; {help_}, use --kv q4_0, a shorter prompt or "
        "a larger --vram"
    )


def check_scoring(reader: Loaded, tokens: int, scorer: Scorer, budget: int) -> None:
    """Raise PromptError likewise for the scoring model: its weights, and the activations of so many tokens."""
    if scorer.oracle or isinstance(scorer, ModelFreeScorer):
        return
    config, precision = reader.model.config, reader.model.arithmetic.precision
    rounded = product_bytes(config, min(tokens, chunk_on_device(config)), precision)
    least = reader.model.nbytes + 4 * config.hidden * tokens + rounded
    if least > budget:
        raise TooLongError(
            f"{tokens} tokens scored by {reader.path.name} take {least / 2**30:.2f} GiB at least, and the budget is "
            f"{budget / 2**30:.2f} GiB; use a shorter prompt, a smaller drafter or a larger --vram"
        )


def _required_bytes(target: Loaded, tokens: int, options: RunOptions) -> int:
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
    """Return the tokens from `start` on that are kept in any case, (n - start,)."""
    protected = prompt.mask("protected")
    protected[-1] = True  # the first token of the answer comes from its logits
    return with_characters(protected, whole_characters(prompt))[start:]


@dataclass(frozen=True)
class ModelPair:
    """The models and resources of a request; see `Pipeline` for the fields."""

    target: Loaded
    drafter: Loaded | None = None
    memory_manager: MemoryManager = field(default_factory=MemoryManager, compare=False)
    speculator: Draft | None = None
    break_evens: tuple[BreakEven, ...] = ()
    executor: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "sp-tokenise"), compare=False)
    gpus: ContextParallel | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self.memory_manager.add("target", self.target.model)
        if self.drafter is not None:
            self.memory_manager.add("drafter", self.drafter.model)

    def scoring_model(self, options: RunOptions) -> tuple[str, Loaded]:
        """Return role and model that score: the drafter, or the one the scorer needs.

        For a scorer without a model it is the target, whose tokens are computed in any case.
        """
        if options.scorer.reads_target and isinstance(self.target.model, SharedModel):
            raise ConfigError(
                f"scorer {SCORERS.name_of(options.scorer)} runs on the target, which is sharded over several GPUs; "
                "use --target-gpus 1 or a drafter-based scorer"
            )
        if not options.scorer.drafts:
            return "target", self.target
        assert self.drafter is not None, "scoring needs a drafter"
        return "drafter", self.drafter

    def check_files(self) -> None:
        """Raise ChangedError if a file was modified while its weights are in use: on the CPU they are views of it."""
        for loaded in (self.target, self.drafter):
            if loaded is not None and loaded.file is not None and loaded.model.device == "cpu":
                loaded.file.check()

    def overlaps_tokenising(self, options: RunOptions) -> bool:
        """Return True if the drafter may start before the target's tokens are known.

        On the device it leaves the host free to compute them. The decision that depends on them must be fixed by
        `compress`.
        """
        drafter, target = self.drafter, self.target.tokenizer
        if drafter is None or drafter.model.device == "cpu" or not options.scorer.drafts:
            return False
        return options.compress == "always" and not drafter.tokenizer.same_as(target)

    def tokenise(self, prompt: Prompt) -> TokenisedPrompt:
        """Return the prompt in the target's vocabulary."""
        return prompt.tokenise(self.target.tokenizer)


@dataclass(frozen=True)
class RequestPlan:
    """The plan of a request, made from its tokens before a model reads them."""

    options: RunOptions  # options of the run with scorer and positions adapted to the prompt
    decision: Decision
    fit: Fit
    fixed: Bools  # the new tokens that are kept in any case
    budget: int  # most new tokens to keep


def plan_request(
    pipeline: ModelPair, prompt: TokenisedPrompt, options: RunOptions, full: bool = False, present: Bools | None = None
) -> RequestPlan:
    """Decide whether the new tokens of a prompt are compressed and how it fits; PromptError if it does not fit.

    With `full` a full prefill is wanted as well. In a turn of a conversation `present` (decided,) marks the tokens that
    the target's cache holds, among those about which earlier turns decided.
    """
    target, budget = pipeline.target, pipeline.memory_manager.budget
    drafter = pipeline.drafter.model.config if pipeline.drafter else None
    scorer = options.scorer.resolve(len(prompt))
    positions = positions_for(options, target.model.config)
    window, protected = Fit(True, positions), prompt.mask("protected")
    if present is None:
        window = fit(target, len(prompt), options, drafter is not None, int(protected.sum()))
        if (scorer, window.positions) != (options.scorer, positions):
            options = replace(options, scorer=scorer, positions=window.positions)
    else:
        protected = fixed(prompt, len(present))
    if drafter is not None:
        scorer = scorer.scorer_for(drafter)  # once, not for every length of the search for a break-even
    n, must = len(protected), int(protected.sum())  # new tokens, and those of them that are kept
    # Times were measured with dense attention in the target.
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
    cached = most + (0 if present is None else int(present.sum()))
    end = len(prompt) if positions == "original" else cached  # position after the last token
    if present is not None and end + options.max_new_tokens > target.model.config.context:
        raise over(target, end, options)
    if budget is not None:
        beside = pipeline.speculator.nbytes if pipeline.speculator else 0
        check_memory(target, cached, options, budget, beside)
        if full and window.whole:
            check_memory(target, len(prompt), options, budget, beside, full=True)
    return RequestPlan(options, decision, window, protected, most)


def over(target: Loaded, end: int, options: RunOptions) -> TooLongError:
    """Return the error for a transcript that does not fit the window."""
    contiguous = positions_for(options, target.model.config) == "contiguous"
    other = "lower --keep-ratio" if contiguous else "use positions contiguous"
    return TooLongError(
        f"the transcript ends at position {end} and the answer has up to {options.max_new_tokens} tokens, but "
        f"{target.path.name} has a context of {target.model.config.context}; shorten the transcript, or {other}",
        target.model.config.context - end,
    )
