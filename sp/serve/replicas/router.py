"""Ray Serve's choice of a replica for a request: the one that holds the beginning of its conversation.

`PrefixCacheAffinityRouter`, which comes with Ray, needs the packages of `ray[llm]` (vLLM, PyTorch) and asks an actor of
its own about each request. Here the one door knows all requests, so that a dictionary suffices.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import RequestRouter

from sp.serve.replicas.beginnings import Beginnings


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
