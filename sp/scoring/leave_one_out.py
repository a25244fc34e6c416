"""Score by what the target's own answer loses without a chunk: an oracle, which reads the prompt again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from sp.arrays import Bools
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import ModelConfig, flops
from sp.scoring.answer_likelihood import log_likelihoods
from sp.scoring.attention.answer_attention import AnswerAttentionScorer, spoken
from sp.scoring.base import Importance, Scorer, ScoreRequest, chunk_means, register_scorer


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
