"""Scorers by what a model finds likely: tokens by themselves, or an answer without some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import Cache, Checkpoint, Hooks, Model, ModelConfig, flops, prefill, stream_by_layer
from sp.ops.array_module import array_module, on_host
from sp.scoring.attention.lookahead import AnswerAttentionScorer, spoken
from sp.scoring.base import Importance, ReadingScorer, Scorer, ScoreRequest, chunk_means, densities, register_scorer

ROWS = 512  # tokens whose logits are held at once: with a vocabulary of 150,000, 0.3 GB


@register_scorer("self_information")
@dataclass(frozen=True)
class SelfInformationScorer(ReadingScorer):
    """``-log p(token | tokens before it)`` in nats; zero for the first token. It knows of no question.

    Notes
    -----
    Selective Context (arXiv 2304.12102), whose unit is the phrase: take the selector `sentence` or `top_chunks`.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and look up each token in the prediction before it."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        x = stream_by_layer(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        scores = np.zeros(n, np.float32)
        xp, ids = array_module(x), model.place(request.ids)
        for start in range(0, n - 1, ROWS):
            stop = min(start + ROWS, n - 1)
            logits = model.head(x[start:stop])
            most = logits.max(axis=-1, keepdims=True)
            total = xp.log(xp.exp(logits - most).sum(axis=-1)) + most[:, 0]
            scores[start + 1 : stop + 1] = on_host(total - logits[xp.arange(stop - start), ids[start + 1 : stop + 1]])
        return Importance(scores, densities=densities(attend))


Done = Callable[[float], None]  # takes the share of the work that is done so far, 1 at the end


def log_likelihoods(
    model: Model,
    ids: Ints,
    positions: Ints,
    answer: Ints,
    left_out: Sequence[Bools],
    done: Done | None = None,
) -> Floats:
    """Log-probability of an answer, in nats, after a prompt without some of its tokens, and after all of it.

    What stands before the tokens left out is read once and for all, also by layers that remember in a state; what
    follows them is read anew each time, at the positions it has.

    `ids`, `positions` int64 (n,): the prompt; the answer goes on from its last position; `answer` int64 (m,): at least
    one token; `left_out` sequence of boolean arrays (n,): by trial, the tokens to leave out: at least one, never the
    last, and the first of them no earlier than that of the trial before; Returns float64 (trials + 1,): the last one
    after the whole prompt; PromptError: see `prefill`.
    """
    n = len(ids)
    starts = [int(each.argmax()) for each in left_out]
    assert starts == sorted(starts), f"trials begin at {starts}, not in the order of the prompt"
    nothing = np.zeros(n, bool)
    trials = list(zip([*starts, max(starts, default=0)], [*left_out, nothing], strict=True))
    work = trials[-1][0] + sum(n - start - int(missing.sum()) for start, missing in trials)
    cache, found, read = model.new_cache(n + len(answer)), [], 0
    for start, missing in trials:
        before = cache.tokens
        if start > before:
            prefill(model, ids[before:start], positions[before:start], cache)
        here, rest = Checkpoint.of(cache), start + np.flatnonzero(~missing[start:])
        found.append(_log_likelihood(model, ids[rest], positions[rest], answer, cache))
        here.restore(cache)
        read += start - before + len(rest)
        if done is not None:
            done(read / work)
    return np.array(found)


def _log_likelihood(model: Model, ids: Ints, positions: Ints, answer: Ints, cache: Cache) -> float:
    """Log-probability of `answer` (m,) behind the cached tokens and these (n,), in one pass over both."""
    m, top, rows = len(answer), model.config.layers - 1, list[Floats]()

    def after(layer: int, x: Floats) -> None:
        if layer == top and len(x):
            rows.append(x.copy())  # the next chunk of a long prompt may be written over it

    ids = np.concatenate([ids, answer[:-1]])
    positions = np.concatenate([positions, positions[-1] + np.arange(1, m)])
    prefill(model, ids, positions, cache, rows=m, hooks=Hooks(after_layer=after))
    logits = on_host(model.head(array_module(rows[0]).concatenate(rows))).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return float((logits[np.arange(m), answer] - np.log(np.exp(logits).sum(axis=1))).sum())


@register_scorer("leave_one_out")
@dataclass(frozen=True)
class LeaveOneOutScorer(Scorer):
    """By how many nats the answer to the full prompt gets less likely when the target has not read a chunk.

    What is left stands where it stood; text that is kept anyway is never left out, nor is the last token. All tokens
    of a chunk score alike. It tells what the answer needs, not where it looked, and it saves no time at all: each
    chunk tried costs a prefill of all that follows it. Where two chunks hold the same evidence, neither is missed.

    Parameters
    ----------
    chunk_size : int
        Tokens of a chunk.
    among : int
        Try only so many chunks, those of the highest `answer_attention`; the others come behind all of them, in the
        order of that. 0 tries all.
    answer_tokens : int
        Tokens of the answer, at most.

    Notes
    -----
    A part is worth what the prediction loses without it: occlusion (Zeiler and Fergus, arXiv 1311.2901), erasure (Li,
    Monroe and Jurafsky, arXiv 1612.08220).
    """

    reads_target = True
    oracle: ClassVar[bool] = True

    chunk_size: int = 32
    among: int = 64
    answer_tokens: int = 48

    def __post_init__(self) -> None:
        check_fields(self, "scorer leave_one_out")
        for name, least in (("chunk_size", 1), ("among", 0), ("answer_tokens", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")

    def readings(self, tokens: int) -> float:
        """How many times as many tokens as the prompt has are read: twice all, and half of them for each trial."""
        chunks = -(-tokens // self.chunk_size)
        return 2 + min(self.among or chunks, chunks) / 2

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of all readings."""
        return self.readings(tokens) * flops(config, tokens)

    def score(self, request: ScoreRequest) -> Importance:
        """Let the target answer, then ask how likely that answer is without each chunk."""
        n = len(request.ids)
        pace = _Pace(request.progress, n * request.model.config.layers, 1 / self.readings(n))
        first = AnswerAttentionScorer(queries=self.answer_tokens)
        found = first.score(replace(request, progress=request.progress and pace.reading))
        free, chunk = _free(request), np.arange(n) // self.chunk_size
        order = np.argsort(-chunk_means(found.scores, self.chunk_size), kind="stable")
        tried = np.sort(order[np.isin(order, chunk[free])][: self.among or None])
        likely = log_likelihoods(
            request.model, request.ids, request.positions, np.array(spoken(found.generated, request.eos_ids)),
            [free & (chunk == each) for each in tried], request.progress and pace.trials,
        )  # fmt: skip
        scores = np.zeros(len(order), np.float32)
        scores[tried] = likely[-1] - likely[:-1]
        rest = order[~np.isin(order, tried)]
        below = np.arange(1, len(rest) + 1) / max(1, len(rest))
        scores[rest] = scores[tried].min(initial=np.inf if len(tried) else 0) - below
        return replace(found, scores=scores[chunk])


def _free(request: ScoreRequest) -> Bools:
    """Tokens that may be left out: all but those kept in any case, and the last, which predicts the answer."""
    free: Bools = ~request.kept
    free[-1] = False
    return free


@dataclass
class _Pace:
    """Tells of a first reading and of all trials as if they were one reading of the prompt."""

    progress: Callable[[int], None] | None
    whole: int  # tokens x layers that are to be told of
    first: float  # share of the first reading
    read: int = field(default=0, init=False)
    told: int = field(default=0, init=False)

    def reading(self, amount: int) -> None:
        """So much more of the first reading is done."""
        self.read += amount
        self._tell(self.first * self.read / self.whole)

    def trials(self, share: float) -> None:
        """Such a share of the trials is done."""
        self._tell(self.first + (1 - self.first) * share)

    def _tell(self, share: float) -> None:
        now = round(self.whole * share)
        if self.progress is not None and now > self.told:
            self.progress(now - self.told)
            self.told = now
