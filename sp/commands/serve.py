"""`sp serve`: serve a pair by OpenAI-compatible APIs, from this process, or from replicas behind a router."""

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
from sp.commands.common import RayAddress, RunArguments, Speculator, open_pair, report_once, speculator_file
from sp.commands.shell.parser import Adjusted, opt
from sp.config import Tokens
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
    from sp.serve.http import ClientLimits, Metrics, Server, listen, log_requests, origins_of
    from sp.serve.worker import PipelineWorker
except ModuleNotFoundError as error:
    if (error.name or "sp").partition(".")[0] == "sp":
        raise
    MISSING = error.name  # reported when the command runs; its help needs none of these

if TYPE_CHECKING:
    from sp.serve.http import HttpService
    from sp.serve.router import RouterService

KEY = "SP_API_KEY"


def serve(
    models: ModelOptions,
    arguments: Annotated[RunArguments, Adjusted("max_new_tokens")],
    memory: ConversationOptions,
    thinking: Thinking,
    place: PlaceOptions,
    server: ServerOptions,
    speculator: Speculator = None,
    max_new_tokens: Annotated[
        Tokens | None, opt(least=1, help="Longest answer of a request that has no limit; --max-tokens if omitted.")
    ] = None,
    replicas: Annotated[
        int, opt(least=1, help="Replicas behind one address, each with a pair and a GPU (or CPU), by Ray Serve.")
    ] = 1,
    address: RayAddress = None,
    host: Annotated[str, opt(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, opt(least=0, most=65535, help="Port to listen on.")] = 8000,
    cors: Annotated[
        list[str] | None,
        opt(help="Origin whose web pages may call the server, e.g. http://localhost:3000; '*' for all; repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        opt(help="Further host name of the server, besides localhost and --host; '*' for any; repeatable."),
    ] = None,
    api_key: Annotated[
        str | None,
        opt(help="Key that clients must send; SP_API_KEY if omitted, or a new one if other machines can connect."),
    ] = None,
    no_api_key: Annotated[bool, opt(help="Accept all requests without a key.")] = False,
    access_log: Annotated[bool, opt(help="Print a line on standard error for every request.")] = True,
    grace: Annotated[int, opt(least=0, help="Seconds that the running request has to finish on shutdown.")] = 30,
) -> None:
    """Serve chats, text completions and OpenAI's Responses from one resident pair; each request is compressed.

    A request may override the thinking options by 'reasoning_effort', or by 'chat_template_kwargs' such as
    {"enable_thinking": false}. Replies have the model's thoughts as 'reasoning_content', and calls of the tools that a
    request describes as 'tool_calls'.

    Decoding is greedy unless a request has a 'temperature', with 'top_p', 'top_k', 'min_p' and 'seed'.
    'response_format' restricts answers to JSON, with a schema if the request has one.

    A long message of a single string is a document followed by a question: its last paragraph, or its last sentence
    that asks something. 'usage' has the text that was used as the question.

    A request that continues an earlier one reuses its session: only new text is read, and omitted text is restored if
    a question needs it. Clients send all messages each time; 'usage' has the number of cached tokens.

    With --replicas, conversations are distributed over several replicas; a conversation is routed to the replica that
    has its KV cache.

    With --gpus, several GPUs read a prompt together and share a target that does not fit on one. Sessions work as on
    one GPU.

    Examples
    --------
      sp serve --keep-ratio 0.1 --threshold 4096
      sp serve --precision auto --drafter-precision auto
      sp serve --sessions 8 --session-memory 40g --session-keys q4_0
      sp serve --sessions 8 --session-dir ~/.cache/sp/sessions --session-disk 100g
      sp serve --replicas 4
      sp serve --gpus 2 --sessions 8 --target Llama-3.3-70B-Q4_K_M.gguf --drafter Llama-3.2-1B-BF16.gguf
      sp serve --cors http://localhost:3000
      sp serve --decode ddtree --set decode.budget=22
      sp serve --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off
      sp serve --target Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --compress always
    """
    from sp.decode import DECODERS, Speculative

    if MISSING:
        raise ConfigError(f"sp serve needs the package {MISSING}; pip install 'sp-prefill[serve]'")
    if address and replicas == 1:
        raise ConfigError("--address needs several replicas; add --replicas 2 or more, or omit --address")
    gpus = max(place.gpus, place.target_gpus or 1)
    if replicas > 1 and gpus > 1:
        raise ConfigError("a replica runs on one GPU; omit --gpus and --target-gpus, or --replicas")
    if server.session_dir is not None and (replicas > 1 or not server.sessions):
        raise ConfigError(
            "--session-dir needs a single server with --sessions of at least 1; omit --session-dir, or --replicas and "
            "--sessions 0"
        )
    answer = server.max_tokens if max_new_tokens is None else min(max_new_tokens, server.max_tokens)
    options = replace(arguments.options, max_new_tokens=answer)
    if isinstance(options.decode, Speculative):
        speculator = speculator_file(models.target, speculator, DECODERS.name_of(options.decode))
    service = ServiceOptions(models, speculator, place, options, thinking, memory, server)
    if getattr(options.decode, "temperature", 0):
        raise ConfigError("sp serve decodes speculatively only at temperature 0; omit decode.temperature")
    origins, key = origins_of(cors or []), key_of(None if no_api_key else api_key or os.environ.get(KEY))
    listener = listen(host, port)  # before the models are loaded, so that a port in use is an error at once
    with ExitStack() as stack:
        stack.callback(listener.close)
        new_key = not (key or no_api_key or on_loopback(listener))
        key = secrets.token_urlsafe(24) if new_key else key
        # The host names that are allowed keep web pages from reaching the server by DNS rebinding.
        guard = Guard(hosts_of(allow_host or [], host, loopback=on_loopback(listener)), key)
        served: HttpService
        if replicas == 1:
            served = open_service(service, log, origins, guard)
            model, shared = served.model, f", {gpus} GPUs" if gpus > 1 else ""
        else:
            served, model = stack.enter_context(open_router(service, replicas, address, origins, log, guard))
            shared = f", {replicas} replicas"
        if access_log:
            log_requests()
        where = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        if not (key or on_loopback(listener)):
            log(f"warning: anyone who can reach {host} can use this server")
        if new_key:
            log(f"API key {key} (--api-key for your own, --no-api-key for none); page: {where}/#key={key}")
        log(f"{model} at {where}/v1{shared}")
        Server(served, grace).serve_on(listener)


def log(line: str) -> None:
    """Print a line on standard error."""
    print(f"sp: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class ServiceOptions:
    """Checked options of `sp serve`, which can be pickled for another process."""

    models: ModelOptions
    speculator: Path | None
    place: PlaceOptions
    options: RunOptions
    thinking: Thinking
    memory: ConversationOptions
    server: ServerOptions

    @property
    def limits(self) -> ClientLimits:
        """ClientLimits of one client."""
        return ClientLimits(body_bytes=self.server.max_body << 20)


def open_service(
    service: ServiceOptions, log: Callable[[str], None], cors: tuple[str, ...] = (), guard: Guard | None = None
) -> Service:
    """Load and warm up the pair, and return the service of its endpoints; `log` is called with lines of remarks."""
    # Without a list of scorers all layers are loaded: a request may name any of them.
    pipeline = open_pair(service.models, service.place, speculator=service.speculator)
    if note := service.thinking.note(pipeline.target.template):
        log(f"{pipeline.target.path.name}: {note}")
    pipeline.ready(service.options, report_once)
    pipeline.warm_up(options=service.options)
    worker = PipelineWorker(pipeline, Metrics(), service.server.queue, conversations_of(service, pipeline, log))
    server, speculative = service.server, pipeline.speculator is not None
    defaults = Defaults(service.options, server.max_tokens, speculative, service.thinking, server.strict_fields)
    return Service(worker, defaults, service.limits, cors, guard)


def conversations_of(service: ServiceOptions, pipeline: Pipeline, log: Callable[[str], None]) -> Conversations | None:
    """Return the store of sessions, or None without sessions; `log` is called with the reason."""
    if not service.server.sessions:
        return None
    try:
        check_run(service.options, pipeline.drafter)
    except ConfigError as error:
        log(f"no sessions for requests with these defaults: {error}")
    pipeline.ready(service.options, keys=service.memory.keys)  # now, or the first request would wait for it
    server, shelf = service.server, None
    if server.session_dir is not None:
        shelf = Shelf(server.session_dir, server.session_disk, lasting(pipeline), log)
    limits: dict[str, Any] = {"memory": server.session_memory, "device": server.session_vram, "shelf": shelf}
    return Conversations(pipeline, service.memory, most=server.sessions, **limits)


@contextmanager
def open_router(
    service: ServiceOptions,
    replicas: int,
    address: str | None,
    cors: tuple[str, ...],
    log: Callable[[str], None],
    guard: Guard | None = None,
) -> Iterator[tuple[RouterService, str]]:
    """Start replicas behind a router, and yield the router and the name of their target once all are ready.

    `log` is called with lines of remarks.

    Raises
    ------
    ConfigError
        Ray is not installed, its cluster lacks resources, or the pair cannot be opened.
    """
    with ExitStack() as stack:
        cluster = join("--replicas", address, replicas)
        stack.callback(cluster.close)
        from sp.serve.replica import deployed
        from sp.serve.router import RouterService

        kind: Literal["GPU", "CPU"] = "GPU" if pick_device(service.place.device) == "cuda" else "CPU"
        handle = stack.enter_context(
            deployed(cluster, partial(open_replica, loaded_plugins(), pickle.dumps(service)), replicas, kind)
        )
        router = RouterService(handle, replicas, service.limits, cors, guard)
        states = asyncio.run(router.states())
        if not states:
            raise ConfigError("the replicas have started but do not answer; see the logs of Ray Serve, /tmp/ray")
        for note in states[0]["notes"]:
            log(note)
        yield router, states[0]["model"]


def open_replica(plugins: Sequence[Plugin], pickled: bytes, log: Callable[[str], None]) -> Service:
    """Open the service of a replica from pickled `ServiceOptions`."""
    for plugin in plugins:  # before unpickling, as the options may contain their strategies
        plugin.load()
    return open_service(pickle.loads(pickled), log)
