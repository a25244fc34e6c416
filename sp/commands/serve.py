"""`sp serve`: the pair behind an OpenAI-compatible interface, in this process, or replicas of it behind a door."""

from __future__ import annotations

import asyncio
import os
import pickle
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sp.chat import Thinking
from sp.cluster import join
from sp.commands.asked import RayAddress, RunAsked, Speculator, once, open_pair, speculator_file
from sp.commands.shell.line import Part, opt
from sp.errors import ConfigError
from sp.kernels.device import pick_device
from sp.plugins import Plugin, loaded_plugins
from sp.serve.options import Defaults, ServerOptions
from sp.session import ConversationOptions, Conversations, Pipeline, RunOptions
from sp.session.disk.shelf import Shelf
from sp.session.options import ModelOptions, PlaceOptions, check_run
from sp.session.store import lasting

MISSING: str | None = None
try:
    from sp.serve.app import Service
    from sp.serve.guard import Guard, hosts_of, key_of, on_loopback
    from sp.serve.http import Limits, Metrics, Server, listen, log_requests, origins_of
    from sp.serve.worker import Worker
except ModuleNotFoundError as error:
    if (error.name or "sp").partition(".")[0] == "sp":
        raise
    MISSING = error.name  # told when it is needed: help is not

if TYPE_CHECKING:
    from sp.serve.door import Door
    from sp.serve.http import Served

KEY = "SP_API_KEY"


def serve(
    models: ModelOptions,
    asked: Annotated[RunAsked, Part(max_new_tokens=256)],
    memory: ConversationOptions,
    thinking: Thinking,
    place: PlaceOptions,
    server: ServerOptions,
    speculator: Speculator = None,
    replicas: Annotated[
        int, opt(least=1, help="Servers behind the one address, a pair and a GPU (or CPU) each, by Ray Serve.")
    ] = 1,
    address: RayAddress = None,
    host: Annotated[str, opt(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, opt(least=0, most=65535, help="Port to listen on.")] = 8000,
    cors: Annotated[
        list[str] | None,
        opt(help="Origin whose web pages may use the server, e.g. http://localhost:3000; '*' for all; repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        opt(help="Name by which clients may call the server, besides localhost and --host; '*' for any; repeatable."),
    ] = None,
    api_key: Annotated[
        str | None, opt(help="Key that clients must send, or SP_API_KEY; beyond this machine one is made if left out.")
    ] = None,
    no_api_key: Annotated[bool, opt(help="Ask for no key, whoever reaches the server.")] = False,
    access_log: Annotated[bool, opt(help="A line on standard error for every request.")] = True,
    grace: Annotated[int, opt(least=0, help="Seconds the request at work has to end on shutdown.")] = 30,
) -> None:
    """Serve chats, text completions and OpenAI's Responses of one resident pair, compressed request by request.

    A request may say otherwise of thinking: 'reasoning_effort', and 'chat_template_kwargs' such as
    {"enable_thinking": false}. Replies have what was thought as 'reasoning_content', and calls of the tools that a
    request describes as 'tool_calls'.

    Answers are greedy unless a request has a 'temperature'; 'top_p', 'top_k', 'min_p' and 'seed' go with it.
    'response_format' holds answers to JSON, of a schema if wanted.

    A long message of one string is a document and its question, which is the last paragraph, or sentence that asks.
    'usage' tells what was taken for it.

    Requests that begin like an earlier one go on with its session: only what is new is read, and what was left out
    comes back when a question needs it. Clients send all messages each time, as ever; 'usage' tells what was cached.

    With --replicas conversations are spread over several servers, and each goes on where it began.

    With --gpus several GPUs read a prompt together and share a target that does not fit one of them; every request is
    read by itself then, without sessions.

    Examples
    --------
      sp serve --keep-ratio 0.1 --threshold 4096
      sp serve --precision auto --drafter-precision auto
      sp serve --sessions 8 --session-memory 40g --session-keys q4_0
      sp serve --sessions 8 --session-dir ~/.cache/sp/sessions --session-disk 100g
      sp serve --replicas 4
      sp serve --gpus 2 --target Llama-3.3-70B-Q4_K_M.gguf --drafter Llama-3.2-1B-BF16.gguf
      sp serve --cors http://localhost:3000
      sp serve --decode ddtree --set decode.budget=22
      sp serve --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off
      sp serve --target Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --compress always
    """
    from sp.decode import DECODERS, Speculative

    if MISSING:
        raise ConfigError(f"sp serve needs the package {MISSING}; pip install 'sp-prefill[serve]'")
    if address and replicas == 1:
        raise ConfigError("--address is for a cluster; add --replicas 2 or more")
    together = max(place.gpus, place.target_gpus or 1)
    if replicas > 1 and together > 1:
        raise ConfigError("--gpus is for one server; leave it and --target-gpus away, or --replicas")
    if server.session_dir is not None and (replicas > 1 or together > 1 or not server.sessions):
        raise ConfigError("--session-dir is for one server with sessions, on one GPU; leave it away")
    options = replace(asked.options, max_new_tokens=min(asked.max_new_tokens, server.max_tokens))
    if isinstance(options.decode, Speculative):
        speculator = speculator_file(models.target, speculator, DECODERS.name_of(options.decode))
    wanted = Asked(models, speculator, place, options, thinking, memory, server)
    if getattr(options.decode, "temperature", 0):
        raise ConfigError("sp serve decodes speculatively only at temperature 0; omit decode.temperature")
    origins, key = origins_of(cors or []), key_of(None if no_api_key else api_key or os.environ.get(KEY))
    listener = listen(host, port)
    with ExitStack() as stack:
        stack.callback(listener.close)
        made = not (key or no_api_key or on_loopback(listener))
        key = secrets.token_urlsafe(24) if made else key
        guard = Guard(hosts_of(allow_host or [], host, loopback=on_loopback(listener)), key)
        served: Served
        if replicas == 1:
            served = open_service(wanted, tell, origins, guard)
            model, shared = served.model, f", {together} GPUs" if together > 1 else ""
        else:
            served, model = stack.enter_context(open_door(wanted, replicas, address, origins, tell, guard))
            shared = f", {replicas} replicas"
        if access_log:
            log_requests()
        where = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        if not (key or on_loopback(listener)):
            tell(f"warning: anyone who reaches {host} can use this server")
        if made:
            tell(f"API key {key} (--api-key for your own, --no-api-key for none); the page: {where}/#key={key}")
        tell(f"{model} at {where}/v1{shared}")
        Server(served, grace).serve_on(listener)


def tell(line: str) -> None:
    """A line on standard error."""
    print(f"sp: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Asked:
    """Options of `sp serve`, read and checked; plain, so that they can be sent to another process."""

    models: ModelOptions
    speculator: Path | None
    place: PlaceOptions
    options: RunOptions
    thinking: Thinking
    memory: ConversationOptions
    server: ServerOptions

    @property
    def limits(self) -> Limits:
        """What one client may take."""
        return Limits(body_bytes=self.server.max_body << 20)


def open_service(
    asked: Asked, tell: Callable[[str], None], cors: tuple[str, ...] = (), guard: Guard | None = None
) -> Service:
    """The pair, loaded and warm, behind its endpoints; `tell` is called with a line for what should be known of it."""
    # Without a list of scorers all layers are loaded: a request may name any of them.
    pipeline = open_pair(asked.models, asked.place, speculator=asked.speculator)
    if note := asked.thinking.note(pipeline.target.template):
        tell(f"{pipeline.target.path.name}: {note}")
    pipeline.ready(asked.options, once)
    pipeline.warm_up(options=asked.options)
    worker = Worker(pipeline, Metrics(), asked.server.queue, talks_of(asked, pipeline, tell))
    server, speculative = asked.server, pipeline.speculator is not None
    defaults = Defaults(asked.options, server.max_tokens, speculative, asked.thinking, server.strict_fields)
    return Service(worker, defaults, asked.limits, cors, guard)


def talks_of(asked: Asked, pipeline: Pipeline, tell: Callable[[str], None]) -> Conversations | None:
    """The conversations that the service remembers, none if it is not to; `tell` hears why it does not."""
    if not asked.server.sessions:
        return None
    if pipeline.on_gpus:
        tell("no sessions: what several GPUs hold of a request goes with it, and each is read by itself")
        return None
    try:
        check_run(asked.options, pipeline.drafter)
    except ConfigError as error:
        tell(f"no sessions, but for requests that say otherwise: {error}")
    pipeline.ready(asked.options, keys=asked.memory.keys)  # or the first request would wait for it
    server, shelf = asked.server, None
    if server.session_dir is not None:
        shelf = Shelf(server.session_dir, server.session_disk, lasting(pipeline), tell)
    room: dict[str, Any] = {"memory": server.session_memory, "device": server.session_vram, "shelf": shelf}
    return Conversations(pipeline, asked.memory, most=server.sessions, **room)


@contextmanager
def open_door(
    asked: Asked,
    replicas: int,
    address: str | None,
    cors: tuple[str, ...],
    tell: Callable[[str], None],
    guard: Guard | None = None,
) -> Iterator[tuple[Door, str]]:
    """A door before so many replicas, all ready, and the name of their target; `tell` hears what they have to note.
    ConfigError: Ray is missing, its cluster has no room, or the pair cannot be opened."""
    with ExitStack() as stack:
        cluster = join("--replicas", address, replicas)
        stack.callback(cluster.close)
        from sp.serve.door import Door
        from sp.serve.replica import deployed

        kind: Literal["GPU", "CPU"] = "GPU" if pick_device(asked.place.device) == "cuda" else "CPU"
        handle = stack.enter_context(
            deployed(cluster, partial(open_replica, loaded_plugins(), pickle.dumps(asked)), replicas, kind)
        )
        door = Door(handle, replicas, asked.limits, cors, guard)
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
