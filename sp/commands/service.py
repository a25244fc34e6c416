"""What `sp serve` comes to: a service in this process, or replicas of it behind a door, on a cluster of Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sp.chat import Thinking
from sp.cluster import join
from sp.commands.open_pair import once, open_pair
from sp.conversation import ConversationOptions, Conversations
from sp.conversation.options import check_run
from sp.errors import ConfigError
from sp.kernels.device import pick_device
from sp.pipeline import Pipeline, RunOptions
from sp.pipeline.options import ModelOptions, PlaceOptions
from sp.plugins import Plugin, loaded_plugins
from sp.serve.app import Service
from sp.serve.http.bodies import Limits
from sp.serve.metrics import Metrics
from sp.serve.options import Defaults, ServerOptions
from sp.serve.replicas.deploy import deployed
from sp.serve.replicas.door import Door
from sp.serve.worker import Worker


@dataclass(frozen=True)
class Asked:
    """Options of `sp serve`, read and checked; plain, so that they can be sent to another process."""

    models: ModelOptions
    draft: Path | None
    place: PlaceOptions
    options: RunOptions
    thinking: Thinking
    memory: ConversationOptions
    server: ServerOptions

    @property
    def limits(self) -> Limits:
        """What one client may take."""
        return Limits(body_bytes=self.server.max_body << 20)


def open_service(asked: Asked, tell: Callable[[str], None], cors: tuple[str, ...] = ()) -> Service:
    """The pair, loaded and warm, behind its endpoints; `tell` is called with a line for what should be known of it."""
    pipeline = open_pair(asked.models, asked.place, draft=asked.draft)  # all layers: a request may name any scorer
    if note := asked.thinking.note(pipeline.target.template):
        tell(f"{pipeline.target.path.name}: {note}")
    pipeline.ready(asked.options, once)
    pipeline.warm_up(options=asked.options)
    worker = Worker(pipeline, Metrics(), asked.server.queue, talks_of(asked, pipeline, tell))
    defaults = Defaults(asked.options, asked.server.max_tokens, pipeline.draft is not None, asked.thinking)
    return Service(worker, defaults, asked.limits, cors)


def talks_of(asked: Asked, pipeline: Pipeline, tell: Callable[[str], None]) -> Conversations | None:
    """The conversations that the service remembers, none if it is not to; `tell` hears why it does not."""
    if not asked.server.sessions:
        return None
    if pipeline.on_cards:
        tell("no sessions: what several cards hold of a request goes with it, and each is read by itself")
        return None
    try:
        check_run(asked.options, pipeline.drafter)
    except ConfigError as error:
        tell(f"no sessions, but for requests that say otherwise: {error}")
    room = {"memory": asked.server.session_memory, "device": asked.server.session_vram}
    return Conversations(pipeline, asked.memory, most=asked.server.sessions, **room)


@contextmanager
def open_door(
    asked: Asked, replicas: int, address: str | None, cors: tuple[str, ...], tell: Callable[[str], None]
) -> Iterator[tuple[Door, str]]:
    """A door before so many replicas, all ready, and the name of their target; `tell` hears what they have to note.

    Raises
    ------
    ConfigError
        Ray is missing, its cluster has no room, or the pair cannot be opened.
    """
    with ExitStack() as stack:
        cluster = join("--replicas", address, replicas)
        stack.callback(cluster.close)
        kind: Literal["GPU", "CPU"] = "GPU" if pick_device(asked.place.device) == "cuda" else "CPU"
        handle = stack.enter_context(
            deployed(cluster, partial(open_replica, loaded_plugins(), pickle.dumps(asked)), replicas, kind)
        )
        door = Door(handle, replicas, asked.limits, cors)
        states = asyncio.run(door.states())
        if not states:
            raise ConfigError("the replicas have started but do not answer; see the logs of Ray Serve, /tmp/ray")
        for note in states[0]["notes"]:
            tell(note)
        yield door, states[0]["model"]


def open_replica(plugins: Sequence[Plugin], asked: bytes, tell: Callable[[str], None]) -> Service:
    """The service of a replica; what was asked for is read only once the plugins are here that it may speak of."""
    for plugin in plugins:
        plugin.load()
    return open_service(pickle.loads(asked), tell)
