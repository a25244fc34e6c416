"""What decoding one way came to: tokens a pass, tokens a second and answers equal to greedy ones, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from sp.bench.simulate import Acceptance, Way

RESAMPLES = 2000


@dataclass(frozen=True)
class Answered:
    """One answer.

    Attributes
    ----------
    task : str
    tokens : tuple of int
        The token that ended it included.
    passes : tuple of int
        Tokens that each pass of the target gave after the first token; what came after the end is not counted.
    seconds : tuple of float
        Of each pass, until its tokens were on the host; the draft's part is in it.
    """

    task: str
    tokens: tuple[int, ...]
    passes: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """Answers decoded in one way, beside greedy ones of the same prompts.

    Attributes
    ----------
    way : Way
    answers, greedy : tuple of Answered
        Of the same prompts, one for one.
    acceptance : Acceptance or None
        Where acceptance was simulated.
    sources : tuple of str
        Kernels that were launched.
    """

    way: Way
    answers: tuple[Answered, ...]
    greedy: tuple[Answered, ...]
    acceptance: Acceptance | None = None
    sources: tuple[str, ...] = ()

    @property
    def equal(self) -> int | None:
        """Answers that are the greedy ones token for token; None where acceptance was simulated."""
        if self.acceptance is not None:
            return None
        return sum(mine.tokens == plain.tokens for mine, plain in zip(self.answers, self.greedy, strict=True))

    def metrics(self) -> dict[str, Any]:
        """Means with 95 % bootstrap intervals, and the same by task.

        The units that are drawn anew are answers; passes where acceptance was simulated, for these are what varies.
        Tasks all of whose answers ended with their first token have no pass and are left out.
        """
        found = self._metrics() | {"equal": self.equal}
        if self.acceptance is not None:
            return found | {"origin": self.acceptance.origin}
        tasks = dict.fromkeys(answer.task for answer in self.answers if answer.passes)
        return found | {
            "by_task": {task: self._of(task)._metrics() | {"equal": self._of(task).equal} for task in tasks}
        }

    def _of(self, task: str) -> Measured:
        pairs = [pair for pair in zip(self.answers, self.greedy, strict=True) if pair[0].task == task]
        return replace(self, answers=tuple(a for a, _ in pairs), greedy=tuple(g for _, g in pairs))

    def _metrics(self) -> dict[str, Any]:
        tokens, seconds, passes = _units(self.answers, self.acceptance is not None)
        plain_tokens, plain_seconds, _ = _units(self.greedy, self.acceptance is not None)
        length, low, high = ratio_interval(tokens, passes)
        rate, slow, fast = ratio_interval(tokens, seconds)
        return {
            "tok_s": rate, "tok_s_low": slow, "tok_s_high": fast,
            "acceptance_length": length, "acceptance_low": low, "acceptance_high": high,
            "greedy_tok_s": (plain := float(plain_tokens.sum() / plain_seconds.sum())), "speedup": rate / plain,
            "pass_ms": 1e3 * median(s for answer in self.answers for s in answer.seconds),
            "passes": int(passes.sum()), "tokens": int(tokens.sum()), "answers": len(self.answers),
            "equal": self.equal,
        }  # fmt: skip


def ratio_interval(parts: Any, wholes: Any, seed: int = 0) -> tuple[float, float, float]:
    """Sum of parts over sum of wholes, and its 95 % bootstrap interval over the units, which are drawn in pairs.

    Examples
    --------
    >>> ratio_interval([2.0, 4.0], [1.0, 2.0])
    (2.0, 2.0, 2.0)
    """
    parts, wholes = np.asarray(parts, np.float64), np.asarray(wholes, np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(parts), (RESAMPLES, len(parts)))
    low, high = np.quantile(parts[drawn].sum(axis=1) / wholes[drawn].sum(axis=1), (0.025, 0.975))
    return float(parts.sum() / wholes.sum()), float(low), float(high)


def _units(answers: Sequence[Answered], by_pass: bool) -> tuple[Any, Any, Any]:
    """Tokens, seconds and passes of each unit; answers of one token have no pass and are none."""
    if by_pass:
        lengths = np.concatenate([answer.passes for answer in answers])
        return lengths, np.concatenate([answer.seconds for answer in answers]), np.ones(len(lengths))
    sums = [(sum(a.passes), sum(a.seconds), len(a.passes)) for a in answers if a.passes]
    tokens, seconds, passes = np.array(sums, np.float64).T
    return tokens, seconds, passes
