"""Which replica a request goes to: the one that remembers how its conversation begins."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from ray.serve.request_router import RequestRouter

PIECE = 1024
"""Characters of a completion's prompt that count as a message does in a chat."""
REMEMBERED = 1 << 16
"""Prefixes in memory; a conversation has one for every message."""
AHEAD = 2
"""Requests by which a replica may be busier than another and still be given what it holds the beginning of.

Each of them costs about the work of one prompt read anew, which is what another replica would have to do.
"""

Holder = TypeVar("Holder", bound=Hashable)


def prefixes_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Digests of the beginnings of a request, shortest first; requests that begin alike share the first of them.

    Of a chat they end after each message from the first of the user on: what stands before it, such as a system
    message, is common to chats that have nothing else in common. Of a completion they end after every `PIECE`
    characters. A ``prompt_cache_key`` is a beginning that its client names.
    """
    messages, prompt, key = body.get("messages"), body.get("prompt"), body.get("prompt_cache_key")
    parts: list[Any] = []
    first = 0
    if isinstance(messages, list):
        parts = messages
        roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
        first = roles.index("user") if "user" in roles else 0
    elif isinstance(prompt, str):
        parts = [prompt[start : start + PIECE] for start in range(0, len(prompt), PIECE)]
    digests, so_far = [], ""
    for index, part in enumerate(parts):
        so_far = _digest([so_far, part])
        if index >= first:
            digests.append(so_far)
    return ((_digest([key]),) if isinstance(key, str) else ()) + tuple(digests)


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


class Beginnings(Generic[Holder]):
    """Remembers who was given which prefixes, and orders replicas for the next request."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._holders: OrderedDict[str, Holder] = OrderedDict()
        self._most, self._turn = most, 0

    def given(self, prefixes: Sequence[str], holder: Holder) -> None:
        """A replica now holds these prefixes; what was used longest ago is forgotten where there are too many."""
        for prefix in prefixes:
            self._holders[prefix] = holder
            self._holders.move_to_end(prefix)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def order(self, prefixes: Sequence[str], busy: Mapping[Holder, int]) -> list[Holder]:
        """Replicas, best first: who holds the longest prefix unless it is too busy, then those with the least to do.

        Parameters
        ----------
        prefixes : sequence of str
            As `prefixes_of` gives them.
        busy : mapping of replica to int
            Requests that each has; of equals they take turns.
        """
        self._turn += 1
        names = list(busy)
        turn = self._turn % max(len(names), 1)
        ordered = sorted(names[turn:] + names[:turn], key=lambda name: busy[name])
        holder = next((self._holders[each] for each in reversed(prefixes) if self._holders.get(each) in busy), None)
        if holder is not None and busy[holder] <= busy[ordered[0]] + AHEAD:
            ordered.remove(holder)
            ordered.insert(0, holder)
        return ordered


class ConversationRouter(RequestRouter):
    """Gives a request to the replica that has read the most of it, and what is new to the one with the least to do."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Called by Ray Serve before the first request."""
        self._beginnings: Beginnings[Any] = Beginnings()
        self._busy = Counter[Any]()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Replicas by rank, one each."""
        found = {replica.replica_id: replica for replica in candidate_replicas}
        order = self._beginnings.order(_prefixes(pending_request), {each: self._busy[each] for each in found})
        return [[found[each]] for each in order]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """A replica has taken a request."""
        self._busy[replica_id] += 1
        self._beginnings.given(_prefixes(pending_request), replica_id)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """A replica is done with a request, or was lost with it."""
        if self._busy[replica_id] > 0:
            self._busy[replica_id] -= 1

    def update_replicas(self, replicas: list[Any]) -> None:
        """Some are new, some are gone; what those did that are gone is forgotten."""
        super().update_replicas(replicas)
        for gone in set(self._busy) - {replica.replica_id for replica in replicas}:
            del self._busy[gone]


def _prefixes(pending: Any) -> tuple[str, ...]:
    return pending.args[0].prefixes if pending is not None and pending.args else ()
