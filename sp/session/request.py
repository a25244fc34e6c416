"""The path of a request: tokenise, draft, score, select, prefill, decode, report; a run is a turn with empty memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from sp.arrays import Bools, Floats
from sp.chat import split_reply
from sp.decode.base import gather
from sp.errors import PromptError
from sp.gguf import Tokenizer
from sp.prompt import Prompt, TokenisedPrompt, Transfer
from sp.scoring import Importance, PrefixKeys, ScoreRequest
from sp.scoring.base import ModelFreeScorer
from sp.selection import Selection
from sp.session.answer import Begun, Progress, begin, begin_on_gpus, target_line
from sp.session.compress import Cut, compress, selection_request
from sp.session.decision import Pair, Settled, check_scoring, may_be_over, settle
from sp.session.loaded import Loaded, gpus_line
from sp.session.options import RunOptions
from sp.session.recall import Memory, Recollection
from sp.session.report import dropped_lines, told, warn_extrapolated
from sp.session.result import Answer, OnToken, Scored
from sp.session.tokenise import Waiting, awaited, once_reading
from sp.trace import Reporter, Stage, Trace, silent

DRAFTED = "tokenise for drafter"  # stage in which a prompt gets its tokens in the drafter's vocabulary
NONE = "is kept; take a larger keep ratio, or a selector that cuts finer"
"""Said where no unit of a selector fits the budget."""


@dataclass(frozen=True)
class Done:
    """What came of a request. `full` is by a full prefill, `turn` what a memory had to do with it. `scored` and
    `scores` are None where nothing was scored, `selection` where all new tokens are kept.
    """

    prompt: TokenisedPrompt
    settled: Settled
    answer: Answer
    full: Answer | None
    scored: Scored | None
    scores: Floats | None
    selection: Selection | None
    turn: Recollection | None


def answer(
    pipeline: Pair,
    prompt: Prompt,
    options: RunOptions,
    memory: Memory | None = None,
    *,
    full: bool = False,
    reporter: Reporter = silent,
    on_token: OnToken | None = None,
    by_head: bool = False,
) -> Done:
    """Answer a prompt, of which a `memory` may hold the beginning; other parameters and errors as of `Pipeline.run`."""
    start, trace, scored, waiting, turn = time.perf_counter(), Trace(), None, None, None
    if memory is None and pipeline.drafts_ahead(options):
        tokenised, settled, scored = _score_ahead(pipeline, prompt, options, trace, full, reporter, by_head)
    else:
        if memory is not None:
            waiting = memory.tokenise_for_drafter(pipeline, prompt, options)
        with trace.stage("tokenise") as stage:
            vocabulary = pipeline.target.tokenizer
            tokenised = prompt.tokenise(vocabulary) if memory is None else memory.tokens.target(prompt)
            stage.tokens = len(tokenised)
        turn = None if memory is None else memory.turn(tokenised)
        settled = settle(pipeline, tokenised, options, full, None if turn is None else turn.present)
    options, activated = settled.options, settled.decision.activated
    if scored is None and (activated if turn is None else turn.scores(pipeline, options, activated)):
        scored = score(pipeline, tokenised, options, reporter, by_head, memory=memory, waiting=waiting)
        trace.stages += scored.trace.stages if turn is None else apart(scored.trace.stages, scored.importance)
        trace.facts |= scored.trace.facts
    scores, selection = None, None
    if scored is not None:
        ahead = time.perf_counter()  # copies run beside the selection
        if activated and pipeline.residency.prepare("target", settled.budget):
            trace.stages.append(Stage("onload target", seconds=time.perf_counter() - ahead))
        scores, selection = select(scored, tokenised, options, trace, settled.fixed, activated=activated)
    everything = np.ones(len(tokenised), bool)
    shown = trace, reporter, "target prefill", on_token
    if turn is None:
        found = read(pipeline, tokenised, everything if selection is None else selection, options, *shown)
    else:
        with trace.stage("recall", int((~turn.present).sum()) if turn.recalling else 0):
            work = turn.lay_out(pipeline.target, options, scored, scores, selection)
        found = finish(pipeline, tokenised, turn.cost, work, *shown)
        for trail in turn.memory.trails:
            trail.settle()
    gpus = [*trace.facts.get("cards", ()), *trace.facts.get("target_cards", ())]
    facts = {"cards": gpus, "window": settled.fit.note, "residency": pipeline.residency.report(start)}
    facts["dropped"] = dropped_lines(tokenised, scored, 0 if turn is None else turn.since)
    trace.facts |= told(pipeline.target, pipeline.drafter, pipeline.speculator, options, scored, trace.stages, facts)
    if scored is not None and memory is not None and memory.drafter is not None and memory.drafter.forgotten:
        trace.facts["positions"] = [*trace.facts.get("positions", ()), *memory.drafter.forgotten]
    whole = found if full and settled.fit.whole else None
    if whole is not None and selection is not None:
        text = next(stage for stage in trace.stages if stage.name == "tokenise")
        alone = Stage("tokenise", text.tokens, text.seconds + text.beside)
        whole = read(pipeline, tokenised, everything, options, Trace(stages=[alone]), reporter, "full prefill")
    return Done(tokenised, settled, found, whole, scored, scores, selection, turn)


def _score_ahead(
    pipeline: Pair,
    prompt: Prompt,
    options: RunOptions,
    trace: Trace,
    full: bool,
    reporter: Reporter,
    by_head: bool,
) -> tuple[TokenisedPrompt, Settled, Scored | None]:
    """Scores, while the host finds the target's tokens, and what these settle; before, where they may be too many."""
    target, reader = pipeline.target, pipeline.scoring_model(options)[1]
    drafted = tokenise_for_drafter(prompt, reader.tokenizer, target.tokenizer, trace)  # by itself: all wait for it
    transfers: list[Transfer] = []

    def carried(prompt: Prompt) -> TokenisedPrompt:
        tokenised = pipeline.tokenise(prompt)
        transfers.append(Transfer.between(drafted.bytes, tokenised.bytes))
        return tokenised

    later, settled, importance = pipeline.gpus is not None, None, None
    with once_reading(pipeline.beside, carried, prompt, reporter, later=later) as (begun, telling):
        if may_be_over(target, drafted, options, pipeline.residency.budget, full):
            tokenised = awaited(begun(), trace)
            settled = settle(pipeline, tokenised, options, full)
        if settled is None or settled.decision.activated:
            importance = score_tokens(pipeline, drafted, options, trace, telling, by_head)
        if settled is None:
            tokenised = awaited(begun(), trace)
    settled = settled or settle(pipeline, tokenised, options, full)
    return tokenised, settled, None if importance is None else Scored(drafted, importance, trace, *transfers)


def tokenise_for_drafter(
    prompt: Prompt, reader: Tokenizer, target: Tokenizer, trace: Trace, known: TokenisedPrompt | None = None
) -> TokenisedPrompt:
    """The prompt in the vocabulary of who scores it; that of the target serves if it is the same and `known`. Where the
    target itself scores, or no model does, there is nothing to do, and no stage.
    """
    if known is not None and reader is target:
        return known
    with trace.stage(DRAFTED) as stage:
        same = known is not None and reader.same_as(target)
        drafted = known if known is not None and same else prompt.tokenise(reader)
        stage.tokens = len(drafted)
    return drafted


def score(
    pipeline: Pair,
    prompt: TokenisedPrompt,
    options: RunOptions,
    reporter: Reporter = silent,
    by_head: bool = False,
    drafted: TokenisedPrompt | None = None,
    *,
    memory: Memory | None = None,
    waiting: Waiting | None = None,
) -> Scored:
    """Let the drafter, or whom the scorer asks for, read the prompt; see `Pipeline.score`. `waiting` is the prompt in
    the vocabulary of the drafter, on its way; a `memory` has keys of its beginning.
    """
    trace, reader = Trace(), pipeline.scoring_model(options)[1]
    if waiting is not None:
        drafted = awaited(waiting, trace, DRAFTED)
    elif drafted is None:
        tokenizers = reader.tokenizer, pipeline.target.tokenizer
        drafted = tokenise_for_drafter(prompt.prompt, *tokenizers, trace, prompt)
    keys = None if memory is None else memory.keys(drafted)
    return Scored(drafted, score_tokens(pipeline, drafted, options, trace, reporter, by_head, keys), trace)


def score_tokens(
    pipeline: Pair,
    drafted: TokenisedPrompt,
    options: RunOptions,
    trace: Trace,
    reporter: Reporter,
    by_head: bool,
    keys: PrefixKeys | None = None,
) -> Importance:
    """Importance of each token in the reader's vocabulary, who may hold `keys` of some, or read on several GPUs.
    PromptError: the budget of device memory cannot hold what that takes; nothing has been read then.
    """
    role, reader = pipeline.scoring_model(options)
    gpus = pipeline.gpus if role == "drafter" and keys is None else None
    n, scorer = len(drafted), options.scorer
    new = n - (keys.trail.tokens if keys else 0)
    if (budget := pipeline.residency.budget) is not None:
        check_scoring(reader, new, scorer, budget)
    if reader.trained is not None and n > reader.trained and not isinstance(scorer, ModelFreeScorer):
        reading = reader.for_prompt(n)
        trace.facts |= {"rope_needed": str(reading.needed)} if reading.needed else {}
        warn_extrapolated(role, reading, n)
    with (
        trace.stage("score", new),
        reporter("scoring", new * reader.model.config.layers) as progress,
        ExitStack() as stack,
    ):
        request = score_request(reader, drafted, options.seed, progress, by_head)
        if gpus is not None:
            alike = [request.model, *(model.with_rope(request.model.config.rope) for model in gpus.models[1:])]
            gpus = gpus._replace(models=alike)
        request = replace(request, keys=keys, gpus=gpus)
        if isinstance(scorer, ModelFreeScorer):
            return scorer.score(request)
        before = 0 if gpus is None else gpus.group.runs
        found = pipeline.residency.attempt(stack, role, new, partial(scorer.score, request))
        if gpus is not None:
            trace.facts["cards"] = [gpus_line(gpus, together=gpus.group.runs > before)]
    return found


def apart(stages: Sequence[Stage], found: Importance) -> list[Stage]:
    """The same stages, `score` as `draft` and `score` where it is known what each took."""

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
    if reader.trained is not None and len(drafted) > reader.trained:
        reader = reader.for_prompt(len(drafted))
    return ScoreRequest(
        model=reader.model,
        ids=drafted.ids,
        positions=np.arange(len(drafted), dtype=np.int64),
        question=drafted.mask("question"),
        needle=drafted.mask("needle"),
        content_end=drafted.content_end,
        protected=drafted.mask("protected"),
        eos_ids=reader.tokenizer.eos_ids,
        seed=seed,
        progress=progress,
        by_head=by_head,
        text=drafted.prompt.text.encode(),
        spans=drafted.bytes,
    )


def select(
    scored: Scored,
    prompt: TokenisedPrompt,
    options: RunOptions,
    trace: Trace,
    fixed: Bools | None = None,
    *,
    activated: bool = True,
    prepared: object = None,
) -> tuple[Floats, Selection | None]:
    """Scores carried to the target's tokens, and if `activated` which of them to keep, of the last ``len(fixed)``.
    `fixed` are those that are kept in any case; without it all are chosen from, and what is protected is kept.
    `prepared`: what the selector made of the text before, see `Selector.prepare`.
    """
    fixed = prompt.mask("protected") if fixed is None else fixed
    start = len(prompt) - len(fixed)
    with trace.stage("select", len(fixed)):
        transfer = scored.transfer or Transfer.between(scored.drafted.bytes, prompt.bytes)
        scores = transfer(scored.importance.scores)
        if not activated:
            return scores, None
        wanted = selection_request(scores, fixed, options.keep_ratio, prompt, start, scored.importance.fineness)
        selection = options.selector(wanted if prepared is None else replace(wanted, prepared=prepared))
        first = int(prompt.bytes[start, 0]) if start else 0
        # Offsets of the scored part become those of the whole prompt, in tokens and in bytes.
        ranges = {
            start + token: tuple((low + first, high + first) for low, high in parts)
            for token, parts in selection.byte_ranges.items()
        }
        selection = replace(selection, selected=selection.selected | wanted.protected, byte_ranges=ranges)
    lines, free = list(selection.notes), ~wanted.protected
    if free.any() and not selection.selected[free].any():
        lines.append(f"of {int(free.sum()):,} tokens that may be left out none {NONE}")
    if lines:
        trace.facts["selection"] = lines
    return scores, selection


def read(
    pipeline: Pair,
    prompt: TokenisedPrompt,
    kept: Bools | Selection,
    options: RunOptions,
    trace: Trace,
    reporter: Reporter = silent,
    what: str = "target prefill",
    on_token: OnToken | None = None,
) -> Answer:
    """Prefill the kept tokens and decode; if they are all, they stand where they stood whatever the options say."""
    kept, parts = (kept.selected, kept.byte_ranges) if isinstance(kept, Selection) else (kept, {})
    if len(kept) and not kept.any():
        raise PromptError(f"none of the {len(kept):,} tokens of the prompt {NONE}")
    whole, target, pool = bool(kept.all()), pipeline.target, pipeline.residency.cache_pool
    with trace.stage("compress", int(kept.sum())):
        given = compress(
            *(prompt, kept, target.tokenizer),
            "original" if whole else options.positions,
            "byte_span" if whole else options.mapping,
            Cut(parts, options.mark_omitted, options.selector.whole),
        )
    start = begin if pool.gpus is None else begin_on_gpus
    work = partial(start, target, given, options, draft=pipeline.speculator, pool=pool)
    return finish(pipeline, prompt, len(given.ids), work, trace, reporter, what, on_token)


def finish(
    pipeline: Pair,
    prompt: TokenisedPrompt,
    count: int,
    work: Callable[[Progress | None], Begun],
    trace: Trace,
    reporter: Reporter,
    what: str,
    on_token: OnToken | None,
) -> Answer:
    """Let the target read `count` tokens and decode. The time to first token is that of all stages of the trace until
    that token is known.
    """
    target = pipeline.target
    with ExitStack() as stack:
        with trace.stage("target prefill", count), reporter(what, count) as progress:
            begun = pipeline.residency.attempt(stack, "target", count, partial(work, progress))
        ttft, cold = trace.seconds, target.model.cold
        if begun.read:
            trace.facts["prefill_read"] = dict(begun.read)
        if cold is not None:
            cold.end_of_prompt()
        with trace.stage("decode") as stage:
            tokens = gather(begun.tokens(), target.tokenizer.eos_ids, on_token)
            stage.tokens = len(tokens)
        if begun.gpus is not None:
            trace.facts |= {"target_cards": [target_line(target, begun.gpus)], "card_peaks": begun.gpus.peaks}
        if cold is not None:
            choices = cold.choices()
            trace.facts |= {"experts": cold.lines(choices), "expert_choices": asdict(choices)}
    said = split_reply(target.tokenizer.decode(tokens), prompt.prompt.thinks)
    return Answer(said.content, tuple(tokens), ttft, trace, begun.densities, tuple(begun.passes), said.reasoning)
