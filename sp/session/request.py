"""The path of a request: tokenise, draft, score, select, prefill, decode, report; a run is a turn without memory."""

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
from sp.session.answer import PrefilledAnswer, Progress, begin, begin_on_gpus, target_line
from sp.session.compress import SelectionDetails, compress, positions_for, selection_request
from sp.session.decision import ModelPair, RequestPlan, check_scoring, may_be_over, plan_request
from sp.session.loaded import Loaded, gpus_line
from sp.session.options import RunOptions
from sp.session.recall import Memory, Recollection
from sp.session.report import dropped_lines, launch_lines, report_facts, warn_extrapolated
from sp.session.result import Answer, OnToken, Scored
from sp.session.tokenise import Waiting, awaited, once_reading
from sp.trace import Reporter, Stage, Trace, silent

TOKENISING = "tokenise for drafter"  # name of the stage
NOTHING_FITS = "is kept; use a larger keep ratio, or a selector with smaller units"
"""End of a message where no unit of a selector fits the budget."""


@dataclass(frozen=True)
class RequestResult:
    """The result of a request.

    `full` is the answer by a full prefill, `turn` the memory's part in it. `scored` and `scores` are None where nothing
    was scored, `selection` where all new tokens are kept.
    """

    prompt: TokenisedPrompt
    plan: RequestPlan
    answer: Answer
    full: Answer | None
    scored: Scored | None
    scores: Floats | None
    selection: Selection | None
    turn: Recollection | None


def answer(
    pipeline: ModelPair,
    prompt: Prompt,
    options: RunOptions,
    memory: Memory | None = None,
    *,
    full: bool = False,
    reporter: Reporter = silent,
    on_token: OnToken | None = None,
    by_head: bool = False,
) -> RequestResult:
    """Answer a prompt, whose beginning a `memory` may hold; other parameters and errors as for `Pipeline.run`."""
    start, trace, scored, waiting, turn = time.perf_counter(), Trace(), None, None, None
    if memory is None and pipeline.overlaps_tokenising(options):
        tokenised, plan, scored = _score_overlapped(pipeline, prompt, options, trace, full, reporter, by_head)
    else:
        if memory is not None:
            waiting = memory.tokenise_for_drafter(pipeline, prompt, options)
        with trace.stage("tokenise") as stage:
            vocabulary = pipeline.target.tokenizer
            tokenised = prompt.tokenise(vocabulary) if memory is None else memory.tokens.target(prompt)
            stage.tokens = len(tokenised)
        turn = None if memory is None else memory.turn(tokenised)
        plan = plan_request(pipeline, tokenised, options, full, None if turn is None else turn.present)
    options, activated = plan.options, plan.decision.activated
    if scored is None and (activated if turn is None else turn.scores(pipeline, options, activated)):
        scored = score(pipeline, tokenised, options, reporter, by_head, memory=memory, waiting=waiting)
        trace.stages += scored.trace.stages if turn is None else apart(scored.trace.stages, scored.importance)
        trace.facts |= scored.trace.facts
    scores, selection = None, None
    if scored is not None:
        before = time.perf_counter()  # weights are copied to the device while the host selects
        if activated and pipeline.memory_manager.prepare("target", plan.budget):
            trace.stages.append(Stage("onload target", seconds=time.perf_counter() - before))
        scores, selection = select(scored, tokenised, options, trace, plan.fixed, activated=activated)
    everything = np.ones(len(tokenised), bool)  # for prompts that are not compressed, and for the full prefill
    reporting = trace, reporter, "target prefill", on_token
    if turn is None:
        answered = read(pipeline, tokenised, everything if selection is None else selection, options, *reporting)
    else:
        with trace.stage("recall", int((~turn.present).sum()) if turn.recalling else 0):
            work = turn.lay_out(pipeline.target, options, scored, scores, selection)
        answered = finish(pipeline, tokenised, turn.cost, work, *reporting)
        turn.memory.settle()
    gpus = [*trace.facts.get("cards", ()), *trace.facts.get("target_cards", ())]
    facts = {"cards": gpus, "window": plan.fit.note, "residency": pipeline.memory_manager.report(start)}
    facts["dropped"] = dropped_lines(tokenised, scored, 0 if turn is None else turn.since)
    trace.facts |= report_facts(
        pipeline.target, pipeline.drafter, pipeline.speculator, options, scored, trace.stages, facts,
        selects=(selection is not None and not selection.selected.all())
        or (turn is not None and not turn.present.all()),
    )  # fmt: skip
    if scored is not None and memory is not None and memory.drafter is not None and memory.drafter.forgotten:
        trace.facts["positions"] = [*trace.facts.get("positions", ()), *memory.drafter.forgotten]
    whole = answered if full and plan.fit.whole else None
    if whole is not None and selection is not None:
        text = next(stage for stage in trace.stages if stage.name == "tokenise")
        # The full prefill would not overlap it with scoring.
        alone = Stage("tokenise", text.tokens, text.seconds + text.beside)
        whole = read(pipeline, tokenised, everything, options, Trace(stages=[alone]), reporter, "full prefill")
    return RequestResult(tokenised, plan, answered, whole, scored, scores, selection, turn)


def _score_overlapped(
    pipeline: ModelPair,
    prompt: Prompt,
    options: RunOptions,
    trace: Trace,
    full: bool,
    reporter: Reporter,
    by_head: bool,
) -> tuple[TokenisedPrompt, RequestPlan, Scored | None]:
    """Score while the host tokenises for the target, and plan the request.

    The plan comes first if the prompt may have too many tokens, so that no model reads in vain.
    """
    target, reader = pipeline.target, pipeline.scoring_model(options)[1]
    drafted = tokenise_for_drafter(
        prompt, reader.tokenizer, target.tokenizer, trace
    )  # not overlapped: everything else needs it
    transfers: list[Transfer] = []

    def carried(prompt: Prompt) -> TokenisedPrompt:
        tokenised = pipeline.tokenise(prompt)
        # Known before the scores are, so it costs no time later.
        transfers.append(Transfer.between(drafted.bytes, tokenised.bytes))
        return tokenised

    later, plan, importance = pipeline.gpus is not None, None, None
    with once_reading(pipeline.executor, carried, prompt, reporter, later=later) as (started, watching):
        if may_be_over(target, drafted, options, pipeline.memory_manager.budget, full):
            tokenised = awaited(started(), trace)
            plan = plan_request(pipeline, tokenised, options, full)
        if plan is None or plan.decision.activated:
            importance = score_tokens(pipeline, drafted, options, trace, watching, by_head)
        if plan is None:
            tokenised = awaited(started(), trace)
    plan = plan or plan_request(pipeline, tokenised, options, full)
    return tokenised, plan, None if importance is None else Scored(drafted, importance, trace, *transfers)


def tokenise_for_drafter(
    prompt: Prompt, reader: Tokenizer, target: Tokenizer, trace: Trace, known: TokenisedPrompt | None = None
) -> TokenisedPrompt:
    """Return the prompt in the vocabulary of the scoring model; `known`, the target's tokens, if these are the same.

    No stage is recorded where the target itself scores, or no model does.
    """
    if known is not None and reader is target:
        return known
    with trace.stage(TOKENISING) as stage:
        same = known is not None and reader.same_as(target)
        drafted = known if known is not None and same else prompt.tokenise(reader)
        stage.tokens = len(drafted)
    return drafted


def score(
    pipeline: ModelPair,
    prompt: TokenisedPrompt,
    options: RunOptions,
    reporter: Reporter = silent,
    by_head: bool = False,
    drafted: TokenisedPrompt | None = None,
    *,
    memory: Memory | None = None,
    waiting: Waiting | None = None,
) -> Scored:
    """Score a prompt with the drafter, or the model that the scorer needs; see `Pipeline.score`.

    `waiting`: the prompt in the drafter's vocabulary, being computed; `memory`: has keys of its beginning.
    """
    trace, reader = Trace(), pipeline.scoring_model(options)[1]
    if waiting is not None:
        drafted = awaited(waiting, trace, TOKENISING)
    elif drafted is None:
        tokenizers = reader.tokenizer, pipeline.target.tokenizer
        drafted = tokenise_for_drafter(prompt.prompt, *tokenizers, trace, prompt)
    keys = None if memory is None else memory.keys(drafted)
    return Scored(drafted, score_tokens(pipeline, drafted, options, trace, reporter, by_head, keys), trace)


def score_tokens(
    pipeline: ModelPair,
    drafted: TokenisedPrompt,
    options: RunOptions,
    trace: Trace,
    reporter: Reporter,
    by_head: bool,
    keys: PrefixKeys | None = None,
) -> Importance:
    """Return the importance of each token in the vocabulary of the scoring model.

    The model may have `keys` of some tokens, or read on several GPUs. PromptError, before anything is read, if the
    budget of device memory is too small.
    """
    role, reader = pipeline.scoring_model(options)
    gpus = pipeline.gpus if role == "drafter" else None
    n, scorer = len(drafted), options.scorer
    new = n - (keys.cache.tokens if keys else 0)  # tokens that the model has to read
    if (budget := pipeline.memory_manager.budget) is not None:
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
        before = 0 if gpus is None else gpus.group.runs  # tells afterwards whether all GPUs took part
        importance = pipeline.memory_manager.attempt(stack, role, new, partial(scorer.score, request))
        if gpus is not None:
            trace.facts["cards"] = [gpus_line(gpus, together=gpus.group.runs > before)]
        if role == "drafter" and reader.model.device == "cuda" and (lines := launch_lines(reader, n)):
            trace.facts["launches"] = lines
    return importance


def apart(stages: Sequence[Stage], importance: Importance) -> list[Stage]:
    """Split the stage `score` into `draft` and `score` where it is known what each took."""

    def parts(stage: Stage) -> list[Stage]:
        weighing = min(importance.weighing, stage.seconds)
        if stage.name != "score" or not weighing:
            return [stage]
        return [
            Stage("draft", stage.tokens, stage.seconds - weighing),
            Stage("score", len(importance.scores), weighing),
        ]

    return [part for stage in stages for part in parts(stage)]


def score_request(
    reader: Loaded,
    drafted: TokenisedPrompt,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    by_head: bool = False,
) -> ScoreRequest:
    """Return the request for a scorer about a prompt in its model's vocabulary, with RoPE scaled for its length."""
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
    """Transfer scores to the target's tokens, and if `activated` select among the last ``len(fixed)`` tokens.

    `fixed`: tokens that are kept in any case, by default the protected ones of the whole prompt; `prepared`: the
    result of `Selector.prepare` for the text.
    """
    fixed = prompt.mask("protected") if fixed is None else fixed
    start = len(prompt) - len(fixed)
    with trace.stage("select", len(fixed)):
        transfer = scored.transfer or Transfer.between(scored.drafted.bytes, prompt.bytes)
        scores = transfer(scored.importance.scores)  # (n,) by target tokens
        if not activated:
            return scores, None
        request = selection_request(scores, fixed, options.keep_ratio, prompt, start, scored.importance.fineness)
        selection = options.selector(request if prepared is None else replace(request, prepared=prepared))
        first = int(prompt.bytes[start, 0]) if start else 0  # byte at which the new part begins
        # Offsets of the scored part become those of the whole prompt, in tokens and in bytes.
        ranges = {
            start + token: tuple((low + first, high + first) for low, high in parts)
            for token, parts in selection.byte_ranges.items()
        }
        selection = replace(selection, selected=selection.selected | request.protected, byte_ranges=ranges)
    lines, free = list(selection.notes), ~request.protected
    if free.any() and not selection.selected[free].any():
        lines.append(f"of {int(free.sum()):,} tokens that may be left out none {NOTHING_FITS}")
    if lines:
        trace.facts["selection"] = lines
    return scores, selection


def read(
    pipeline: ModelPair,
    prompt: TokenisedPrompt,
    selected: Bools | Selection,
    options: RunOptions,
    trace: Trace,
    reporter: Reporter = silent,
    label: str = "target prefill",
    on_token: OnToken | None = None,
) -> Answer:
    """Prefill the selected tokens and decode; if all are selected, they keep their positions in any case."""
    mask, ranges = (selected.selected, selected.byte_ranges) if isinstance(selected, Selection) else (selected, {})
    if len(mask) and not mask.any():
        raise PromptError(f"none of the {len(mask):,} tokens of the prompt {NOTHING_FITS}")
    whole, target, pool = bool(mask.all()), pipeline.target, pipeline.memory_manager.cache_pool
    with trace.stage("compress", int(mask.sum())):
        compressed = compress(
            *(prompt, mask, target.tokenizer),
            "original" if whole else positions_for(options, target.model.config),
            "byte_span" if whole else options.mapping,
            SelectionDetails(ranges, options.mark_omitted, options.selector.whole),
        )
    start = begin if pool.gpus is None else begin_on_gpus
    work = partial(start, target, compressed, options, draft=pipeline.speculator, pool=pool)
    return finish(pipeline, prompt, len(compressed.ids), work, trace, reporter, label, on_token)


def finish(
    pipeline: ModelPair,
    prompt: TokenisedPrompt,
    count: int,
    work: Callable[[Progress | None], PrefilledAnswer],
    trace: Trace,
    reporter: Reporter,
    label: str,
    on_token: OnToken | None,
) -> Answer:
    """Let the target prefill `count` tokens and decode.

    The time to first token is the time of all stages of the trace until that token is known.
    """
    target = pipeline.target
    with ExitStack() as stack:
        with trace.stage("target prefill", count), reporter(label, count) as progress:
            prefilled = pipeline.memory_manager.attempt(stack, "target", count, partial(work, progress))
        ttft, cold = trace.seconds, target.model.cold  # the first token is known; decoding does not count
        if prefilled.prefill_counts:
            trace.facts["prefill_read"] = dict(prefilled.prefill_counts)
        if cold is not None:
            cold.end_of_prompt()
        with trace.stage("decode") as stage:
            tokens = gather(prefilled.tokens(), target.tokenizer.eos_ids, on_token)
            stage.tokens = len(tokens)
        if prefilled.gpus is not None:
            trace.facts |= {"target_cards": [target_line(target, prefilled.gpus)], "card_peaks": prefilled.gpus.peaks}
        if cold is not None:
            choices = cold.choices()
            trace.facts |= {"experts": cold.lines(choices), "expert_choices": asdict(choices)}
    reply = split_reply(target.tokenizer.decode(tokens), prompt.prompt.thinks)
    return Answer(
        reply.content, tuple(tokens), ttft, trace, prefilled.densities, tuple(prefilled.passes), reply.reasoning
    )
