"""A fair queue: the order in which waiting requests are served."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
QueueKey = tuple[str, str]  # digests of a client and of its session


class FairQueue(Generic[Item]):
    """A queue with round robin over clients; within a client over its sessions, and within a session first in, first
    out.

    A new client is placed after all others, and so is a client that was just served and has more. Nobody therefore
    waits for more than one turn of each other client, however many requests that client has sent (round robin; Nagle,
    RFC 970).
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[str, OrderedDict[str, list[Item]]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of items; safe while another thread adds or takes."""
        return self._size

    def __iter__(self) -> Iterator[Item]:
        return (item for sessions in self._clients.values() for items in sessions.values() for item in items)

    def add(self, key: QueueKey, item: Item) -> None:
        """Append an item to its session."""
        self._clients.setdefault(key[0], OrderedDict()).setdefault(key[1], []).append(item)
        self._size += 1

    def next(self) -> Item:
        """Remove and return the next item; KeyError if the queue is empty."""
        client, sessions = self._clients.popitem(last=False)
        session, items = sessions.popitem(last=False)
        item = items.pop(0)
        self._size -= 1
        if items:  # at the end, behind the other sessions
            sessions[session] = items
        if sessions:  # at the end, behind all other clients
            self._clients[client] = sessions
        return item

    def remove(self, key: QueueKey, item: Item) -> bool:
        """Remove an item; return True if it was in the queue."""
        sessions = self._clients.get(key[0], OrderedDict())
        items = sessions.get(key[1], [])
        if not any(waiting is item for waiting in items):
            return False
        items[:] = [waiting for waiting in items if waiting is not item]
        self._size -= 1
        if not items:
            del sessions[key[1]]
        if not sessions:
            del self._clients[key[0]]
        return True

    def greediest(self, client: str) -> Item | None:
        """Return the last item of the client with the most, if it has at least two more than `client`; else None."""
        waiting = {name: [i for items in sessions.values() for i in items] for name, sessions in self._clients.items()}
        most = max(waiting.values(), key=len, default=[])
        return most[-1] if len(most) >= len(waiting.get(client, [])) + 2 else None

    def clear(self) -> list[Item]:
        """Remove and return all items."""
        items = list(self)
        self._clients.clear()
        self._size = 0
        return items


def queue_key_of(body: Mapping[str, Any], address: str, key: str) -> QueueKey:
    """Return the key of a request in the queue: digests of its client and its session.

    `body`: the client is ``safety_identifier`` or ``user``, the session ``prompt_cache_key``, or else the messages up
    to the first of the user, which all requests of a conversation share; `address`: of the client, used where the body
    does not name it; `key`: the API key of the request.
    """
    client = next((body[name] for name in ("safety_identifier", "user") if isinstance(body.get(name), str)), None)
    session: Any = body.get("prompt_cache_key")
    messages = body.get("messages")
    if not isinstance(session, str) and isinstance(messages, list):
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        session = messages[: roles.index("user") + 1 if "user" in roles else 1]
    return _digest([client] if client is not None else [address, key]), _digest(session)


def _digest(value: Any) -> str:
    """Return a digest of JSON data."""
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()
