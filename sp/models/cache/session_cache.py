"""SessionCache: a cache that serves many prompts, and rewinds to where the next prompt differs from what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats
from sp.kernels import is_device
from sp.models.cache.cache import Cache
from sp.models.cache.kv_type import known_kv
from sp.models.cache.transfer import (
    CacheChanges,
    HostBuffer,
    ParkedCache,
    States,
    clear_states,
    copy_cache,
    put_states,
    states_fit,
    states_nbytes,
    states_on_host,
    take_states,
)
from sp.models.config import ModelConfig
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.quant import Math


@dataclass(frozen=True)
class Checkpoint:
    """A point to which a cache can be rolled back.

    Keys and values after it stay in place and are overwritten later. Recurrent states are copied, since they cannot be
    truncated: `DeltaState.nbytes` for each recurrent layer. Not for caches with `windows`, whose pages are overwritten.

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
        """Record the current state of a cache."""
        states = {layer: cache.state(layer) for layer in cache.config.delta_layers}
        return cls(
            cache.tokens, {layer: (state.conv.copy(), state.recurrent.copy()) for layer, state in states.items()}
        )

    def restore(self, cache: Cache) -> None:
        """Roll the cache back to this point; may be repeated."""
        more = cache.tokens - self.tokens
        assert more >= 0, f"the cache holds {cache.tokens} tokens, fewer than at the checkpoint, {self.tokens}"
        cache.count(-more)
        cache.advance(-more)
        for layer, (conv, recurrent) in self.states.items():
            state = cache.state(layer)
            state.conv[...], state.recurrent[...] = conv, recurrent  # in place: tree graphs captured their addresses


NEAR = 2  # snapshots that stay on the device between turns: a turn rewinds to one of the last two, or to an old one
MOST_ON_DEVICE = 6  # snapshots on the device while a turn is read


class Snapshots:
    """Recurrent states by the number of tokens they have read, ascending. A snapshot on the device is a copy within
    device memory, about as expensive as reading the states once; the host does not wait. `settle` moves snapshots to
    host memory when no request waits. `most`: beyond this number, those that lie closest to others relative to their
    distance from the end are dropped, so that recent snapshots are denser than old ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._states: list[tuple[int, States]] = []

    @property
    def places(self) -> tuple[int, ...]:
        """Token counts of the snapshots, ascending."""
        return tuple(tokens for tokens, _ in self._states)

    def states_after(self, tokens: int) -> States | None:
        """Return the states after so many tokens; None without such a snapshot."""
        return dict(self._states).get(tokens)

    def add(self, tokens: int, states: States) -> None:
        """Add states, which no one else holds, after all earlier snapshots."""
        self._states.append((tokens, states))
        if len(self._states) > self._most:
            places = (0, *self.places)

            def relative_gap(index: int) -> float:
                return (places[index + 1] - places[index - 1]) / (places[-1] - places[index])

            del self._states[min(range(1, len(places) - 1), key=relative_gap, default=1) - 1]
        if len(self._on_device) > MOST_ON_DEVICE:
            self.settle()

    def settle(self, near: int = NEAR) -> None:
        """Move all but the last `near` snapshots on the device to host memory; waits for the device."""
        on_device = self._on_device
        for index in on_device[: len(on_device) - near]:
            tokens, states = self._states[index]
            self._states[index] = tokens, states_on_host(states)

    def on_host(self, tokens: int) -> States:
        """Return the states of one snapshot in host memory."""
        states = dict(self._states)[tokens]
        return states_on_host(states) if any(map(_is_on_device, states.values())) else states

    def crop(self, tokens: int) -> None:
        """Drop the snapshots after so many tokens."""
        self._states = [snapshot for snapshot in self._states if snapshot[0] <= tokens]

    def first(self, tokens: int) -> Snapshots:
        """Return a collection that shares the snapshots up to so many tokens; the states themselves are never
        modified."""
        other = Snapshots(self._most)
        other._states = [snapshot for snapshot in self._states if snapshot[0] <= tokens]
        return other

    @property
    def device_nbytes(self) -> int:
        """Bytes on the device."""
        return sum(states_nbytes(self._states[index][1]) for index in self._on_device)

    @property
    def host_nbytes(self) -> int:
        """Bytes in host memory."""
        return sum(states_nbytes(states) for _, states in self._states) - self.device_nbytes

    @property
    def _on_device(self) -> list[int]:
        """Indices of the snapshots on the device."""
        return [index for index, (_, states) in enumerate(self._states) if any(map(_is_on_device, states.values()))]


def _is_on_device(state: tuple[Any, Any]) -> bool:
    return is_device(state[1])


STEPS = 8  # caches grow in steps of at most 1/8 of their size
SMALLEST = 256  # tokens, least step


class SessionCache:
    """A cache of any length that can rewind to an earlier token.

    Keys and values are truncated anywhere. Recurrent states cannot be truncated: they go back to the last snapshot
    before the place, and the caller reads on from there.

    Parameters
    ----------
    kv, rotate, device, precision
        See `Cache`.
    snapshots : int
        Most copies of recurrent states to hold; see `Snapshots`.
    bases : callable, optional
        Returns the `bases` of `Cache` for `kv`: `Model.bases_for`. Called once, before the first token is read: pages
        move from one cache to the next unchanged.

    Attributes
    ----------
    tokens : int
        Tokens it holds.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.ops.rope import Rope
    >>> config = ModelConfig("qwen3", 8, 9, 512, (8,), ("attention",), 1, 1, 64, Rope(1e6, 64), 1e-6)
    >>> session_cache = SessionCache(config)
    >>> with session_cache.reading(5) as cache:
    ...     cache.append(0, np.ones((5, 1, 64), np.float32), np.ones((5, 1, 64), np.float32))
    >>> session_cache.tokens, session_cache.rewind_to(3), session_cache.tokens
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
        self._format, self._precision, self._device, self._most = (kv, rotate), precision, device, snapshots
        self._cache: Cache | None = None
        self._parked: ParkedCache | None = None
        self._snapshots, self._room = Snapshots(snapshots), HostBuffer(device)
        self._whole = True
        self._exported_tokens, self._exported = (
            0,
            frozenset[int](),
        )  # of the last export: tokens, and places of snapshots

    @property
    def recurrent(self) -> bool:
        """True if any layer has a state that cannot be truncated."""
        return bool(self.config.delta_layers)

    @property
    def format(self) -> tuple[str, bool | None]:
        """`kv` and `rotate`, see `Cache`."""
        return self._format

    @property
    def places(self) -> tuple[int, ...]:
        """Token counts of the snapshots, ascending."""
        return self._snapshots.places

    def reachable(self, tokens: int) -> int:
        """Return the number of tokens that `rewind_to` would leave of so many."""
        most = min(tokens, self.tokens)
        if not self.recurrent or (most == self.tokens and self._whole):
            return most
        return max((place for place in self.places if place <= most), default=0)

    def rewind_to(self, tokens: int) -> int:
        """Drop the tokens after the first `tokens`, and those that must be dropped with them; return how many are
        left."""
        remaining, cache = self.reachable(tokens), self._cache
        if (
            self._parked is not None and remaining < self._parked.tokens
        ):  # in host memory: the device may have no room now
            self._parked = (
                self._parked.first(remaining, self._snapshots.states_after(remaining) or {}) if remaining else None
            )
            if not remaining:
                self._room.release()
        if cache is not None and (remaining < self.tokens or not self._whole):
            states = self._snapshots.states_after(remaining)
            if states is None:
                clear_states(cache)
            else:
                put_states(cache, states)
            cache.crop(remaining)
        # Snapshots after the new end belong to tokens that are gone.
        self._snapshots.crop(remaining)
        self.tokens, self._whole = remaining, True
        self._exported_tokens, self._exported = (
            min(self._exported_tokens, remaining),
            frozenset(place for place in self._exported if place <= remaining),
        )
        return remaining

    @contextmanager
    def reading(self, more: int) -> Iterator[Cache]:
        """Yield the cache, with room for `more` tokens; they count once the context ends, and not if an error
        ends it."""
        if not self._whole:
            self.rewind_to(self.tokens)
        cache = self._with_room(self.tokens + more)
        self._whole = False
        yield cache
        self.tokens, self._whole = cache.tokens, True

    def mark(self) -> None:
        """Take a snapshot at the current length, if there is a recurrent state."""
        if not self.recurrent or not self.tokens or self.tokens in self.places:
            return
        if self._cache is not None:
            self._snapshots.add(self.tokens, take_states(self._cache))
        elif (
            self._parked is not None
        ):  # without it, rewinding to a place before this one and coming back would read the tokens again
            self._snapshots.add(self.tokens, states_on_host(self._parked.states))

    def settle(self) -> None:
        """Move snapshots that need not stay on the device to host memory; to be called when no request waits."""
        self._snapshots.settle()

    def fork(self, tokens: int) -> SessionCache:
        """Return another session cache with the first `tokens` tokens, as far as `rewind_to` would keep them; this one
        is unchanged."""
        kv, rotate = self._format
        options: dict[str, Any] = {
            "rotate": rotate,
            "device": self._device,
            "precision": self._precision,
            "bases": self._bases_for,
        }
        other = SessionCache(self.config, kv, snapshots=self._most, **options)
        other._bases = self._bases
        remaining = self.reachable(tokens)
        if not remaining:
            return other
        # A parked cache is brought back first, since its pages are copied on the device.
        source = self._with_room(self.tokens)
        copy = other._with_room(remaining)
        copy_cache(source, copy, remaining)
        other._snapshots = self._snapshots.first(remaining)
        # The states copied above are those of the end; an earlier place needs its snapshot.
        if self.recurrent and (remaining < self.tokens or not self._whole):
            states = self._snapshots.states_after(remaining)
            assert states is not None, f"no snapshot at {remaining}"
            put_states(copy, states)
        other.tokens = remaining
        return other

    def park(self) -> bool:
        """Move the cache to host memory until it is next needed; False if it is there already or was never
        allocated."""
        if self._cache is None:
            return False
        self.rewind_to(self.tokens)
        self._parked, self._cache = ParkedCache.of(self._cache, self._room), None
        self._snapshots.settle(0)
        return True

    @property
    def whole(self) -> bool:
        """True if all layers have read the same tokens; False after a failure, until it rewinds."""
        return self._whole

    def changes(self, *, full: bool = False) -> CacheChanges:
        """Copy what was added since the last export, or with `full` everything; waits for the device. The cache must be
        `whole`."""
        assert self._whole, "layers have read different tokens"
        first, exported = (0, frozenset[int]()) if full else (self._exported_tokens // PAGE_TOKENS, self._exported)
        if self._cache is not None and self.tokens:
            contents = ParkedCache.of(self._cache, HostBuffer("cpu"), first, rings=False)  # files have none
        elif self._parked is not None:  # its buffer is overwritten when it is parked again
            contents = self._parked.copied(first)
        else:
            contents = ParkedCache(0, {}, {}, np.zeros(0, np.int64))
        fresh = {place: self._snapshots.on_host(place) for place in self.places if place not in exported}
        older = tuple(place for place in self.places if place in exported)
        self._exported_tokens, self._exported = self.tokens, frozenset(self.places)
        return CacheChanges(contents, first, fresh, older)

    def put(self, contents: ParkedCache, snapshots: Mapping[int, States]) -> None:
        """Restore the exported contents of another session cache of the same model and format. This one must be empty;
        arrays are not copied before they are needed. ValueError if the sizes differ."""
        assert not self.tokens, f"{self.tokens} tokens would be lost"
        states = snapshots.values()
        if not contents.fits(self.config, known_kv(self._format[0])) or not all(
            states_fit(s, self.config) for s in states
        ):
            raise ValueError("the keys, values or states are those of another model or format")
        self._parked = contents if contents.tokens else None
        for place in sorted(snapshots):
            self._snapshots.add(place, snapshots[place])
        self.tokens, self._whole = contents.tokens, True
        self._exported_tokens, self._exported = contents.tokens, frozenset(self.places)

    def clear(self) -> None:
        """Free everything."""
        self._cache = self._parked = None
        self._snapshots.crop(-1)
        self._room.clear()
        self.tokens, self._whole = 0, True
        self._exported_tokens, self._exported = 0, frozenset()

    @property
    def bases(self) -> Mapping[int, KeyBasis]:
        """Basis changes of keys before they are packed, by layer; computed at the first use."""
        if self._bases is None:
            assert self._bases_for is not None, "neither bases nor a function that computes them"
            self._bases = self._bases_for(self._format[0])
        return self._bases

    @property
    def cache(self) -> Cache | None:
        """The cache, if it is not parked."""
        return self._cache

    @property
    def nbytes(self) -> int:
        """Bytes of the cache and of snapshots where the model is; on the CPU only those that were written to."""
        if self._device == "cpu":
            return self._cache.peak_nbytes if self._cache is not None else 0
        return (self._cache.nbytes if self._cache is not None else 0) + self._snapshots.device_nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes of snapshots in host memory and of the parking buffer, which stays allocated if it is pinned."""
        return self._snapshots.host_nbytes + self._room.nbytes

    def _with_room(self, tokens: int) -> Cache:
        """Return the cache, with room for so many tokens in all."""
        if self._cache is not None and self._cache.capacity >= tokens:
            return self._cache
        kv, rotate = self._format
        # Capacity grows in steps, so that a growing conversation is not copied at every turn.
        step = max(SMALLEST, (1 << tokens.bit_length()) // (2 * STEPS))
        options: dict[str, Any] = {
            "rotate": rotate,
            "device": self._device,
            "precision": self._precision,
            "bases": self.bases,
        }
        cache = Cache(self.config, max(-(-tokens // step) * step, 1), kv, **options)
        if self._parked is not None:
            self._parked.put(cache)
            self._room.release()
        elif self._cache is not None:
            copy_cache(self._cache, cache, self.tokens)
        self._cache, self._parked = cache, None
        return cache
