"""Logits with a bias, and with penalties for earlier tokens, as in requests."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.biased_logits import BIASED_LOGITS

GROWTH = 64  # least number of tokens by which arrays grow; they at least double


@dataclass(frozen=True)
class Penalties:
    """Bias of some tokens' logits, and penalties of tokens that occurred before.

    A logit changes in this order, as in vLLM and llama.cpp: `bias` is added; if the token is within the range of
    `repeat`, a logit above 0 is divided by `repeat` and any other is multiplied by it; then
    ``frequency * count + presence * (count > 0)`` is subtracted, with the count of the token in the answer so far.

    Parameters
    ----------
    presence, frequency : float
        As defined by OpenAI: over the tokens of the answer only.
    repeat : float
        Above 0; 1 changes nothing. Source: Keskar et al., "CTRL: A Conditional Transformer Language Model for
        Controllable Generation", 2019.
    last : int
        Range of `repeat`: the number of last tokens of prompt and answer together; -1 for all.
    bias : mapping
        The number to add, by token.
    prompt : callable, optional
        Returns the tokens of the prompt; called once, and only if `repeat` has an effect.

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
        """True if they change anything."""
        return bool(self.counting or self.bias)

    @property
    def counting(self) -> bool:
        """True if they depend on earlier tokens."""
        return bool(self.presence or self.frequency or self._repeats)

    @property
    def _repeats(self) -> bool:
        return self.repeat != 1 and self.last != 0

    def before(self) -> list[int]:
        """Return the tokens of the prompt within the range of `repeat` at the start of the answer."""
        if not self._repeats or self.prompt is None:
            return []
        ids = list(self.prompt())
        return ids if self.last < 0 else ids[-self.last :]


class PenaltyState:
    """The tokens of one answer so far, and their effect on the next logits. The affected tokens are few compared to a
    vocabulary: their numbers are copied to the device of the logits, and nothing is copied back. `counting`: True if
    `take` must be called with every token."""

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
        """Count a token of the answer."""
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
        """Return the changed logits (1, vocab) of the next token, on the device of `logits`, which are not changed."""
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
        """Update the numbers of a token."""
        at, given, count = self._place.setdefault(token, len(self._place)), self._penalties, self._counts[token]
        if at == len(self._ids):
            self._ids = np.pad(self._ids, (0, at + GROWTH))
            self._rows = np.pad(self._rows, ((0, 0), (0, at + GROWTH)))
        self._ids[at] = token
        repeat = given.repeat if self._seen[token] > 0 else 1.0
        self._rows[:, at] = given.bias.get(token, 0.0), repeat, given.frequency * count + given.presence * (count > 0)
