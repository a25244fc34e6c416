"""Trail: a cache that lives through many prompts, and goes back to where the next one parts from what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from sp.models.cache.cache import Cache
from sp.models.cache.carry import Parked, carry, clear_states, put_states, states_on_host, take_states
from sp.models.cache.host_room import HostRoom
from sp.models.cache.snapshots import Snapshots
from sp.models.config import ModelConfig
from sp.quant import Math

STEPS = 8
"""Caches are at least this many times larger than the steps by which they grow."""
SMALLEST = 256


class Trail:
    """A cache of any length that forgets from a place on.

    Keys and values are cropped anywhere. Recurrent states cannot be unread: they go back to the last snapshot before
    the place, and the caller reads on from there.

    Parameters
    ----------
    config : ModelConfig
    kv, rotate, device, math
        See `Cache`.
    snapshots : int
        Most copies of recurrent states to hold; see `Snapshots`.

    Attributes
    ----------
    tokens : int
        Tokens it holds.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import ModelConfig
    >>> from sp.ops.rope import Rope
    >>> config = ModelConfig("qwen3", 8, 9, 512, (8,), ("attention",), 1, 1, 64, Rope(1e6, 64), 1e-6)
    >>> trail = Trail(config)
    >>> with trail.reading(5) as cache:
    ...     cache.append(0, np.ones((5, 1, 64), np.float32), np.ones((5, 1, 64), np.float32))
    >>> trail.tokens, trail.back_to(3), trail.tokens
    (5, 3, 3)
    """

    def __init__(
        self,
        config: ModelConfig,
        kv: str = "f16",
        *,
        rotate: bool | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        snapshots: int = 8,
        math: Math = Math.BF16,
    ) -> None:
        self.config, self.tokens = config, 0
        self._form, self._math, self._device, self._most = (kv, rotate), math, device, snapshots
        self._cache: Cache | None = None
        self._away: Parked | None = None
        self._snapshots, self._room = Snapshots(snapshots), HostRoom(device)
        self._whole = True

    @property
    def recurrent(self) -> bool:
        """Whether any layer has a state that cannot be cropped."""
        return bool(self.config.delta_layers)

    @property
    def places(self) -> tuple[int, ...]:
        """Numbers of tokens with a snapshot, ascending."""
        return self._snapshots.places

    def reachable(self, tokens: int) -> int:
        """Tokens that `back_to` would leave of so many."""
        most = min(tokens, self.tokens)
        if not self.recurrent or (most == self.tokens and self._whole):
            return most
        return max((place for place in self.places if place <= most), default=0)

    def back_to(self, tokens: int) -> int:
        """Forget all behind the first `tokens` tokens, and what else must go; how many are left."""
        left, cache = self.reachable(tokens), self._cache
        if self._away is not None and left < self._away.tokens:  # where it is: the device may have no room for it now
            self._away = self._away.first(left, self._snapshots.at(left) or {}) if left else None
            if not left:
                self._room.leave()
        if cache is not None and (left < self.tokens or not self._whole):
            states = self._snapshots.at(left)
            if states is None:
                clear_states(cache)
            else:
                put_states(cache, states)
            cache.crop(left)
        self._snapshots.crop(left)
        self.tokens, self._whole = left, True
        return left

    @contextmanager
    def reading(self, more: int) -> Iterator[Cache]:
        """Inside, the cache takes up to `more` tokens; they count when it ends, and not if an error ends it."""
        if not self._whole:
            self.back_to(self.tokens)
        cache = self._here(self.tokens + more)
        self._whole = False
        yield cache
        self.tokens, self._whole = cache.tokens, True

    def mark(self) -> None:
        """Take a snapshot here, if there is any state to take."""
        if not self.recurrent or not self.tokens or self.tokens in self.places:
            return
        if self._cache is not None:
            self._snapshots.take(self.tokens, take_states(self._cache))
        elif self._away is not None:  # or a turn after a next one that parts before this place would read it again
            self._snapshots.take(self.tokens, states_on_host(self._away.states))

    def settle(self) -> None:
        """Bring to host memory what snapshots need not have on the device; for when nobody waits."""
        self._snapshots.settle()

    def fork(self, tokens: int) -> Trail:
        """Another that holds the first `tokens` tokens, as far as `back_to` would; this one stays as it is."""
        kv, rotate = self._form
        other = Trail(self.config, kv, rotate=rotate, device=self._device, snapshots=self._most, math=self._math)
        left = self.reachable(tokens)
        if not left:
            return other
        source = self._here(self.tokens)
        made = other._here(left)
        carry(source, made, left)
        other._snapshots = self._snapshots.first(left)
        if self.recurrent and (left < self.tokens or not self._whole):
            states = self._snapshots.at(left)
            assert states is not None, f"no snapshot at {left}"
            put_states(made, states)
        other.tokens = left
        return other

    def park(self) -> bool:
        """Move the cache to host memory until it is next needed; False if it is there or was never needed."""
        if self._cache is None:
            return False
        self.back_to(self.tokens)
        self._away, self._cache = Parked.of(self._cache, self._room), None
        self._snapshots.settle(0)
        return True

    def clear(self) -> None:
        """Let go of everything."""
        self._cache = self._away = None
        self._snapshots.crop(-1)
        self._room.clear()
        self.tokens, self._whole = 0, True

    @property
    def cache(self) -> Cache | None:
        """The cache, where it is not parked."""
        return self._cache

    @property
    def nbytes(self) -> int:
        """Bytes of the cache and of snapshots where the model is; on the CPU those that were written to."""
        if self._device == "cpu":
            return self._cache.peak_nbytes if self._cache is not None else 0
        return (self._cache.nbytes if self._cache is not None else 0) + self._snapshots.device_nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes in host memory of snapshots and of what is parked, or was: pinned memory is kept."""
        return self._snapshots.host_nbytes + self._room.nbytes

    def _here(self, tokens: int) -> Cache:
        """The cache, with room for so many tokens in all."""
        if self._cache is not None and self._cache.capacity >= tokens:
            return self._cache
        kv, rotate = self._form
        step = max(SMALLEST, (1 << tokens.bit_length()) // (2 * STEPS))
        made = Cache(
            self.config, max(-(-tokens // step) * step, 1), kv, rotate=rotate, device=self._device, math=self._math
        )
        if self._away is not None:
            self._away.put(made)
            self._room.leave()
        elif self._cache is not None:
            carry(self._cache, made, self.tokens)
        self._cache, self._away = made, None
        return made
