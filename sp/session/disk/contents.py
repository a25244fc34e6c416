"""The contents of a conversation as records of a file: each has what is new, and the last one says what is valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from sp.arrays import Ints
from sp.models import SessionCache
from sp.models.cache.kv_type import known_kv
from sp.models.cache.transfer import CacheChanges, ParkedCache, States
from sp.session.disk.records import Array, DamagedError, DiskRecord, StoredArray
from sp.session.memory import CacheContents, Slots
from sp.session.recall import Memory

THREADS = 8  # read and hash arrays in parallel; a single one is slower than a disk
COLUMNS = tuple(field.name for field in fields(Slots))


class RecordData(NamedTuple):
    """Facts and arrays of one record."""

    facts: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(array.nbytes for array in self.arrays.values())


def changes_of(memory: Memory, *, full: bool) -> RecordData | None:
    """Return what is new in a memory since the last call, or with `full` everything; None after an interrupted turn."""
    caches = _caches(memory)
    if not all(cache.whole for cache in caches.values()):
        return None
    target, drafter = memory.target, memory.drafter
    exported = [*target.changes(full=full), *([] if drafter is None else [drafter.cache.changes(full=full)])]
    changes = dict(zip(caches, exported, strict=True))
    arrays: dict[str, Array] = {"transcript": target.transcript}
    arrays |= {f"slots.{name}": getattr(target.slots, name) for name in COLUMNS}  # int64 (m,) each
    arrays |= {} if drafter is None else {"drafter.ids": drafter.ids}
    facts: dict[str, Any] = {}
    for name, changed in changes.items():
        facts[name] = _facts(changed, caches[name])
        arrays |= _arrays(name, changed)
    return RecordData({"trails": facts}, arrays)  # keys of files keep their names: older files have them


def _caches(memory: Memory) -> dict[str, SessionCache]:
    """Return the caches by name: the target's, of which each GPU that shares it has one, and the drafter's."""
    target = {f"target-{rank}" if rank else "target": cache for rank, cache in enumerate(memory.target.caches)}
    return target if memory.drafter is None else target | {"drafter": memory.drafter.cache}


def _facts(changes: CacheChanges, cache: SessionCache) -> dict[str, Any]:
    contents = changes.contents
    return {
        "tokens": contents.tokens,
        "first": changes.first,
        "layers": list(contents.pages),
        "recurrent": list(contents.states),
        "fresh": sorted(changes.fresh),
        "older": list(changes.older),
        "bases": _bases(cache),
    }


def _bases(cache: SessionCache) -> str:
    """Return a hash of the bases in which the keys of packed pages are stored."""
    digest, fmt = sha256(), known_kv(cache.format[0]).k
    for layer, measured in sorted(cache.bases.items()):
        basis = measured.of_format(fmt)
        digest.update(f"{layer}".encode())
        for array in (basis.order, basis.offset, basis.scale):
            digest.update(np.ascontiguousarray(array.get() if hasattr(array, "get") else array).tobytes())
    return digest.hexdigest()


def _arrays(name: str, changes: CacheChanges) -> dict[str, Array]:
    contents = changes.contents
    arrays: dict[str, Array] = {f"{name}.places": contents.places}
    for layer, pages in contents.pages.items():
        arrays |= dict(zip(_sides(name, layer), pages, strict=True))
    # Now, and snapshots by tokens read.
    everywhere: list[tuple[int | str, States]] = [("now", contents.states), *changes.fresh.items()]
    for place, states in everywhere:
        for layer, pair in states.items():
            arrays |= dict(zip(_state(name, place, layer), pair, strict=True))
    return arrays


def _sides(name: str, layer: int) -> tuple[str, str]:
    return f"{name}.{layer}.k", f"{name}.{layer}.v"


def _state(name: str, place: int | str, layer: int) -> tuple[str, str]:
    return f"{name}.{place}.{layer}.conv", f"{name}.{place}.{layer}.recurrent"


def _check(facts: Mapping[str, Any]) -> None:
    """Raise ValueError unless the facts of a cache are possible numbers of tokens and layers."""
    numbers = [facts["tokens"], facts["first"]]
    numbers += [*facts["layers"], *facts["recurrent"], *facts["fresh"], *facts["older"]]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("facts of a cache")
    if max([0, *facts["fresh"], *facts["older"]]) > facts["tokens"] or not isinstance(facts["bases"], str):
        raise ValueError("facts of a cache")


class RecordIndex:
    """The locations, in the records of a file, of all valid arrays.

    DamagedError if the records do not follow each other.

    Attributes
    ----------
    nbytes : int
        Size of the arrays, less than the file where a later record replaced some.
    transcript : StoredArray
        The tokens of the conversation.
    facts : dict
        Facts of a single record with all of it.
    """

    def __init__(self, records: Sequence[DiskRecord]) -> None:
        self.last = records[-1]
        # By array name: pages [low, high) and their location.
        self._pages: dict[str, list[tuple[int, int, StoredArray]]] = {}
        self._states: dict[str, StoredArray] = {}  # snapshots of recurrent states by array name
        self._whole = dict[str, StoredArray]()
        try:
            for record in records:
                for name, facts in record.facts["trails"].items():
                    _check(facts)
                    self._follow(name, facts, record)
            self._whole = {name: part for name, part in self.last.parts.items() if name not in self._pages}
            self._whole |= self._states  # arrays that are read as they are, by name
            for name, facts in self.last.facts["trails"].items():
                self._check_contiguous(name, facts)
            self.transcript, self.facts = self.last.parts["transcript"], self._merged(self.last.facts)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise DamagedError(f"its records do not fit each other ({error!r})") from None
        self.nbytes = sum(part.nbytes for part in self._parts)

    @property
    def _parts(self) -> set[StoredArray]:
        """All arrays of which some part is valid."""
        return {part for ranges in self._pages.values() for *_, part in ranges} | set(self._whole.values())

    def _follow(self, name: str, facts: Mapping[str, Any], record: DiskRecord) -> None:
        """Apply a record: pages from `first` on replace older ones, and snapshots not listed are dropped."""
        first = int(facts["first"])  # in pages
        for key, known in self._pages.items():
            if key.startswith(f"{name}."):
                self._pages[key] = [(low, min(high, first), part) for low, high, part in known if low < first]
        for key in (side for layer in facts["layers"] for side in _sides(name, layer)):
            part = record.parts[key]
            if part.shape[0]:
                self._pages.setdefault(key, []).append((first, first + part.shape[0], part))
        valid = dict[str, StoredArray]()
        for places, source in ((facts["older"], self._states), (facts["fresh"], record.parts)):
            keys = (key for place in places for layer in facts["recurrent"] for key in _state(name, place, layer))
            valid |= {key: source[key] for key in keys}
        others = {key: part for key, part in self._states.items() if not key.startswith(f"{name}.")}
        self._states = others | valid

    def _check_contiguous(self, name: str, facts: Mapping[str, Any]) -> None:
        """Raise ValueError unless the pages are contiguous from the first token on."""
        for key in (side for layer in facts["layers"] for side in _sides(name, layer)):
            ends = [0, *(high for _, high, _ in self._pages[key])]
            if [low for low, _, _ in self._pages[key]] != ends[:-1]:
                raise ValueError(key)

    def load(self, file: BinaryIO, *, threads: int = THREADS) -> dict[str, Array]:
        """Read all valid arrays; DamagedError if one has changed since it was written."""
        parts = self._parts
        with ThreadPoolExecutor(threads) as pool:
            loaded = dict(zip(parts, pool.map(lambda part: part.load(file), parts), strict=True))
        arrays = {name: loaded[part] for name, part in self._whole.items()}
        for name, ranges in self._pages.items():
            pieces = [loaded[part][: high - low] for low, high, part in ranges]  # later pages were replaced
            if pieces:
                arrays[name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return arrays

    @staticmethod
    def _merged(facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts of a single record with all of it."""
        trails = {
            name: {**cache, "first": 0, "fresh": sorted([*cache["older"], *cache["fresh"]]), "older": []}
            for name, cache in facts["trails"].items()
        }
        return {**facts, "trails": trails}


def put(memory: Memory, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Fill an empty memory with the contents of a file; DamagedError if they do not fit the models."""
    try:
        if set(facts["trails"]) != set(_caches(memory)):
            raise ValueError("other models")
        columns = [_ids(arrays[f"slots.{name}"]) for name in COLUMNS]
        if len({len(column) for column in columns}) > 1:
            raise ValueError("slots")
        target = (_cache_contents(name, facts, arrays) for name in _caches(memory) if name != "drafter")
        memory.target.put(Slots(*columns), _ids(arrays["transcript"]), *target)
        if memory.drafter is not None:
            memory.drafter.put(_ids(arrays["drafter.ids"]), *_cache_contents("drafter", facts, arrays))
        for name, cache in _caches(memory).items():
            if facts["trails"][name]["bases"] != _bases(cache):
                raise ValueError("keys that were packed otherwise")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedError(f"it does not fit the models ({error})") from None


def _cache_contents(name: str, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> CacheContents:
    own = facts["trails"][name]

    def both(keys: Iterable[str]) -> tuple[Array, Array]:
        first, second = (arrays[key] for key in keys)
        return first, second

    def states(place: int | str) -> States:
        return {layer: both(_state(name, place, layer)) for layer in own["recurrent"]}

    pages = {layer: both(_sides(name, layer)) for layer in own["layers"]}
    contents = ParkedCache(int(own["tokens"]), pages, states("now"), arrays[f"{name}.places"])
    return contents, {place: states(place) for place in (*own["older"], *own["fresh"])}


def _ids(array: Array) -> Ints:
    if array.dtype != np.int64 or array.ndim != 1:
        raise ValueError("numbers of tokens")
    return array
