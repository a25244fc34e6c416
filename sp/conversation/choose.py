"""Which tokens of a turn the target reads: of new text by the selector, and of what was left out before by the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.chat import without
from sp.conversation.options import ConversationOptions
from sp.pipeline import RunOptions
from sp.prompt import TokenisedPrompt
from sp.prompt.spans import with_characters
from sp.prompt.whole import whole_characters
from sp.selection import Reading, SelectionRequest, Selector, token_budget
from sp.selection.constraints import Constrained
from sp.selection.units import sentence_bounds

LONGEST = 64
"""Tokens of a sentence that comes back whole."""

LEAST = 128
"""Tokens that may be recalled whatever the share is."""


@dataclass(frozen=True)
class Chosen:
    """Tokens of a part of a prompt to keep, (m,), and what a `Selection` says of them, by tokens of the prompt."""

    kept: Bools
    read: Reading = field(default_factory=dict)
    told: tuple[str, ...] = ()


def choose_new(scores: Floats, prompt: TokenisedPrompt, start: int, options: RunOptions) -> Chosen:
    """Tokens to keep from `start` on, (n - start,): the last one, what is protected, and by score.

    The keep ratio is one of the new tokens that may be left out, as for a run.
    """
    request = _request(scores, fixed(prompt, start), options.keep_ratio, prompt, start)
    return _select(options.selector, request, prompt, start)


def fixed(prompt: TokenisedPrompt, start: int) -> Bools:
    """Which tokens from `start` on are kept in any case, (n - start,)."""
    protected = prompt.mask("protected")
    protected[-1] = True  # its logits begin the answer
    return with_characters(protected, whole_characters(prompt))[start:]


@dataclass(frozen=True)
class Run:
    """Tokens ``[start, end)`` of one sentence that were left out.

    Attributes
    ----------
    start, end : int
    score : float
        The highest of what comes back of the sentence.
    joined : bool
        Whether it goes on from the run before: with the same sentence, of which the target has what lies between, or
        with the next.
    """

    start: int
    end: int
    score: float
    joined: bool = False


def choose_recalled(
    scores: Floats, prompt: TokenisedPrompt, present: Bools, run: RunOptions, options: ConversationOptions
) -> tuple[list[Run], float]:
    """Runs of tokens that are not `present` among the first ones, (decided,), and should be; and what they reached.

    The selector compares tokens left out with each other, within the budget of `options`. What it takes is recalled
    only where the best of its sentence is among the best of the transcript, as many as the keep ratio asks for, and
    with all that was left out of that: a value without its key, far from where it stood, says nothing.
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
    request = _request(mine, present, budget / count, prompt, 0)
    taken = _select(selector, request, prompt, 0).kept & out
    bounds = sentence_bounds(request, LONGEST)
    if (starts := request.characters) is not None:
        bounds = np.append(np.unique(starts[bounds[:-1]]), len(starts))
    taken = whole_sentences(taken, out, mine, bounds, budget)
    return [run for run in runs_of(taken, scores[:decided], bounds) if run.score >= threshold], threshold


def runs_of(taken: Bools, scores: Floats, bounds: Ints) -> list[Run]:
    """The runs of `taken` tokens, (n,), cut where sentences end.

    Examples
    --------
    >>> taken = np.array([1, 0, 1, 1, 0, 1], bool)
    >>> for run in runs_of(taken, np.arange(6, dtype=np.float32), np.array([0, 3, 6])):
    ...     print(run)
    Run(start=0, end=1, score=2.0, joined=False)
    Run(start=2, end=3, score=2.0, joined=True)
    Run(start=3, end=4, score=5.0, joined=True)
    Run(start=5, end=6, score=5.0, joined=True)
    """
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
    """What was left out of the sentences that `taken` tokens are of, best sentences first, within a budget; (n,).

    Parameters
    ----------
    taken, out : boolean array (n,)
        Tokens to recall, of those that were left out.
    scores : array (n,)
    bounds : array (sentences + 1,)
    budget : int
        Tokens. What no sentence fits into stays as it is.

    Examples
    --------
    >>> taken, out = np.arange(9) == 4, np.arange(9) != 5
    >>> whole_sentences(taken, out, np.zeros(9, np.float32), np.array([0, 3, 7, 9]), 8).nonzero()[0].tolist()
    [3, 4, 6]
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


def _select(selector: Selector, request: SelectionRequest, prompt: TokenisedPrompt, start: int) -> Chosen:
    """What a selector keeps, as asked by `_request` from `start` on."""
    found, first = selector(request), int(prompt.bytes[start, 0])
    read = {start + token: tuple((a + first, b + first) for a, b in parts) for token, parts in found.read.items()}
    return Chosen(found.kept | request.protected, read, found.told)


def _request(scores: Floats, protected: Bools, share: float, prompt: TokenisedPrompt, start: int) -> SelectionRequest:
    """What a selector is asked of the ``len(protected)`` tokens of a prompt from `start` on."""
    stop = start + len(protected)
    spans, text = prompt.bytes[start:stop], prompt.prompt.text.encode()
    first, last = int(spans[0, 0]), int(spans[-1, 1])
    segments = without(prompt.prompt.free, [(0, first), (last, len(text))])
    moved = tuple(replace(each, start=each.start - first, end=each.end - first) for each in segments)
    return SelectionRequest(scores[start:stop], protected, share, text[first:last], spans - first, moved)
