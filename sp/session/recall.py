"""Recall of text that earlier turns left out: which sentences come back for a question, and at which place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.models import SessionCache
from sp.prompt import Prompt, TokenisedPrompt
from sp.prompt.heat import whole_characters
from sp.scoring import PrefixKeys
from sp.selection import Selection, token_budget
from sp.selection.ranking import Constrained, sentence_bounds
from sp.session.answer import PrefilledAnswer, Progress
from sp.session.compress import SelectedTokens, positions_for, selection_request
from sp.session.decision import ModelPair, over
from sp.session.loaded import Loaded
from sp.session.memory import DrafterMemory, Slots, TurnPlan, message_ends, message_starts
from sp.session.options import ConversationOptions, Positions, Recall, RunOptions, check_run
from sp.session.result import Recalled, RecallMethod, Scored
from sp.session.shared_memory import target_memory
from sp.session.tokenise import Vocabularies, Waiting, timed

LONGEST = 64  # tokens of the longest sentence that comes back whole
LEAST = 128  # tokens that may be recalled whatever `recall_ratio` is


@dataclass(frozen=True)
class OmittedRun:
    """Tokens ``[start, end)`` of one sentence that were left out.

    `score`: the highest score of the sentence's recalled tokens; `joined`: it continues the run before, with the same
    sentence, if the target has the tokens between, or with the next sentence.
    """

    start: int
    end: int
    score: float
    joined: bool = False


def choose_recalled(
    scores: Floats,
    prompt: TokenisedPrompt,
    present: Bools,
    run: RunOptions,
    options: ConversationOptions,
    fineness: int,
) -> tuple[list[OmittedRun], float]:
    """Choose the runs to recall among tokens that are not `present`, (decided,); returns them and the score threshold.

    The selector compares the tokens left out with each other, within the budget of `options`. Its choice is recalled
    only where the best token of its sentence is among the best of the transcript, as many as the keep ratio selects,
    and with all that was left out of the sentence: a value without its key, far from its place, says nothing.
    """
    # Score of the worst of the best `keep_ratio`.
    threshold = float(np.quantile(scores, 1 - run.keep_ratio, method="higher"))
    decided, out = len(present), ~present
    count = int(out.sum())  # tokens left out so far
    budget = min(options.recall_tokens, count, max(LEAST, token_budget(options.recall_ratio, count)))
    if not budget:
        return [], threshold
    # Tokens that the target has must not attract the selector.
    omitted_scores = np.where(present, scores.min(), scores[:decided]).astype(np.float32)
    selector = run.selector
    if isinstance(selector, Constrained):
        selector = replace(selector, sink=0, tail=0)  # these constraints are about the whole prompt
    request = selection_request(omitted_scores, present, budget / count, prompt, 0, fineness)
    chosen = (selector(request).selected | request.protected) & out
    bounds = sentence_bounds(request, LONGEST)
    if (starts := request.characters) is not None:
        bounds = np.append(np.unique(starts[bounds[:-1]]), len(starts))  # a sentence begins with a whole character
    chosen = whole_sentences(chosen, out, omitted_scores, bounds, budget)
    return runs_above(threshold, runs_of(chosen, scores[:decided], bounds)), threshold


def runs_of(chosen: Bools, scores: Floats, bounds: Ints) -> list[OmittedRun]:
    """Return the runs of `chosen` tokens, (n,), split at ends of sentences."""
    starts = bounds[:-1]
    best = np.maximum.reduceat(np.where(chosen, scores, -np.inf), starts)  # (sentences,)
    # Starts and ends, alternating.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    cuts = starts[1:][chosen[starts[1:]] & chosen[starts[1:] - 1]]
    pairs = np.sort(np.concatenate([edges, cuts, cuts])).reshape(-1, 2)  # a cut ends a run and starts the next
    before = np.concatenate([[0], pairs[:-1, 1]])
    sentence, last = (np.searchsorted(bounds, places, "right") - 1 for places in (pairs[:, 0], before - 1))
    joined = (before == pairs[:, 0]) | (sentence == last)
    joined[:1] = False
    return [
        OmittedRun(int(start), int(end), float(score), bool(follows))
        for (start, end), score, follows in zip(pairs, best[sentence], joined, strict=True)
    ]


def runs_above(threshold: float, runs: Sequence[OmittedRun]) -> list[OmittedRun]:
    """Return the runs that reach a score; one that continues a run below it is no longer joined.

    >>> runs = [OmittedRun(0, 5, 0.9), OmittedRun(50, 55, 0.1), OmittedRun(55, 60, 0.8, joined=True)]
    >>> [(run.start, run.joined) for run in runs_above(0.5, runs)]
    [(0, False), (55, False)]
    """
    reaches = [run.score >= threshold for run in runs]
    return [
        replace(run, joined=run.joined and before)
        for run, before, enough in zip(runs, [False, *reaches], reaches, strict=False)
        if enough
    ]


def whole_sentences(chosen: Bools, out: Bools, scores: Floats, bounds: Ints, budget: int) -> Bools:
    """Extend `chosen` tokens to all tokens left `out` of their sentences, best sentences first, within a budget; (n,).

    The choice is unchanged if no sentence fits.
    """
    if not chosen.any():
        return chosen
    sentence = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    best = np.full(len(bounds) - 1, -np.inf)
    np.maximum.at(best, sentence[chosen], scores[chosen])
    hit = np.flatnonzero(best > -np.inf)
    hit = hit[np.argsort(-best[hit], kind="stable")]
    sizes = np.bincount(sentence[out], minlength=len(best))[hit]
    hit = hit[np.cumsum(sizes) <= budget]  # whole sentences only
    return np.isin(sentence, hit) & out if len(hit) else chosen


def tokens_of(runs: Sequence[OmittedRun]) -> Ints:
    """Return the tokens of runs, ascending."""
    return np.concatenate([np.arange(run.start, run.end) for run in runs] or [np.empty(0, np.int64)])


@dataclass(frozen=True)
class Planner:
    """The input of a plan.

    `old`: slots of earlier turns; `transcript`: token ids; `decided`: number of tokens about which earlier turns
    decided; `tokens`: the selected new tokens; `positions`: see `RunOptions`.
    """

    old: Slots
    transcript: Ints
    decided: int
    tokens: SelectedTokens
    positions: Positions

    def appended(
        self, runs: Sequence[OmittedRun] = (), place: int = 0, gap: Ints | None = None, end: Ints | None = None
    ) -> TurnPlan:
        """Plan new tokens behind the old slots, and an excerpt of `runs` before the token at `place`.

        `gap` is put between runs that are not joined and `end` behind the last.
        """
        common = self.old.before(self.decided)
        head, split = self.old.first(common), max(place, self.decided) if runs else self.decided
        before = self._rest(self.decided, split, head.offset)
        if not runs:
            return self._plan(head + self._rest(split, len(self.transcript), head.offset), common, self.decided, None)
        assert gap is not None
        assert end is not None
        pieces: list[Ints] = []
        sources: list[Ints] = []
        for run, following in zip_longest(runs, runs[1:]):
            glue = end if following is None else gap[:0] if following.joined else gap
            pieces += [self.transcript[run.start : run.end], glue]
            sources += [np.arange(run.start, run.end), np.full(len(glue), -1)]
        ids, source = np.concatenate(pieces), np.concatenate(sources)
        positions = split + head.offset + np.arange(len(ids))  # continue after the tokens before the excerpt
        excerpt = Slots(ids, positions, np.full(len(ids), split), source)
        after = self._rest(split, len(self.transcript), head.offset + len(ids))
        return self._plan(head + before + excerpt + after, common, self.decided, "append")

    def rewound(self, runs: Sequence[OmittedRun] = ()) -> TurnPlan:
        """Plan old slots before the first of the runs; after it all selected and recalled tokens at their own places.

        Without runs the tokens of excerpts return to their places. Old tokens that were read in part are then read
        whole, because the rest of them may be next to recalled text.
        """
        selected = self.tokens.selected.copy()
        selected[: self.decided] = self.old.in_place(self.decided)
        selected[tokens_of(runs)] = True
        excerpts = self.old.excerpts
        start = min([*(run.start for run in runs), *([] if runs else self.old.place[excerpts].tolist()), self.decided])
        while True:  # tokens of excerpts behind the start return to their places, which may move the start
            back = self.old.source[excerpts & (self.old.place >= start) & (self.old.source >= 0)]
            selected[back] = True
            first = min([start, *back.tolist()])
            if first == start:
                break
            start = first
        common = self.old.before(start)
        head = self.old.first(common)
        index = np.flatnonzero(selected[start:]) + start
        return self._plan(head + self._of(index, head.offset), common, start, "rewind")

    def _rest(self, start: int, stop: int, offset: int) -> Slots:
        return self._of(np.flatnonzero(self.tokens.selected[start:stop]) + start, offset)

    def _of(self, index: Ints, offset: int) -> Slots:
        return Slots.of(self.tokens.ids, index, offset, self.tokens.source)

    def _plan(self, slots: Slots, common: int, decided: int, way: RecallMethod | None) -> TurnPlan:
        if self.positions == "contiguous":
            # Places stay, positions close up.
            slots = Slots(slots.ids, np.arange(len(slots)), slots.place, slots.source)
        return TurnPlan(slots, common, decided, way)


GLUE = "\n", "\n\n"  # text between the spans of an excerpt, and behind it


def lay_out(
    planner: Planner,
    prompt: TokenisedPrompt,
    runs: Sequence[OmittedRun],
    recall: Recall,
    target: Loaded,
    options: RunOptions,
    cost: Callable[[TurnPlan], int],
) -> TurnPlan:
    """Return the cheapest plan with all selected and recalled tokens that fits the window.

    Runs are dropped if there is no room for them. PromptError if the transcript does not fit even without them.
    """
    context, new = target.model.config.context, options.max_new_tokens

    def fits(plan: TurnPlan) -> bool:
        return plan.slots.end + new <= context

    plans = list[TurnPlan]()
    if runs and recall in ("auto", "append"):
        starts = message_starts(prompt)
        later = starts[(starts >= planner.decided) & (starts < len(prompt))]
        place = int(later[0]) if len(later) else planner.decided  # an excerpt precedes the new messages
        gap, end = (target.tokenizer.encode(text, begins=False).ids for text in GLUE)
        plans.append(planner.appended(runs, place, gap, end))
    if runs and recall in ("auto", "rewind"):
        plans.append(planner.rewound(runs))
    if fit := [plan for plan in plans if fits(plan)]:
        return min(fit, key=cost)  # the first, "append", if both cost the same
    plain = planner.appended()  # nothing recalled
    if not fits(plain) and planner.old.offset:
        plain = planner.rewound()  # without excerpts there may be room
    if not fits(plain):
        raise over(target, plain.slots.end, options)
    return plain


def reopened(old: Slots, starts: Ints, decided: int, parted: bool) -> int | None:
    """Return the first token of the message that new text begins within and that is read again as a whole, or None.

    It is the question, if it is asked once more: recalled text comes before it. It is a changed message, too, if
    something was recalled before it: that text is dropped with it.

    >>> reopened(Slots.of(np.arange(9), np.arange(9)), np.array([0, 4, 7]), 8, False)
    7
    >>> reopened(Slots.of(np.arange(9), np.arange(9)), np.array([0, 4, 7]), 5, True)
    """
    message = int(np.searchsorted(starts, decided)) - 1
    if message < 0:
        return None
    begin = int(starts[message])
    return begin if message == len(starts) - 1 or (parted and begin in old.place[old.excerpts]) else None


def recalled_span(run: OmittedRun, prompt: TokenisedPrompt, threshold: float, way: RecallMethod) -> Recalled:
    """Return the report on a span that was recalled."""
    first, last = int(prompt.bytes[run.start, 0]), int(prompt.bytes[run.end - 1, 1])
    text = prompt.prompt.text.encode()[first:last].decode(errors="replace")
    return Recalled(text, run.start, run.end, run.score, threshold, way)


class Memory:
    """The caches of both models, as the path of a request uses them."""

    def __init__(
        self, pipeline: ModelPair, run: RunOptions, options: ConversationOptions, tokens: Vocabularies
    ) -> None:
        self.tokens, self.options = tokens, options
        layers = check_run(run, pipeline.drafter)
        self.target = target_memory(pipeline.target, run, options.snapshots, pipeline.memory_manager)
        self.drafter: DrafterMemory | None = None
        if layers is not None and pipeline.drafter is not None:
            self.drafter = DrafterMemory(pipeline.drafter, layers, options.keys, options.snapshots)

    def tokenise_for_drafter(self, pipeline: ModelPair, prompt: Prompt, options: RunOptions) -> Waiting | None:
        """Start tokenising for the drafter; None if its tokens are the target's, or nothing is drafted."""
        if self.drafter is None or options.keep_ratio == 1 or self.tokens.drafter is self.tokens.target:
            return None
        return pipeline.executor.submit(timed, self.tokens.drafter, prompt)

    def turn(self, prompt: TokenisedPrompt) -> Recollection:
        """Return what is cached of a prompt's beginning."""
        target = self.target
        decided = int(whole_characters(prompt)[target.decided(prompt.ids)])  # a character is decided as a whole
        turn = Recollection(self, prompt, target.slots.first(target.slots.before(decided)), decided)
        parted = decided < len(target.transcript)
        if not turn.recalling or (begin := reopened(turn.old, message_starts(prompt), decided, parted)) is None:
            return turn
        question = np.flatnonzero(prompt.mask("question"))
        if decided == len(prompt) - 1 and len(question) and question[-1] < begin:
            turn.recalling = False  # repeated after a tool's result: text for the question was recalled then
        else:
            turn.old, turn.decided = turn.old.first(turn.old.before(begin)), begin
        return turn

    def keys(self, drafted: TokenisedPrompt) -> PrefixKeys | None:
        """Return keys of a prompt's beginning, for its scorer to continue from."""
        return None if self.drafter is None else self.drafter.keys(drafted.ids, message_ends(drafted))

    @property
    def caches(self) -> tuple[SessionCache, ...]:
        """The session caches of both models."""
        return (*self.target.caches, *([] if self.drafter is None else [self.drafter.cache]))

    def settle(self) -> None:
        """Move what need not stay on the device to host memory; to be called when no request waits."""
        self.target.settle()
        if self.drafter is not None:
            self.drafter.cache.settle()


@dataclass
class Recollection:
    """The cached part of a prompt, and what is recalled for it.

    Attributes
    ----------
    memory : Memory
    prompt : TokenisedPrompt
    old : Slots
        Slots of the first `decided` tokens, chosen by earlier turns.
    decided : int
    recalling : bool
        Tokens that were left out may come back.
    runs : list of OmittedRun
        Runs that do, as far as there is room; set by `lay_out`.
    threshold : float
        Score that they had to reach.
    plan : TurnPlan
    cost : int
        Tokens that the target has to read.
    """

    memory: Memory
    prompt: TokenisedPrompt
    old: Slots
    decided: int
    recalling: bool = field(init=False)
    runs: list[OmittedRun] = field(default_factory=list)
    threshold: float = 0.0
    plan: TurnPlan = field(init=False)
    cost: int = 0

    def __post_init__(self) -> None:
        self.recalling = self.memory.options.recall != "off" and not self.present.all()

    @property
    def present(self) -> Bools:
        """Decided tokens that the target's cache holds, (decided,)."""
        return self.old.present(self.decided)

    @property
    def since(self) -> int:
        """Offset of the first new byte of the prompt."""
        return int(self.prompt.bytes[self.decided - 1, 1]) if self.decided else 0

    def scores(self, pipeline: ModelPair, options: RunOptions, activated: bool) -> bool:
        """Return True if the prompt is to be scored, for new tokens or for old ones."""
        return pipeline.drafter is not None and options.keep_ratio < 1 and (activated or self.recalling)

    def lay_out(
        self,
        target: Loaded,
        options: RunOptions,
        scored: Scored | None,
        scores: Floats | None,
        selection: Selection | None,
    ) -> Callable[[Progress | None], PrefilledAnswer]:
        """Plan the turn and return the work of the target; `cost` is known then."""
        prompt, memory, selected = self.prompt, self.memory, np.ones(len(self.prompt), bool)
        if selection is not None:
            selected[self.decided :] = selection.selected
        ranges = {} if selection is None else selection.byte_ranges
        tokens = SelectedTokens.of(prompt, selected, ranges, target.tokenizer)
        if self.recalling and scored is not None and scores is not None:
            fineness = scored.importance.fineness
            self.runs, self.threshold = choose_recalled(scores, prompt, self.present, options, memory.options, fineness)
        positions = positions_for(options, target.model.config)
        planner = Planner(self.old, prompt.ids, self.decided, tokens, positions)
        self.plan = lay_out(planner, prompt, self.runs, memory.options.recall, target, options, memory.target.cost)
        self.cost = memory.target.cost(self.plan)
        return partial(memory.target.begin, self.plan, prompt.ids, message_ends(prompt), options)
