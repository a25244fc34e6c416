"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sp.serve.fields import RequestError

SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Metrics:
    """Counters of one server.

    `requests` by outcome: ok, refused (the client's fault, or no room), cancelled (the client left), failed.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("sp_requests", "Requests by outcome.", ["outcome"], registry=self.registry)
        self.tokens = Counter("sp_tokens", "Tokens: of prompts, of them cached, kept and recalled; and generated.",
                              ["kind"], registry=self.registry)  # fmt: skip
        self.sessions = Counter("sp_session_requests", "Requests by the session they found: hit, fork, miss, none.",
                                ["found"], registry=self.registry)  # fmt: skip
        self.evictions = Counter("sp_session_evictions", "Sessions that had to go.", registry=self.registry)
        self.compressed = Counter("sp_compressed", "Requests the target read only in part.", registry=self.registry)
        self.questions = Counter("sp_questions", "Chats by what was taken for the question.", ["found"],
                                 registry=self.registry)  # fmt: skip
        self.ttft = Histogram("sp_ttft_seconds", "From the start of work to the first token.", registry=self.registry,
                              buckets=SECONDS)  # fmt: skip
        self.waited = Histogram("sp_queue_seconds", "Wait in the queue.", registry=self.registry, buckets=SECONDS)

    def refused(self, error: RequestError) -> None:
        """Count a request that ended in an error."""
        self.requests.labels("failed" if error.status == 500 else "refused").inc()

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """In the exposition format."""
        return generate_latest(self.registry)
