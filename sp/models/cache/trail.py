"""Trail: a cache that lives through many prompts, and goes back to where the next one parts from what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats
from sp.kernels import is_device
from sp.models.cache.cache import Cache
from sp.models.cache.carry import (
    HostRoom,
    Parked,
    States,
    Taken,
    carry,
    clear_states,
    put_states,
    states_fit,
    states_nbytes,
    states_on_host,
    take_states,
)
from sp.models.cache.kv_type import known_kv
from sp.models.config import ModelConfig
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.quant import Math


@dataclass(frozen=True)
class Checkpoint:
    """What it takes to make a cache forget the tokens that it reads from now on.

    Keys and values behind it are left where they are and written over. Recurrent states are copied, since they cannot
    be unread: `DeltaState.nbytes` for each layer that has one. Not for caches with `windows`, whose pages are
    written again.

    Attributes
    ----------
    tokens : int
        Tokens read so far.
    states : dict of int to (conv, recurrent)
        Copies by recurrent layer.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.ops.rope import Rope
    >>> config = ModelConfig("qwen3", 8, 9, 512, (8,), ("attention",), 1, 1, 64, Rope(1e6, 64), 1e-6)
    >>> cache, token = Cache(config, tokens=300), np.ones((1, 1, 64), np.float32)
    >>> cache.append(0, token, token)
    >>> before = Checkpoint.of(cache)
    >>> cache.append(0, token, token)
    >>> before.restore(cache)
    >>> cache.tokens
    1
    """

    tokens: int
    states: dict[int, tuple[Floats, Floats]]

    @classmethod
    def of(cls, cache: Cache) -> Checkpoint:
        """Where a cache stands now."""
        states = {layer: cache.state(layer) for layer in cache.config.delta_layers}
        return cls(cache.tokens, {layer: (each.conv.copy(), each.recurrent.copy()) for layer, each in states.items()})

    def restore(self, cache: Cache) -> None:
        """Make the cache it was taken of forget what it has read since; as often as wanted."""
        more = cache.tokens - self.tokens
        assert more >= 0, f"the cache holds {cache.tokens} tokens, fewer than at the checkpoint, {self.tokens}"
        cache.count(-more)
        cache.advance(-more)
        for layer, (conv, recurrent) in self.states.items():
            state = cache.state(layer)
            state.conv[...], state.recurrent[...] = conv, recurrent  # in place: trees know where they lie


NEAR = 2  # snapshots that stay on the device between turns: a turn goes back to one of the last two, or to an old one
MOST_ON_DEVICE = 6  # while a turn reads


class Snapshots:
    """States by the number of tokens they have read, ascending. To take one on the device is a copy within it, which
    takes as long as reading the states once; the host does not wait. They go to host memory when nobody waits, by
    `settle`. `most`: of more, those go first that lie close to others for how far back they are: the newer, the denser.
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

    def on_host(self, tokens: int) -> States:
        """Those at a place, in host memory."""
        states = dict(self._states)[tokens]
        return states_on_host(states) if any(map(_is_there, states.values())) else states

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


STEPS = 8  # caches are at least this many times larger than the steps by which they grow
SMALLEST = 256


class Trail:
    """A cache of any length that forgets from a place on.

    Keys and values are cropped anywhere. Recurrent states cannot be unread: they go back to the last snapshot before
    the place, and the caller reads on from there.

    Parameters
    ----------
    kv, rotate, device, precision
        See `Cache`.
    snapshots : int
        Most copies of recurrent states to hold; see `Snapshots`.
    bases : callable, optional
        Gives for `kv` what `Cache` takes as `bases`: `Model.bases_for`. Called when there is first something to read,
        once: pages go from one cache to the next as they are.

    Attributes
    ----------
    tokens : int
        Tokens it holds.

    Examples
    --------
    >>> import numpy as np
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
        precision: Math = Math.BF16,
        bases: Callable[[str], Mapping[int, KeyBasis]] | None = None,
    ) -> None:
        self.config, self.tokens = config, 0
        self._bases_for = bases
        self._bases: Mapping[int, KeyBasis] | None = None if bases else {}
        self._form, self._precision, self._device, self._most = (kv, rotate), precision, device, snapshots
        self._cache: Cache | None = None
        self._away: Parked | None = None
        self._snapshots, self._room = Snapshots(snapshots), HostRoom(device)
        self._whole = True
        self._same, self._taken = 0, frozenset[int]()  # since it was taken last: tokens, and places of snapshots

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
        self._same, self._taken = min(self._same, left), frozenset(at for at in self._taken if at <= left)
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
        how: dict[str, Any] = {
            "rotate": rotate,
            "device": self._device,
            "precision": self._precision,
            "bases": self._bases_for,
        }
        other = Trail(self.config, kv, snapshots=self._most, **how)
        other._bases = self._bases
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

    @property
    def whole(self) -> bool:
        """Whether all layers have read the same tokens; not after a failure, until it goes back."""
        return self._whole

    def take(self, *, anew: bool = False) -> Taken:
        """Copies of what it has come to hold since it was taken last, or `anew` of everything; waits for the device. It
        must be `whole`.
        """
        assert self._whole, "layers have read different tokens"
        first, taken = (0, frozenset[int]()) if anew else (self._same // PAGE_TOKENS, self._taken)
        if self._cache is not None and self.tokens:
            held = Parked.of(self._cache, HostRoom("cpu"), first)
        elif self._away is not None:  # its room is written to when it is parked again
            held = self._away.copied(first)
        else:
            held = Parked(0, {}, {}, np.zeros(0, np.int64))
        fresh = {at: self._snapshots.on_host(at) for at in self.places if at not in taken}
        older = tuple(at for at in self.places if at in taken)
        self._same, self._taken = self.tokens, frozenset(self.places)
        return Taken(held, first, fresh, older)

    def put(self, held: Parked, snapshots: Mapping[int, States]) -> None:
        """Hold what another one of the same model and format was seen to hold, as if it had been taken just now. It
        must hold nothing; arrays are not copied before they are needed. ValueError: they are of other sizes.
        """
        assert not self.tokens, f"{self.tokens} tokens would be lost"
        states = snapshots.values()
        if not held.fits(self.config, known_kv(self._form[0])) or not all(states_fit(s, self.config) for s in states):
            raise ValueError("keys, values or states of another model")
        self._away = held if held.tokens else None
        for at in sorted(snapshots):
            self._snapshots.take(at, snapshots[at])
        self.tokens, self._whole = held.tokens, True
        self._same, self._taken = held.tokens, frozenset(self.places)

    def clear(self) -> None:
        """Let go of everything."""
        self._cache = self._away = None
        self._snapshots.crop(-1)
        self._room.clear()
        self.tokens, self._whole = 0, True
        self._same, self._taken = 0, frozenset()

    @property
    def bases(self) -> Mapping[int, KeyBasis]:
        """How keys are turned before they are packed, by layer; asked for where they are not known yet."""
        if self._bases is None:
            assert self._bases_for is not None, "no bases and nothing that gives them"
            self._bases = self._bases_for(self._form[0])
        return self._bases

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
        how: dict[str, Any] = {
            "rotate": rotate,
            "device": self._device,
            "precision": self._precision,
            "bases": self.bases,
        }
        made = Cache(self.config, max(-(-tokens // step) * step, 1), kv, **how)
        if self._away is not None:
            self._away.put(made)
            self._room.leave()
        elif self._cache is not None:
            carry(self._cache, made, self.tokens)
        self._cache, self._away = made, None
        return made
