"""Lanes: in which order those who wait are served."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Lane = tuple[str, str]  # a client and a session of it


class Lanes(Generic[Item]):
    """What waits, by lanes; clients take turns, in a client its sessions, in a session what came first. A client that
    comes anew stands behind all that wait, and one that was served goes there if it has more: so nobody waits for more
    than one turn of each other client, however much that has sent. (Round robin; Nagle, RFC 970.)
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[str, OrderedDict[str, list[Item]]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """May be asked while another thread adds or takes."""
        return self._size

    def __iter__(self) -> Iterator[Item]:
        return (item for sessions in self._clients.values() for items in sessions.values() for item in items)

    def add(self, lane: Lane, item: Item) -> None:
        """Put at the end of its lane."""
        self._clients.setdefault(lane[0], OrderedDict()).setdefault(lane[1], []).append(item)
        self._size += 1

    def next(self) -> Item:
        """Take what is next; KeyError if nothing waits."""
        client, sessions = self._clients.popitem(last=False)
        session, items = sessions.popitem(last=False)
        item = items.pop(0)
        self._size -= 1
        if items:
            sessions[session] = items
        if sessions:
            self._clients[client] = sessions
        return item

    def remove(self, lane: Lane, item: Item) -> bool:
        """Take something out; whether it was there."""
        sessions = self._clients.get(lane[0], OrderedDict())
        items = sessions.get(lane[1], [])
        if not any(each is item for each in items):
            return False
        items[:] = [each for each in items if each is not item]
        self._size -= 1
        if not items:
            del sessions[lane[1]]
        if not sessions:
            del self._clients[lane[0]]
        return True

    def greediest(self, beside: str) -> Item | None:
        """The last that a client waits for who has at least two more than another; None if there is no such client."""
        waiting = {name: [i for items in each.values() for i in items] for name, each in self._clients.items()}
        most = max(waiting.values(), key=len, default=[])
        return most[-1] if len(most) >= len(waiting.get(beside, [])) + 2 else None

    def clear(self) -> list[Item]:
        """Take everything out."""
        items = list(self)
        self._clients.clear()
        self._size = 0
        return items


def lane_of(body: Mapping[str, Any], address: str, key: str) -> Lane:
    """The lane of a request. `body`: A client is who ``safety_identifier`` or ``user`` say, a session what
    ``prompt_cache_key`` says; or else messages up to the first of the user, with which each request of a conversation
    begins; `address`: of the client, which it is where the body names none; `key`: the API key with which it came.
    """
    named = next((body[name] for name in ("safety_identifier", "user") if isinstance(body.get(name), str)), None)
    session: Any = body.get("prompt_cache_key")
    messages = body.get("messages")
    if not isinstance(session, str) and isinstance(messages, list):
        roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
        session = messages[: roles.index("user") + 1 if "user" in roles else 1]
    return _digest([named] if named is not None else [address, key]), _digest(session)


def _digest(value: Any) -> str:
    """A short name for plain data of any size."""
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()
