"""Logits under a bias and under penalties for what was said before, as a request asks for them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.biased_logits import BIASED_LOGITS

GROWTH = 64  # tokens for which there is room anew, beside twice as many as there were


@dataclass(frozen=True)
class Penalties:
    """What is added to the logits of some tokens, and taken from those of tokens that were said before.

    A logit changes in this order, which is that of vLLM and of llama.cpp: `bias` is added; if the token is among those
    that `repeat` looks at, a logit above 0 is divided by `repeat` and any other is multiplied by it; then
    ``frequency * count + presence * (count > 0)`` is subtracted, count being how often the answer has the token so far.

    Parameters
    ----------
    presence, frequency : float
        As OpenAI defines them: over the tokens of the answer alone.
    repeat : float
        Above 0; 1 changes nothing. Source: Keskar et al., "CTRL: A Conditional Transformer Language Model for
        Controllable Generation", 2019.
    last : int
        Tokens of prompt and answer together, counted from the newest, that `repeat` looks at; -1 for all.
    bias : mapping
        What is added, by token.
    prompt : callable, optional
        Tokens of the prompt; asked once, and only if `repeat` changes something.

    Examples
    --------
    >>> said = PenaltyState(Penalties(presence=0.5, frequency=0.25, bias={0: 1.0}))
    >>> said.take(2), said.take(2)
    (None, None)
    >>> said.apply(np.zeros((1, 4), np.float32)).tolist()
    [[1.0, 0.0, -1.0, 0.0]]
    """

    presence: float = 0.0
    frequency: float = 0.0
    repeat: float = 1.0
    last: int = -1
    bias: Mapping[int, float] = field(default_factory=dict)
    prompt: Callable[[], Sequence[int]] | None = None

    @property
    def any(self) -> bool:
        """Whether they change anything."""
        return bool(self.counting or self.bias)

    @property
    def counting(self) -> bool:
        """Whether it matters what was said before."""
        return bool(self.presence or self.frequency or self._repeats)

    @property
    def _repeats(self) -> bool:
        return self.repeat != 1 and self.last != 0

    def before(self) -> list[int]:
        """Tokens of the prompt that `repeat` looks at when the answer begins."""
        if not self._repeats or self.prompt is None:
            return []
        ids = list(self.prompt())
        return ids if self.last < 0 else ids[-self.last :]


class PenaltyState:
    """What one answer has said so far, and what its next logits are for that. Tokens it concerns are few beside a
    vocabulary: their numbers go to where the logits are, and nothing comes back. `counting`: whether
    `take` is to be told of tokens.
    """

    def __init__(self, penalties: Penalties) -> None:
        self._penalties, self.counting = penalties, penalties.counting
        before = penalties.before()
        self._seen = Counter(before)  # tokens within reach of `repeat`
        self._reach = deque(before) if penalties.last >= 0 else None
        self._counts = Counter[int]()
        self._place = {token: at for at, token in enumerate({**penalties.bias, **self._seen})}  # in the arrays
        self._ids = np.fromiter(self._place, np.int32)
        self._rows = np.zeros((3, len(self._ids)), np.float32)
        self._rows[0] = [penalties.bias.get(token, 0.0) for token in self._place]
        self._rows[1] = [penalties.repeat if token in self._seen else 1.0 for token in self._place]

    def take(self, token: int) -> None:
        """Go on behind a token."""
        given = self._penalties
        if not self.counting:
            return
        self._counts[token] += 1
        self._seen[token] += 1
        if self._reach is not None:
            self._reach.append(token)
            if len(self._reach) > given.last:
                gone = self._reach.popleft()
                self._seen[gone] -= 1
                self._write(gone)
        self._write(token)

    def apply(self, logits: Floats) -> Any:
        """Logits (1, vocab) of the next token as they are to be chosen from, where `logits` are, which stay."""
        size, vocab = len(self._place), logits.shape[1]
        if not size:
            return logits
        ids, (biases, repeats, shifts) = self._ids[:size], self._rows[:, :size]
        assert ids.max() < vocab, f"token {ids.max()} of {vocab}"
        changed = logits.copy()
        if is_device(logits):
            cupy = import_cupy()
            given = (cupy.asarray(each) for each in (ids, biases, repeats, shifts))
            BIASED_LOGITS.launch((-(-size // 256),), *given, changed, size)
            return changed
        row = changed[0, ids] + biases
        changed[0, ids] = np.where(row > 0, row / repeats, row * repeats) - shifts
        return changed

    def _write(self, token: int) -> None:
        """What becomes of a token's logit."""
        at, given, count = self._place.setdefault(token, len(self._place)), self._penalties, self._counts[token]
        if at == len(self._ids):
            self._ids = np.pad(self._ids, (0, at + GROWTH))
            self._rows = np.pad(self._rows, ((0, 0), (0, at + GROWTH)))
        self._ids[at] = token
        repeat = given.repeat if self._seen[token] > 0 else 1.0
        self._rows[:, at] = given.bias.get(token, 0.0), repeat, given.frequency * count + given.presence * (count > 0)
