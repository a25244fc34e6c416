"""What a conversation holds as records of a file: each has what is new, and the last one says what counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from sp.arrays import Ints
from sp.models import SessionCache
from sp.models.cache.transfer import CacheChanges, ParkedCache, States
from sp.session.disk.records import Array, DamagedError, Part, Record
from sp.session.memory import Slots
from sp.session.recall import Memory

THREADS = 8  # that read and check arrays: one of them does not keep up with a disk
COLUMNS = tuple(each.name for each in fields(Slots))


class Written(NamedTuple):
    """Facts and arrays of one record."""

    facts: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(each.nbytes for each in self.arrays.values())


def written(memory: Memory, *, anew: bool) -> Written | None:
    """What a memory has come to hold since it was last asked, or `anew` all of it; None while it is half read."""
    trails = _trails(memory)
    if not all(trail.whole for trail in trails.values()):
        return None
    taken = {name: trail.changes(full=anew) for name, trail in trails.items()}
    target, drafter = memory.target, memory.drafter
    arrays: dict[str, Array] = {"transcript": target.transcript}
    arrays |= {f"slots.{name}": getattr(target.slots, name) for name in COLUMNS}
    arrays |= {} if drafter is None else {"drafter.ids": drafter.ids}
    facts: dict[str, Any] = {}
    for name, one in taken.items():
        facts[name] = _facts(one, trails[name])
        arrays |= _arrays(name, one)
    return Written({"trails": facts}, arrays)


def _trails(memory: Memory) -> dict[str, SessionCache]:
    return dict(zip(("target", "drafter"), memory.trails, strict=False))


def _facts(taken: CacheChanges, trail: SessionCache) -> dict[str, Any]:
    held = taken.held
    return {
        "tokens": held.tokens,
        "first": taken.first,
        "layers": list(held.pages),
        "recurrent": list(held.states),
        "fresh": sorted(taken.fresh),
        "older": list(taken.older),
        "bases": _bases(trail),
    }


def _bases(trail: SessionCache) -> str:
    """A hash over how the keys of packed pages were turned."""
    found = sha256()
    for layer, basis in sorted(trail.bases.items()):
        found.update(f"{layer}".encode())
        for each in (basis.order, basis.offset, basis.scale):
            found.update(np.ascontiguousarray(each.get() if hasattr(each, "get") else each).tobytes())
    return found.hexdigest()


def _arrays(name: str, taken: CacheChanges) -> dict[str, Array]:
    held = taken.held
    found: dict[str, Array] = {f"{name}.places": held.places}
    for layer, pages in held.pages.items():
        found |= dict(zip(_sides(name, layer), pages, strict=True))
    everywhere: list[tuple[int | str, States]] = [("now", held.states), *taken.fresh.items()]
    for at, states in everywhere:
        for layer, both in states.items():
            found |= dict(zip(_state(name, at, layer), both, strict=True))
    return found


def _sides(name: str, layer: int) -> tuple[str, str]:
    return f"{name}.{layer}.k", f"{name}.{layer}.v"


def _state(name: str, at: int | str, layer: int) -> tuple[str, str]:
    return f"{name}.{at}.{layer}.conv", f"{name}.{at}.{layer}.recurrent"


def _check(told: Mapping[str, Any]) -> None:
    """ValueError: facts of a trail are no numbers of tokens, or none that there can be."""
    numbers = [told["tokens"], told["first"], *told["layers"], *told["recurrent"], *told["fresh"], *told["older"]]
    if not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError("facts of a trail")
    if max([0, *told["fresh"], *told["older"]]) > told["tokens"] or not isinstance(told["bases"], str):
        raise ValueError("facts of a trail")


class Pieces:
    """Where in the records of a file the arrays of its last one lie. `nbytes`: what they take, which is less than the
    file where something was written twice; `transcript`: where its tokens lie; `facts`: those of a record that has all
    of it. DamagedError: records do not follow each other.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.last = records[-1]
        self._pages: dict[str, list[tuple[int, int, Part]]] = {}
        self._states: dict[str, Part] = {}
        self._whole = dict[str, Part]()
        try:
            for record in records:
                for name, told in record.facts["trails"].items():
                    _check(told)
                    self._follow(name, told, record)
            self._whole = {name: part for name, part in self.last.parts.items() if name not in self._pages}
            self._whole |= self._states
            for name, told in self.last.facts["trails"].items():
                self._follow_each_other(name, told)
            self.transcript, self.facts = self.last.parts["transcript"], self._merged(self.last.facts)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise DamagedError(f"its records do not fit each other ({error!r})") from None
        self.nbytes = sum(part.nbytes for part in self._parts)

    @property
    def _parts(self) -> set[Part]:
        """All of which something counts."""
        return {part for each in self._pages.values() for *_, part in each} | set(self._whole.values())

    def _follow(self, name: str, told: Mapping[str, Any], record: Record) -> None:
        first = int(told["first"])
        for key, known in self._pages.items():
            if key.startswith(f"{name}."):
                self._pages[key] = [(low, min(high, first), part) for low, high, part in known if low < first]
        for key in (side for layer in told["layers"] for side in _sides(name, layer)):
            part = record.parts[key]
            if part.shape[0]:
                self._pages.setdefault(key, []).append((first, first + part.shape[0], part))
        kept = dict[str, Part]()
        for places, source in ((told["older"], self._states), (told["fresh"], record.parts)):
            keys = (key for at in places for layer in told["recurrent"] for key in _state(name, at, layer))
            kept |= {key: source[key] for key in keys}
        others = {key: part for key, part in self._states.items() if not key.startswith(f"{name}.")}
        self._states = others | kept

    def _follow_each_other(self, name: str, told: Mapping[str, Any]) -> None:
        """ValueError: pages do not, from the first on."""
        for key in (side for layer in told["layers"] for side in _sides(name, layer)):
            ends = [0, *(high for _, high, _ in self._pages[key])]
            if [low for low, _, _ in self._pages[key]] != ends[:-1]:
                raise ValueError(key)

    def read(self, file: BinaryIO, *, threads: int = THREADS) -> dict[str, Array]:
        """All of these arrays. DamagedError: one is not what was written."""
        parts = self._parts
        with ThreadPoolExecutor(threads) as pool:
            read = dict(zip(parts, pool.map(lambda part: part.read(file), parts), strict=True))
        found = {name: read[part] for name, part in self._whole.items()}
        for name, each in self._pages.items():
            pieces = [read[part][: high - low] for low, high, part in each]
            if pieces:
                found[name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return found

    @staticmethod
    def _merged(facts: Mapping[str, Any]) -> dict[str, Any]:
        """Facts of a record that has all of it."""
        trails = {
            name: {**told, "first": 0, "fresh": sorted([*told["older"], *told["fresh"]]), "older": []}
            for name, told in facts["trails"].items()
        }
        return {**facts, "trails": trails}


def put(memory: Memory, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Have an empty memory hold what was read. DamagedError: it cannot be of this model."""
    try:
        if set(facts["trails"]) != set(_trails(memory)):
            raise ValueError("other models")
        columns = [_ids(arrays[f"slots.{name}"]) for name in COLUMNS]
        if len({len(each) for each in columns}) > 1:
            raise ValueError("slots")
        target = _of_trail("target", facts, arrays)
        memory.target.put(Slots(*columns), _ids(arrays["transcript"]), *target)
        if memory.drafter is not None:
            memory.drafter.put(_ids(arrays["drafter.ids"]), *_of_trail("drafter", facts, arrays))
        for name, trail in _trails(memory).items():
            if facts["trails"][name]["bases"] != _bases(trail):
                raise ValueError("keys that were packed otherwise")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedError(f"it does not fit the models ({error})") from None


def _of_trail(
    name: str, facts: Mapping[str, Any], arrays: Mapping[str, Array]
) -> tuple[ParkedCache, Mapping[int, States]]:
    told = facts["trails"][name]

    def both(keys: Iterable[str]) -> tuple[Array, Array]:
        one, other = (arrays[key] for key in keys)
        return one, other

    def states(at: int | str) -> States:
        return {layer: both(_state(name, at, layer)) for layer in told["recurrent"]}

    pages = {layer: both(_sides(name, layer)) for layer in told["layers"]}
    held = ParkedCache(int(told["tokens"]), pages, states("now"), arrays[f"{name}.places"])
    return held, {at: states(at) for at in (*told["older"], *told["fresh"])}


def _ids(array: Array) -> Ints:
    if array.dtype != np.int64 or array.ndim != 1:
        raise ValueError("numbers of tokens")
    return array
