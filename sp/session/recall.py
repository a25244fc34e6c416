"""What earlier turns left behind, and what of it comes back for a question: which sentences, and read where."""

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
from sp.session.answer import Begun, Progress
from sp.session.compress import Shown, selection_request
from sp.session.decision import Pair, over
from sp.session.loaded import Loaded
from sp.session.memory import DrafterMemory, Plan, Slots, TargetMemory, message_ends, message_starts
from sp.session.options import ConversationOptions, Positions, Recall, RunOptions, check_run
from sp.session.result import Recalled, Scored, Way
from sp.session.tokenise import Vocabularies, Waiting, timed

LONGEST = 64  # tokens of a sentence that comes back whole
LEAST = 128  # tokens that may be recalled whatever the share is


@dataclass(frozen=True)
class Run:
    """Tokens ``[start, end)`` of one sentence that were left out. `joined`: whether it goes on from the run before:
    with the same sentence, of which the target has what lies between, or with the next.
    """

    start: int
    end: int
    score: float  # the highest of what comes back of the sentence
    joined: bool = False


def choose_recalled(
    scores: Floats,
    prompt: TokenisedPrompt,
    present: Bools,
    run: RunOptions,
    options: ConversationOptions,
    fineness: int,
) -> tuple[list[Run], float]:
    """Runs of tokens that are not `present` among the first ones, (decided,), and should be; and what they reached. The
    selector compares tokens left out with each other, within the budget of `options`. What it takes is recalled only
    where the best of its sentence is among the best of the transcript, as many as the keep ratio asks for, and with all
    that was left out of that: a value without its key, far from where it stood, says nothing.
    """
    threshold = float(np.quantile(scores, 1 - run.keep_ratio, method="higher"))
    decided, out = len(present), ~present
    count = int(out.sum())
    budget = min(options.recall_tokens, count, max(LEAST, token_budget(options.recall_ratio, count)))
    if not budget:
        return [], threshold
    mine = np.where(present, scores.min(), scores[:decided]).astype(np.float32)
    selector = run.selector
    if isinstance(selector, Constrained):
        selector = replace(selector, sink=0, tail=0)
    request = selection_request(mine, present, budget / count, prompt, 0, fineness)
    taken = (selector(request).selected | request.protected) & out
    bounds = sentence_bounds(request, LONGEST)
    if (starts := request.characters) is not None:
        bounds = np.append(np.unique(starts[bounds[:-1]]), len(starts))
    taken = whole_sentences(taken, out, mine, bounds, budget)
    return [run for run in runs_of(taken, scores[:decided], bounds) if run.score >= threshold], threshold


def runs_of(taken: Bools, scores: Floats, bounds: Ints) -> list[Run]:
    """The runs of `taken` tokens, (n,), cut where sentences end."""
    starts = bounds[:-1]
    best = np.maximum.reduceat(np.where(taken, scores, -np.inf), starts)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], taken, [False]]).astype(np.int8)))
    cuts = starts[1:][taken[starts[1:]] & taken[starts[1:] - 1]]
    pairs = np.sort(np.concatenate([edges, cuts, cuts])).reshape(-1, 2)
    before = np.concatenate([[0], pairs[:-1, 1]])
    sentence, last = (np.searchsorted(bounds, at, "right") - 1 for at in (pairs[:, 0], before - 1))
    joined = (before == pairs[:, 0]) | (sentence == last)
    joined[:1] = False
    return [
        Run(int(start), int(end), float(score), bool(follows))
        for (start, end), score, follows in zip(pairs, best[sentence], joined, strict=True)
    ]


def whole_sentences(taken: Bools, out: Bools, scores: Floats, bounds: Ints, budget: int) -> Bools:
    """What was left `out` of the sentences that `taken` tokens are of, best sentences first, within a budget; (n,).
    What no sentence fits into stays as it is.
    """
    if not taken.any():
        return taken
    sentence = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    best = np.full(len(bounds) - 1, -np.inf)
    np.maximum.at(best, sentence[taken], scores[taken])
    hit = np.flatnonzero(best > -np.inf)
    hit = hit[np.argsort(-best[hit], kind="stable")]
    sizes = np.bincount(sentence[out], minlength=len(best))[hit]
    hit = hit[np.cumsum(sizes) <= budget]
    return np.isin(sentence, hit) & out if len(hit) else taken


def tokens_of(runs: Sequence[Run]) -> Ints:
    """Their tokens, ascending."""
    return np.concatenate([np.arange(each.start, each.end) for each in runs] or [np.empty(0, np.int64)])


@dataclass(frozen=True)
class Planner:
    """What a plan is made from."""

    old: Slots
    transcript: Ints
    decided: int
    shown: Shown
    positions: Positions

    def appended(
        self, runs: Sequence[Run] = (), place: int = 0, gap: Ints | None = None, end: Ints | None = None
    ) -> Plan:
        """New tokens behind old slots, and an excerpt of `runs` before the token at `place`. `gap` stands between runs
        that are not joined and `end` behind the last.
        """
        common = self.old.before(self.decided)
        head, cut = self.old.first(common), max(place, self.decided) if runs else self.decided
        before = self._rest(self.decided, cut, head.offset)
        if not runs:
            return self._plan(head + self._rest(cut, len(self.transcript), head.offset), common, self.decided, None)
        assert gap is not None
        assert end is not None
        pieces: list[Ints] = []
        sources: list[Ints] = []
        for run, following in zip_longest(runs, runs[1:]):
            glue = end if following is None else gap[:0] if following.joined else gap
            pieces += [self.transcript[run.start : run.end], glue]
            sources += [np.arange(run.start, run.end), np.full(len(glue), -1)]
        ids, source = np.concatenate(pieces), np.concatenate(sources)
        positions = cut + head.offset + np.arange(len(ids))
        excerpt = Slots(ids, positions, np.full(len(ids), cut), source)
        after = self._rest(cut, len(self.transcript), head.offset + len(ids))
        return self._plan(head + before + excerpt + after, common, self.decided, "append")

    def rewound(self, runs: Sequence[Run] = ()) -> Plan:
        """Old slots before the first of the runs; from there on all that is kept and recalled where it stood. Without
        runs what excerpts hold comes back so. Old tokens of which a part was read are read whole then: what was left
        out of them may be beside what comes back.
        """
        wanted = self.shown.kept.copy()
        wanted[: self.decided] = self.old.in_place(self.decided)
        wanted[tokens_of(runs)] = True
        excerpts = self.old.excerpts
        start = min([*(run.start for run in runs), *([] if runs else self.old.place[excerpts].tolist()), self.decided])
        while True:  # excerpts behind the start go; what they hold comes back where it stood
            back = self.old.source[excerpts & (self.old.place >= start) & (self.old.source >= 0)]
            wanted[back] = True
            first = min([start, *back.tolist()])
            if first == start:
                break
            start = first
        common = self.old.before(start)
        head = self.old.first(common)
        index = np.flatnonzero(wanted[start:]) + start
        return self._plan(head + self._of(index, head.offset), common, start, "rewind")

    def _rest(self, start: int, stop: int, offset: int) -> Slots:
        return self._of(np.flatnonzero(self.shown.kept[start:stop]) + start, offset)

    def _of(self, index: Ints, offset: int) -> Slots:
        return Slots.of(self.shown.ids, index, offset, self.shown.source)

    def _plan(self, slots: Slots, common: int, decided: int, way: Way | None) -> Plan:
        if self.positions == "contiguous":
            slots = Slots(slots.ids, np.arange(len(slots)), slots.place, slots.source)
        return Plan(slots, common, decided, way)


GLUE = "\n", "\n\n"  # what stands between the spans of an excerpt, and behind it


def lay_out(
    planner: Planner,
    prompt: TokenisedPrompt,
    runs: Sequence[Run],
    recall: Recall,
    target: Loaded,
    options: RunOptions,
    cost: Callable[[Plan], int],
) -> Plan:
    """The cheapest way to have what is kept and recalled before the target, in positions that there are. Runs that
    there is no room for do not come back. PromptError: the transcript does not fit the window even without them.
    """
    context, new = target.model.config.context, options.max_new_tokens

    def fits(plan: Plan) -> bool:
        return plan.slots.end + new <= context

    plans = list[Plan]()
    if runs and recall in ("auto", "append"):
        starts = message_starts(prompt)
        later = starts[(starts >= planner.decided) & (starts < len(prompt))]
        place = int(later[0]) if len(later) else planner.decided  # what was told before new text stands before it
        gap, end = (target.tokenizer.encode(text, begins=False).ids for text in GLUE)
        plans.append(planner.appended(runs, place, gap, end))
    if runs and recall in ("auto", "rewind"):
        plans.append(planner.rewound(runs))
    if fit := [plan for plan in plans if fits(plan)]:
        return min(fit, key=cost)
    plain = planner.appended()
    if not fits(plain) and planner.old.offset:
        plain = planner.rewound()  # without excerpts there may be room
    if not fits(plain):
        raise over(target, plain.slots.end, options)
    return plain


def reopened(old: Slots, starts: Ints, decided: int, parted: bool) -> int | None:
    """Where the message begins inside which new text does and that is read again as a whole; None if none is.

    The question, where it is asked once more: what comes back for it stands before it. And one that was changed, if
    something came back before it: that goes with it.

    >>> reopened(Slots.of(np.arange(9), np.arange(9)), np.array([0, 4, 7]), 8, False)
    7
    >>> reopened(Slots.of(np.arange(9), np.arange(9)), np.array([0, 4, 7]), 5, True)
    """
    at = int(np.searchsorted(starts, decided)) - 1
    if at < 0:
        return None
    begin = int(starts[at])
    return begin if at == len(starts) - 1 or (parted and begin in old.place[old.excerpts]) else None


def told(run: Run, prompt: TokenisedPrompt, threshold: float, way: Way) -> Recalled:
    """What the report says of a span that was brought back."""
    first, last = int(prompt.bytes[run.start, 0]), int(prompt.bytes[run.end - 1, 1])
    text = prompt.prompt.text.encode()[first:last].decode(errors="replace")
    return Recalled(text, run.start, run.end, run.score, threshold, way)


class Memory:
    """What earlier turns left behind, for the path of a request."""

    def __init__(self, pipeline: Pair, run: RunOptions, options: ConversationOptions, tokens: Vocabularies) -> None:
        self.tokens, self.options = tokens, options
        layers = check_run(run, pipeline.drafter)
        self.target = TargetMemory(pipeline.target, run, options.snapshots)
        self.drafter: DrafterMemory | None = None
        if layers is not None and pipeline.drafter is not None:
            self.drafter = DrafterMemory(pipeline.drafter, layers, options.keys, options.snapshots)

    def tokenise_for_drafter(self, pipeline: Pair, prompt: Prompt, options: RunOptions) -> Waiting | None:
        """The prompt in the drafter's vocabulary, on its way; None where it is the target's, or nothing is drafted."""
        if self.drafter is None or options.keep_ratio == 1 or self.tokens.drafter is self.tokens.target:
            return None
        return pipeline.beside.submit(timed, self.tokens.drafter, prompt)

    def turn(self, prompt: TokenisedPrompt) -> Recollection:
        """What is held of a prompt's beginning."""
        target = self.target
        decided = int(whole_characters(prompt)[target.decided(prompt.ids)])  # none is decided in part
        found = Recollection(self, prompt, target.slots.first(target.slots.before(decided)), decided)
        parted = decided < len(target.transcript)
        if not found.recalling or (begin := reopened(found.old, message_starts(prompt), decided, parted)) is None:
            return found
        asked = np.flatnonzero(prompt.mask("question"))
        if decided == len(prompt) - 1 and len(asked) and asked[-1] < begin:
            found.recalling = False  # sent again behind what a tool has told: what the question asks for came back then
        else:
            found.old, found.decided = found.old.first(found.old.before(begin)), begin
        return found

    def keys(self, drafted: TokenisedPrompt) -> PrefixKeys | None:
        """Keys of a prompt's beginning, for its scorer to go on from."""
        return None if self.drafter is None else self.drafter.keys(drafted.ids, message_ends(drafted))

    @property
    def trails(self) -> tuple[SessionCache, ...]:
        """The caches of both models."""
        return (self.target.trail, *([] if self.drafter is None else [self.drafter.trail]))


@dataclass
class Recollection:
    """What a memory holds of a prompt, and brings back for it. Earlier turns chose the slots `old` of the first
    `decided` tokens; `recalling` tells whether anything that was left out may come back. By `lay_out` come the `runs`
    that do as far as there is room, the `threshold` they had to reach, the `plan`, and its `cost`, the tokens that the
    target has to read.
    """

    memory: Memory
    prompt: TokenisedPrompt
    old: Slots
    decided: int
    recalling: bool = field(init=False)
    runs: list[Run] = field(default_factory=list)
    threshold: float = 0.0
    plan: Plan = field(init=False)
    cost: int = 0

    def __post_init__(self) -> None:
        self.recalling = self.memory.options.recall != "off" and not self.present.all()

    @property
    def present(self) -> Bools:
        """Which of the decided tokens the target holds, (decided,)."""
        return self.old.present(self.decided)

    @property
    def since(self) -> int:
        """The byte from which the prompt is new."""
        return int(self.prompt.bytes[self.decided - 1, 1]) if self.decided else 0

    def scores(self, pipeline: Pair, options: RunOptions, activated: bool) -> bool:
        """Whether the prompt is to be scored, for new tokens or for old ones."""
        return pipeline.drafter is not None and options.keep_ratio < 1 and (activated or self.recalling)

    def lay_out(
        self,
        target: Loaded,
        options: RunOptions,
        scored: Scored | None,
        scores: Floats | None,
        selection: Selection | None,
    ) -> Callable[[Progress | None], Begun]:
        """What has the target read what is kept and what comes back; `cost` is known then."""
        prompt, memory, kept = self.prompt, self.memory, np.ones(len(self.prompt), bool)
        if selection is not None:
            kept[self.decided :] = selection.selected
        shown = Shown.of(prompt, kept, {} if selection is None else selection.byte_ranges, target.tokenizer)
        if self.recalling and scored is not None and scores is not None:
            fineness = scored.importance.fineness
            self.runs, self.threshold = choose_recalled(scores, prompt, self.present, options, memory.options, fineness)
        planner = Planner(self.old, prompt.ids, self.decided, shown, options.positions)
        self.plan = lay_out(planner, prompt, self.runs, memory.options.recall, target, options, memory.target.cost)
        self.cost = memory.target.cost(self.plan)
        return partial(memory.target.begin, self.plan, prompt.ids, message_ends(prompt), options)
