"""`sp serve`: the pair behind an OpenAI-compatible interface."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from sp.commands.known.strategies import read_settings
from sp.commands.open_pair import asked_maths, asked_ropes, draft_of, thinking_of
from sp.commands.options import (
    VRAM,
    BreakEven,
    Cache,
    Compress,
    Decode,
    Draft,
    Drafter,
    DrafterMath,
    DrafterRope,
    OnDevice,
    Positions,
    RayAddress,
    ReasoningEffort,
    Rotate,
    RunCards,
    Scorer,
    Selector,
    Target,
    TargetCards,
    TargetMath,
    TargetRope,
    ThinkingMode,
    tokens_option,
)
from sp.config import from_mapping
from sp.errors import ConfigError

if TYPE_CHECKING:
    from sp.serve.server import Served

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    target: Target = None,
    drafter: Drafter = None,
    target_rope: TargetRope = None,
    drafter_rope: DrafterRope = None,
    math: TargetMath = "bf16",
    drafter_math: DrafterMath = "bf16",
    keep_ratio: Annotated[
        float, typer.Option(help="Share the target reads of what may be left out, in (0, 1].")
    ] = 0.05,
    scorer: Scorer = "auto",
    selector: Selector = "top_chunks",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option of a strategy, e.g. scorer.queries=16 or decode.budget=22; repeatable."),
    ] = None,
    compress: Compress = "auto",
    threshold: Annotated[int, tokens_option(least=0, help="With auto: shortest prompt to compress, in tokens.")] = 0,
    break_even: BreakEven = None,
    positions: Positions = "original",
    kv: Cache = "f16",
    rotate: Rotate = None,
    decode: Decode = "greedy",
    draft: Draft = None,
    thinking: ThinkingMode = "auto",
    reasoning_effort: ReasoningEffort = None,
    max_new_tokens: Annotated[int, tokens_option(least=1, help="Answer length where a request names none.")] = 256,
    max_tokens: Annotated[int, tokens_option(least=1, help="Longest answer a request may ask for.")] = 4096,
    device: OnDevice = "auto",
    cards: RunCards = 1,
    target_cards: TargetCards = None,
    vram: VRAM = None,
    sessions: Annotated[int, typer.Option(min=0, help="Conversations to remember; 0 for none.")] = 8,
    session_memory: Annotated[str, typer.Option(help="Host memory for all of them, e.g. 40g.")] = "8g",
    session_vram: Annotated[
        str | None,
        typer.Option(help="GPU memory for them between requests, e.g. 8g; else until others need it."),
    ] = None,
    session_keys: Annotated[str, typer.Option(help="The drafter's keys in sessions: f16, q4_0 or f32.")] = "f16",
    recall: Annotated[
        str, typer.Option(help="How what was left out comes back in sessions: auto, append, rewind or off.")
    ] = "auto",
    replicas: Annotated[
        int, typer.Option(min=1, help="Servers behind the one address, a pair and a GPU (or CPU) each, by Ray Serve.")
    ] = 1,
    address: RayAddress = None,
    host: Annotated[str, typer.Option(help="Address to listen on. There is no authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait.")] = 32,
    max_body: Annotated[int, typer.Option(min=1, help="Largest request body, in MiB.")] = 16,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            help="Origin whose web pages may use the server, e.g. http://localhost:3000; '*' for all; repeatable."
        ),
    ] = None,
    access_log: Annotated[bool, typer.Option(help="A line on standard error for every request.")] = True,
    grace: Annotated[int, typer.Option(min=0, help="Seconds the request at work has to end on shutdown.")] = 30,
) -> None:
    """Serve chat and text completions of one resident pair, compressed request by request.

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

    With --cards several GPUs read a prompt together and share a target that does not fit one of them; every request is
    read by itself then, without sessions.

    [bold]Examples[/bold]

      sp serve --keep-ratio 0.1 --threshold 4096

      sp serve --math auto --drafter-math auto

      sp serve --sessions 8 --session-memory 40g --session-keys q4_0

      sp serve --replicas 4

      sp serve --cards 2 --target Llama-3.3-70B-Q4_K_M.gguf --drafter Llama-3.2-1B-BF16.gguf

      sp serve --cors http://localhost:3000

      sp serve --decode ddtree --set decode.budget=22

      sp serve --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off

      sp serve --target Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --compress always
    """
    try:
        from sp.commands.serving.service import Asked, open_service
        from sp.serve.http.access import log_requests, origins_of
        from sp.serve.server import Server, listen
    except ModuleNotFoundError as error:
        if (error.name or "sp").partition(".")[0] == "sp":
            raise
        raise ConfigError(f"sp serve needs the package {error.name}; pip install 'sp-prefill[serve]'") from None
    from sp.decode import Speculative
    from sp.session import ConversationOptions, RunOptions
    from sp.session.device_memory import parse_bytes

    if address and replicas == 1:
        raise ConfigError("--address is for a cluster; add --replicas 2 or more")
    on = {"cards": cards, "target_cards": target_cards}
    together = max(cards, target_cards or 1)
    if replicas > 1 and together > 1:
        raise ConfigError("--cards is for one server; leave it and --target-cards away, or --replicas")
    given = {
        "keep_ratio": keep_ratio,
        **read_settings(scorer, selector, decode, settings or []),
        "compress": compress,
        "threshold": threshold,
        "positions": positions,
        "kv": kv,
        "rotate": rotate,
        "max_new_tokens": min(max_new_tokens, max_tokens),
    }
    options = from_mapping(RunOptions, given, "sp serve")
    asked = Asked(
        target=target,
        drafter=drafter,
        draft=draft_of(target, draft) if isinstance(options.decode, Speculative) else draft,
        loading=asked_ropes(target_rope, drafter_rope) | asked_maths(math, drafter_math) | on,
        device=device,
        vram=vram,
        break_even=break_even,
        options=options,
        thinking=thinking_of(thinking, reasoning_effort),
        max_tokens=max_tokens,
        memory=from_mapping(ConversationOptions, {"recall": recall, "keys": session_keys}, "sp serve"),
        sessions=sessions,
        host_bytes=parse_bytes(session_memory, "--session-memory"),
        device_bytes=None if session_vram is None else parse_bytes(session_vram, "--session-vram"),
        queue=queue,
        body_bytes=max_body << 20,
    )
    if getattr(options.decode, "temperature", 0):
        raise ConfigError("sp serve decodes greedily whatever guesses ahead; leave decode.temperature out")
    listener, origins = listen(host, port), origins_of(cors or [])
    with ExitStack() as stack:
        stack.callback(listener.close)
        served: Served
        if replicas == 1:
            served = open_service(asked, tell, origins)
            model, shared = served.model, f", {together} cards" if together > 1 else ""
        else:
            from sp.commands.serving.replicas import open_door

            served, model = stack.enter_context(open_door(asked, replicas, address, origins, tell))
            shared = f", {replicas} replicas"
        if access_log:
            log_requests()
        if host not in LOOPBACK:
            tell(f"warning: anyone who reaches {host} can use this server")
        where = f"[{host}]" if ":" in host else host
        tell(f"{model} at http://{where}:{listener.getsockname()[1]}/v1{shared}")
        Server(served, grace).serve_on(listener)


def tell(line: str) -> None:
    """A line on standard error."""
    print(f"sp: {line}", file=sys.stderr, flush=True)
