"""Snapshots: copies of recurrent states to go back to, the newest of them on the device."""

from __future__ import annotations

from typing import Any

from sp.kernels import is_device
from sp.models.cache.carry import States, states_nbytes, states_on_host

NEAR = 2
"""Snapshots that stay on the device between turns: a turn goes back to one of the last two, or to an old one."""
MOST_ON_DEVICE = 6
"""While a turn reads."""


class Snapshots:
    """States by the number of tokens they have read, ascending.

    To take one on the device is a copy within it, which takes as long as reading the states once; the host does not
    wait. They go to host memory when nobody waits, by `settle`.

    Parameters
    ----------
    most : int
        Of more, those go first that lie close to others for how far back they are: the newer, the denser.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import ModelConfig
    >>> from sp.models.cache.cache import Cache
    >>> from sp.models.cache.carry import take_states
    >>> from sp.ops.rope import Rope
    >>> config = ModelConfig("qwen3", 8, 9, 512, (8,), ("attention",), 1, 1, 64, Rope(1e6, 64), 1e-6)
    >>> snapshots, cache = Snapshots(4), Cache(config, 9)
    >>> for tokens in range(100, 1000, 100):
    ...     snapshots.take(tokens, take_states(cache))
    >>> snapshots.places
    (400, 700, 800, 900)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._states: list[tuple[int, States]] = []

    @property
    def places(self) -> tuple[int, ...]:
        """Numbers of tokens."""
        return tuple(tokens for tokens, _ in self._states)

    def at(self, tokens: int) -> States | None:
        """The states after so many tokens."""
        return dict(self._states).get(tokens)

    def take(self, tokens: int, states: States) -> None:
        """Hold copies of states, which nobody else has, behind all that were taken."""
        self._states.append((tokens, states))
        if len(self._states) > self._most:
            places = (0, *self.places)

            def loss(at: int) -> float:
                return (places[at + 1] - places[at - 1]) / (places[-1] - places[at])

            del self._states[min(range(1, len(places) - 1), key=loss, default=1) - 1]
        if len(self._on_device) > MOST_ON_DEVICE:
            self.settle()

    def settle(self, near: int = NEAR) -> None:
        """Move all but the last `near` on the device to host memory; waits for the device."""
        going = self._on_device
        for at in going[: len(going) - near]:
            tokens, states = self._states[at]
            self._states[at] = tokens, states_on_host(states)

    def crop(self, tokens: int) -> None:
        """Forget those behind so many tokens."""
        self._states = [each for each in self._states if each[0] <= tokens]

    def first(self, tokens: int) -> Snapshots:
        """Others that share those of so many tokens; no states are ever written to."""
        other = Snapshots(self._most)
        other._states = [each for each in self._states if each[0] <= tokens]
        return other

    @property
    def device_nbytes(self) -> int:
        """Bytes on the device."""
        return sum(states_nbytes(self._states[at][1]) for at in self._on_device)

    @property
    def host_nbytes(self) -> int:
        """Bytes in host memory."""
        return sum(states_nbytes(states) for _, states in self._states) - self.device_nbytes

    @property
    def _on_device(self) -> list[int]:
        """Which of them are on the device."""
        return [at for at, (_, states) in enumerate(self._states) if any(map(_is_there, states.values()))]


def _is_there(state: tuple[Any, Any]) -> bool:
    return is_device(state[1])
