"""What `sp serve` was asked for, and the service it comes to: in this process, or in those of its replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp.chat import Thinking
from sp.commands.open_pair import once, open_pair
from sp.errors import ConfigError
from sp.serve.app import Service
from sp.serve.http.bodies import Limits
from sp.serve.metrics import Metrics
from sp.serve.options import Defaults
from sp.serve.worker import Worker
from sp.session import ConversationOptions, Conversations, Pipeline, RunOptions
from sp.session.options import check_run


@dataclass(frozen=True)
class Asked:
    """Options of `sp serve`, read and checked; plain, so that they can be sent to another process.

    Parameters
    ----------
    target, drafter, draft, break_even : Path or None
    loading : dict
        From `asked_ropes` and `asked_maths`, and `cards` and `target_cards` of `Pipeline.open`.
    device : str
    vram : str or None
    options : RunOptions
    thinking : Thinking
    max_tokens : int
        Longest answer a request may ask for.
    memory : ConversationOptions
    sessions : int
        Conversations to remember.
    host_bytes, device_bytes : int
        Memory for them; None leaves the device's to what is free.
    queue : int
        Requests that may wait.
    body_bytes : int
        Largest body.
    """

    target: Path | None
    drafter: Path | None
    draft: Path | None
    loading: Mapping[str, Any]
    device: str
    vram: str | None
    break_even: Path | None
    options: RunOptions
    thinking: Thinking
    max_tokens: int
    memory: ConversationOptions
    sessions: int
    host_bytes: int
    device_bytes: int | None
    queue: int
    body_bytes: int

    @property
    def limits(self) -> Limits:
        """What one client may take."""
        return Limits(body_bytes=self.body_bytes)


def open_service(asked: Asked, tell: Callable[[str], None], cors: tuple[str, ...] = ()) -> Service:
    """The pair, loaded and warm, behind its endpoints; `tell` is called with a line for what should be known of it."""
    pipeline = open_pair(
        asked.target, asked.drafter, asked.device, asked.vram, asked.break_even, asked.draft, asked.loading
    )  # with all layers, as a request may name any scorer
    if note := asked.thinking.note(pipeline.target.template):
        tell(f"{pipeline.target.path.name}: {note}")
    pipeline.ready(asked.options, once)
    pipeline.warm_up(options=asked.options)
    worker = Worker(pipeline, Metrics(), asked.queue, talks_of(asked, pipeline, tell))
    defaults = Defaults(asked.options, asked.max_tokens, pipeline.draft is not None, asked.thinking)
    return Service(worker, defaults, asked.limits, cors)


def talks_of(asked: Asked, pipeline: Pipeline, tell: Callable[[str], None]) -> Conversations | None:
    """The conversations that the service remembers, none if it is not to; `tell` hears why it does not."""
    if not asked.sessions:
        return None
    if pipeline.on_cards:
        tell("no sessions: what several cards hold of a request goes with it, and each is read by itself")
        return None
    try:
        check_run(asked.options, pipeline.drafter)
    except ConfigError as error:
        tell(f"no sessions, but for requests that say otherwise: {error}")
    return Conversations(
        pipeline, asked.memory, most=asked.sessions, memory=asked.host_bytes, device=asked.device_bytes
    )
