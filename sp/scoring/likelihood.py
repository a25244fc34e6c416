"""Scorers by likelihood under a model: of each token, or of an answer without some of the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import Cache, Checkpoint, Hooks, Model, ModelConfig, flops, prefill, stream_layer_major
from sp.ops.array_module import array_module, on_host
from sp.scoring.attention.lookahead import AnswerAttentionScorer, spoken
from sp.scoring.base import Importance, ReadingScorer, Scorer, ScoreRequest, chunk_means, densities, register_scorer

ROWS = 512  # tokens whose logits are in memory at once: with a vocabulary of 150,000, 0.3 GB


@register_scorer("self_information")
@dataclass(frozen=True)
class SelfInformationScorer(ReadingScorer):
    """``-log p(token | tokens before it)`` in nats; zero for the first token. The question has no influence.

    Notes
    -----
    Selective Context (arXiv 2304.12102), whose unit is the phrase: use it with selector `sentence` or `top_chunks`.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and look up each token in the distribution predicted before it."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        x = stream_layer_major(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        scores = np.zeros(n, np.float32)
        xp, ids = array_module(x), model.place(request.ids)
        for start in range(0, n - 1, ROWS):
            stop = min(start + ROWS, n - 1)
            logits = model.head(x[start:stop])
            most = logits.max(axis=-1, keepdims=True)  # subtracted before exp, which would overflow
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
    """Return the log-probabilities of an answer after a prompt without some of its tokens, and after all of it.

    The prompt before the omitted tokens is computed once for all trials, recurrent states included; the rest is
    computed again in each trial, at its original positions.

    Parameters
    ----------
    ids, positions : int64 (n,)
        The prompt. The answer continues from its last position.
    answer : int64 (m,)
        At least one token.
    left_out : sequence of boolean arrays (n,)
        Tokens to omit in each trial: at least one, never the last, and the first of them no earlier than that of the
        trial before.
    done : callable, optional
        Called with the share of the work that is done, from 0 to 1.

    Returns
    -------
    float64 (trials + 1,), in nats; the last one after the whole prompt

    Raises
    ------
    PromptError
        See `prefill`.
    """
    n = len(ids)
    starts = [int(mask.argmax()) for mask in left_out]
    assert starts == sorted(starts), f"trials begin at {starts}, not in the order of the prompt"
    nothing = np.zeros(n, bool)
    trials = list(zip([*starts, max(starts, default=0)], [*left_out, nothing], strict=True))
    work = trials[-1][0] + sum(n - start - int(missing.sum()) for start, missing in trials)
    cache, likelihoods, tokens_read = model.new_cache(n + len(answer)), [], 0
    for start, missing in trials:
        before = cache.tokens
        if start > before:
            prefill(model, ids[before:start], positions[before:start], cache)
        checkpoint, rest = Checkpoint.of(cache), start + np.flatnonzero(~missing[start:])
        likelihoods.append(_log_likelihood(model, ids[rest], positions[rest], answer, cache))
        checkpoint.restore(cache)
        tokens_read += start - before + len(rest)
        if done is not None:
            done(tokens_read / work)
    return np.array(likelihoods)


def _log_likelihood(model: Model, ids: Ints, positions: Ints, answer: Ints, cache: Cache) -> float:
    """Return the log-probability of `answer` (m,) after the cached tokens and `ids` (n,), in one pass over both."""
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
    """The decrease, in nats, of the answer's log-likelihood when the target has not read a chunk.

    The other tokens keep their positions; protected text is never left out, nor is the last token. All tokens of a
    chunk have the same score. It measures what the answer needs, not where the target attended, and it saves no time:
    each trial costs a prefill of all that follows the chunk. Where two chunks hold the same evidence, both score low.

    Parameters
    ----------
    chunk_size : int
        Tokens of a chunk.
    among : int
        Number of chunks to try, those with the highest `answer_attention`; all others rank below them, in its order.
        0 tries all.
    answer_tokens : int
        Longest answer in tokens.

    Notes
    -----
    The importance of a part is the loss of the prediction without it: occlusion (Zeiler and Fergus, arXiv 1311.2901),
    erasure (Li, Monroe and Jurafsky, arXiv 1612.08220).
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

    def passes(self, tokens: int) -> float:
        """Return the work in passes over the prompt: two, and on average half a pass for each trial."""
        chunks = -(-tokens // self.chunk_size)
        return 2 + min(self.among or chunks, chunks) / 2

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Return the predicted operations of all passes."""
        return self.passes(tokens) * flops(config, tokens)

    def score(self, request: ScoreRequest) -> Importance:
        """Let the target answer, then compute the likelihood of that answer without each chunk."""
        n = len(request.ids)
        pace = _Pace(request.progress, n * request.model.config.layers, 1 / self.passes(n))
        first = AnswerAttentionScorer(queries=self.answer_tokens)
        attention = first.score(replace(request, progress=request.progress and pace.on_first_pass))
        free, chunk = _free(request), np.arange(n) // self.chunk_size
        order = np.argsort(-chunk_means(attention.scores, self.chunk_size), kind="stable")
        tried = np.sort(order[np.isin(order, chunk[free])][: self.among or None])
        likely = log_likelihoods(
            request.model, request.ids, request.positions, np.array(spoken(attention.generated, request.eos_ids)),
            [free & (chunk == trial) for trial in tried], request.progress and pace.on_trials,
        )  # fmt: skip
        scores = np.zeros(len(order), np.float32)
        scores[tried] = likely[-1] - likely[:-1]
        rest = order[~np.isin(order, tried)]
        below = np.arange(1, len(rest) + 1) / max(1, len(rest))
        # Chunks that were not tried rank below all that were, in the order of their attention.
        scores[rest] = scores[tried].min(initial=np.inf if len(tried) else 0) - below
        return replace(attention, scores=scores[chunk])


def _free(request: ScoreRequest) -> Bools:
    """Return the tokens that may be left out: all but protected ones, and the last, which predicts the answer."""
    free: Bools = ~request.protected_tokens
    free[-1] = False
    return free


@dataclass
class _Pace:
    """Reports the progress of a first pass and of all trials as if they were one pass over the prompt."""

    progress: Callable[[int], None] | None
    total: int  # tokens x layers to report in all
    first: float  # share of the first pass in the work
    first_done: int = field(default=0, init=False)  # tokens x layers of the first pass
    reported: int = field(default=0, init=False)  # tokens x layers reported so far

    def on_first_pass(self, amount: int) -> None:
        """Count tokens x layers of the first pass."""
        self.first_done += amount
        self._report(self.first * self.first_done / self.total)

    def on_trials(self, share: float) -> None:
        """Set the share of the trials that is done."""
        self._report(self.first + (1 - self.first) * share)

    def _report(self, share: float) -> None:
        done = round(self.total * share)
        if self.progress is not None and done > self.reported:
            self.progress(done - self.reported)
            self.reported = done
