"""Chooser: the next token from logits, of those that a constraint allows, and what was chosen from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sp.arrays import Floats, Ints
from sp.ops.array_module import array_module, on_host
from sp.ops.sampling.allowed_logits import Words, allowed_logits
from sp.ops.sampling.draw_tokens import token_shares
from sp.ops.sampling.likely_logits import likely_logits
from sp.ops.sampling.sample import Sampling, argmax, sample
from sp.ops.sampling.top_logprobs import MOST, top_logprobs


class Constraint(Protocol):
    """What an answer may say, token by token."""

    def allowed(self) -> Words | None:
        """Tokens that may come next, as `allowed_logits` takes them; None for all."""
        ...

    def take(self, token: int) -> None:
        """Go on behind a token."""
        ...


@dataclass(frozen=True)
class Choice:
    """A token, and what the model thought of it before temperature, filters and constraint.

    Attributes
    ----------
    logprob : float
        Natural logarithm of its probability.
    tokens : int64 (k,)
        The likeliest ones, best first.
    logprobs : float64 (k,)
        Theirs.
    """

    token: int
    logprob: float
    tokens: Ints
    logprobs: Floats


class Chooser:
    """Chooses the tokens of one answer.

    Parameters
    ----------
    sampling : Sampling or None
        None takes the likeliest.
    seed : int
        Of the draws.
    min_p : float
        Where tokens are drawn: of none that is less than `min_p` times as likely as the likeliest.
    on_choice : callable, optional
        Told of every token as it is chosen, the one that ends the answer among them.
    top : int
        How many of the likeliest tokens `on_choice` is told of.

    Examples
    --------
    >>> told = []
    >>> chooser = Chooser(None, 0, on_choice=told.append, top=1)
    >>> chooser.choose(np.log(np.array([[0.25, 0.75]], np.float32))).tolist()
    [1]
    >>> round(float(np.exp(told[0].logprob)), 6), told[0].tokens.tolist()
    (0.75, [1])
    """

    def __init__(
        self,
        sampling: Sampling | None,
        seed: int,
        *,
        min_p: float = 0.0,
        constraint: Constraint | None = None,
        on_choice: Callable[[Choice], None] | None = None,
        top: int = 0,
    ) -> None:
        self._sampling, self._seed, self._min_p, self._constraint = sampling, seed, min_p, constraint
        self._tell, self._top = on_choice, top
        self._state: tuple[Any, Any] | None = None

    def choose(self, logits: Floats) -> Any:
        """The next token, int32 (1,), from logits (1, vocab), where those are.

        The host waits for it only where it is told of it.
        """
        words = self._constraint.allowed() if self._constraint else None
        left = logits if words is None else allowed_logits(logits, words)
        token = argmax(left) if self._sampling is None else self._drawn(left, self._sampling)
        if self._constraint or self._tell:
            chosen = int(on_host(token)[0])
            if self._constraint:
                self._constraint.take(chosen)
            if self._tell:
                self._tell(self._choice(logits, chosen))
        return token

    def _drawn(self, logits: Floats, sampling: Sampling) -> Any:
        if self._state is None:
            module = array_module(logits)
            self._state = module.full(1, self._seed, np.int64), module.zeros(1, np.int64)
        if self._min_p:
            logits = likely_logits(logits, argmax(logits), sampling.temperature, self._min_p)
        return sample(logits, sampling, *self._state)

    def _choice(self, logits: Floats, token: int) -> Choice:
        with np.errstate(divide="ignore"):
            share = float(np.log(token_shares(logits, 1.0, np.array([token], np.int64))[0]))
        if not self._top:
            return Choice(token, share, np.empty(0, np.int64), np.empty(0, np.float32))
        rows = logits if self._top <= MOST else on_host(logits)
        best = [on_host(each)[0] for each in top_logprobs(rows, min(self._top, rows.shape[1]))]
        return Choice(token, share, *best)
