"""The stages of a run: plain functions over explicit inputs, each of which leaves a record in the trace it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from sp.arrays import Bools, Floats
from sp.chat import split_reply
from sp.decode.greedy import gather
from sp.errors import PromptError
from sp.gguf import Tokenizer
from sp.models import Cards
from sp.models.drafts.dflash import Draft
from sp.pipeline.answer import begin
from sp.pipeline.cards.answer import begin_on_cards, target_line
from sp.pipeline.compress import Cut, compress
from sp.pipeline.load import Loaded
from sp.pipeline.options import RunOptions
from sp.pipeline.pair import cards_line
from sp.pipeline.residency import Residency
from sp.pipeline.result import Answer, Reporter, Scored, silent
from sp.pipeline.told import warn_extrapolated
from sp.pipeline.window import check_scoring
from sp.prompt import Prompt, TokenisedPrompt, Transfer
from sp.scoring import Importance, KeptKeys, ScoreRequest
from sp.scoring.base import ModelFreeScorer
from sp.selection import Selection, SelectionRequest
from sp.trace import Stage, Trace

OnToken = Callable[[int], bool | None]
DRAFTED = "tokenise for drafter"
"""Stage in which a prompt gets its tokens in the drafter's vocabulary."""
NONE = "is kept; take a larger keep ratio, or a selector that cuts finer"
"""Said where no unit of a selector fits the budget."""


def tokenise(prompt: Prompt, tokenizer: Tokenizer, trace: Trace) -> TokenisedPrompt:
    """The prompt in the target's vocabulary."""
    with trace.stage("tokenise") as stage:
        tokenised = prompt.tokenise(tokenizer)
        stage.tokens = len(tokenised)
    return tokenised


def tokenise_for_drafter(
    prompt: Prompt, reader: Tokenizer, target: Tokenizer, trace: Trace, known: TokenisedPrompt | None = None
) -> TokenisedPrompt:
    """The prompt in the vocabulary of who scores it; that of the target serves if it is the same and `known`.

    Where the target itself scores, or no model does, there is nothing to do, and no stage.
    """
    if known is not None and reader is target:
        return known
    with trace.stage(DRAFTED) as stage:
        same = known is not None and reader.same_as(target)
        drafted = known if known is not None and same else prompt.tokenise(reader)
        stage.tokens = len(drafted)
    return drafted


def score(
    role: str,
    reader: Loaded,
    residency: Residency,
    drafted: TokenisedPrompt,
    options: RunOptions,
    trace: Trace,
    reporter: Reporter = silent,
    by_head: bool = False,
    keys: KeptKeys | None = None,
    cards: Cards | None = None,
) -> Importance:
    """Importance of each token of the prompt in the reader's vocabulary; with `by_head` also that of every head.

    Parameters
    ----------
    role : {"drafter", "target"}
        Name of the reader in the residency.
    reader, residency
    drafted : TokenisedPrompt
        In the vocabulary of the reader.
    options : RunOptions
        Of which `scorer` and `seed` matter.
    trace, reporter, by_head
    keys : KeptKeys, optional
        What the reader holds of the prompt already.
    cards : Cards, optional
        On which the reader may read together with its like; the trace says whether it did.

    Raises
    ------
    PromptError
        The budget of device memory cannot hold what that takes; nothing has been read then.
    """
    n = len(drafted)
    new = n - (keys.trail.tokens if keys else 0)
    check_scoring(reader, new, options.scorer, residency.budget)
    if not isinstance(options.scorer, ModelFreeScorer):
        reading = reader.for_prompt(n)
        trace.facts |= {"rope_needed": str(reading.needed)} if reading.needed else {}
        warn_extrapolated(role, reading, n)
    with (
        trace.stage("score", new),
        reporter("scoring", new * reader.model.config.layers) as progress,
        ExitStack() as stack,
    ):
        request = score_request(reader, drafted, options.seed, progress, by_head)
        if cards is not None:
            alike = [request.model, *(model.with_rope(request.model.config.rope) for model in cards.models[1:])]
            cards = cards._replace(models=alike)
        request = replace(request, keys=keys, cards=cards)
        if isinstance(options.scorer, ModelFreeScorer):
            return options.scorer.score(request)
        before = 0 if cards is None else cards.group.runs
        found = residency.attempt(stack, role, new, partial(options.scorer.score, request))
        if cards is not None:
            trace.facts["cards"] = [cards_line(cards, together=cards.group.runs > before)]
    return found


def apart(stages: Sequence[Stage], found: Importance) -> list[Stage]:
    """The same stages, `score` as `draft` and `score` where it is known what each took.

    Examples
    --------
    >>> found = Importance(np.zeros(9), weighing=0.5)
    >>> [(stage.name, stage.tokens, stage.seconds) for stage in apart([Stage("score", 3, 2.0)], found)]
    [('draft', 3, 1.5), ('score', 9, 0.5)]
    """

    def parts(stage: Stage) -> list[Stage]:
        weighing = min(found.weighing, stage.seconds)
        if stage.name != "score" or not weighing:
            return [stage]
        return [Stage("draft", stage.tokens, stage.seconds - weighing), Stage("score", len(found.scores), weighing)]

    return [part for stage in stages for part in parts(stage)]


def score_request(
    reader: Loaded,
    drafted: TokenisedPrompt,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    by_head: bool = False,
) -> ScoreRequest:
    """What a scorer is given of a prompt in the reader's vocabulary, and the model as it reads so long a one."""
    return ScoreRequest(
        model=reader.for_prompt(len(drafted)).model,
        ids=drafted.ids,
        positions=np.arange(len(drafted), dtype=np.int64),
        question=drafted.mask("question"),
        needle=drafted.mask("needle"),
        asked=drafted.asked,
        protected=drafted.mask("protected"),
        eos_ids=reader.tokenizer.eos_ids,
        seed=seed,
        progress=progress,
        by_head=by_head,
        text=drafted.prompt.text.encode(),
        spans=drafted.bytes,
    )


def select(scored: Scored, tokenised: TokenisedPrompt, options: RunOptions, trace: Trace) -> tuple[Floats, Selection]:
    """Scores carried to the target's tokens, and the target tokens to keep."""
    with trace.stage("select", len(tokenised)):
        transfer = scored.transfer or Transfer.between(scored.drafted.bytes, tokenised.bytes)
        scores = transfer(scored.importance.scores)
        request = SelectionRequest(
            *(scores, tokenised.mask("protected"), options.keep_ratio),
            *(tokenised.prompt.text.encode(), tokenised.bytes, tokenised.prompt.free),
        )
        selection = options.selector.settled(scored.importance.fineness)(request)
    told, free = list(selection.told), ~request.protected
    if free.any() and not selection.kept[free].any():
        told.append(f"of {int(free.sum()):,} tokens that may be left out none {NONE}")
    if told:
        trace.facts["selection"] = told
    return scores, selection


def read(
    target: Loaded,
    draft: Draft | None,
    residency: Residency,
    tokenised: TokenisedPrompt,
    kept: Bools | Selection,
    options: RunOptions,
    trace: Trace,
    reporter: Reporter = silent,
    what: str = "target prefill",
    on_token: OnToken | None = None,
) -> Answer:
    """Prefill the kept tokens and decode.

    Parameters
    ----------
    target, draft, residency
    tokenised : TokenisedPrompt
        In the vocabulary of the target.
    kept : boolean array (n,) or Selection
        If it is all of them, they stand where they stood whatever the options say.
    options : RunOptions
    trace : Trace
        The time to first token is that of all its stages, those before this one among them, until that token is known.
    reporter, what
        The prefill's progress, and what it is called.
    on_token : callable, optional
        As for `greedy`.
    """
    kept, read = (kept.kept, kept.read) if isinstance(kept, Selection) else (kept, {})
    if len(kept) and not kept.any():
        raise PromptError(f"none of the {len(kept):,} tokens of the prompt {NONE}")
    whole = bool(kept.all())
    with trace.stage("compress", int(kept.sum())):
        given = compress(
            tokenised,
            kept,
            target.tokenizer,
            "original" if whole else options.positions,
            "byte_span" if whole else options.mapping,
            Cut(read, options.mark_omitted, options.selector.whole),
        )
    with ExitStack() as stack:
        with trace.stage("target prefill", len(given.ids)), reporter(what, len(given.ids)) as progress:
            asked = target, given, options, progress, draft
            pool = residency.cache_pool
            work = partial(begin, *asked, pool) if pool.cards is None else partial(begin_on_cards, *asked, pool.cards)
            begun = residency.attempt(stack, "target", len(given.ids), work)
        ttft, cold = trace.seconds, target.model.cold
        if begun.read:
            trace.facts["prefill_read"] = dict(begun.read)
        if cold is not None:
            cold.end_of_prompt()
        with trace.stage("decode") as stage:
            tokens = gather(begun.tokens(), target.tokenizer.eos_ids, on_token)
            stage.tokens = len(tokens)
        if begun.cards is not None:
            trace.facts |= {"target_cards": [target_line(target, begun.cards)], "card_peaks": begun.cards.peaks}
        if cold is not None:
            choices = cold.choices()
            trace.facts |= {"experts": cold.lines(choices), "expert_choices": asdict(choices)}
    said = split_reply(target.tokenizer.decode(tokens), tokenised.prompt.thinks)
    how = trace, begun.densities, tuple(begun.passes)
    return Answer(said.content, tuple(tokens), ttft, *how, said.reasoning)
