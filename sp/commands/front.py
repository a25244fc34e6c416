"""`sp front`: long texts made shorter on their way to another server."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from sp.commands.asked import once
from sp.commands.serve import tell
from sp.commands.shell.line import opt
from sp.errors import ConfigError
from sp.session.device_memory import Size

NEEDED = ("starlette", "uvicorn", "httpx", "prometheus_client")


def missing_module() -> str | None:
    """The first module that a front needs and that is not installed; None if all are."""
    return next((name for name in NEEDED if find_spec(name) is None), None)


Drafter = Annotated[
    Path | None,
    opt(help="GGUF of the small model that reads, or a known name; the best one here if left out."),
]
KeepRatio = Annotated[float, opt(least=0, most=1, help="Share of a text's tokens that is kept.")]
ScorerName = Annotated[str, opt(help="What makes a token important, as in sp run; bm25 goes by words alone.")]
SelectorName = Annotated[str, opt(help="How tokens are chosen; segments keeps whole lines, sentences and JSON values.")]
Mark = Annotated[bool, opt(help="Write [... 212 lines ...] where something was left out.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], opt(help="The GPU, the CPU, or the GPU if there is one.")]


def front(
    upstream: Annotated[str, opt(help="Address of the server behind, e.g. http://127.0.0.1:8080.")],
    drafter: Drafter = None,
    keep_ratio: KeepRatio = 0.2,
    scorer: ScorerName = "auto",
    selector: SelectorName = "segments",
    mark: Mark = True,
    threshold: Annotated[int, opt(least=0, help="Requests of fewer tokens pass unchanged.")] = 2048,
    max_prompt_tokens: Annotated[
        int | None, opt(least=64, help="Most tokens that the server behind takes of a prompt.")
    ] = None,
    recall: Annotated[bool, opt(help="Bring back what was left out where a later question needs it.")] = True,
    shorten_newest: Annotated[
        bool, opt(help="Shorten tool results at once; without it, once the model has answered to them.")
    ] = False,
    store: Annotated[Size, opt(help="Memory of what was decided.")] = Size(256 << 20),  # noqa: B008
    device: Device = "auto",
    vram: Annotated[Size | None, opt(help="GPU memory for the drafter, e.g. 4g; all there is if left out.")] = None,
    host: Annotated[str, opt(help="Address to listen on. There is no authentication.")] = "127.0.0.1",
    port: Annotated[int, opt(least=0, most=65535, help="Port to listen on.")] = 8100,
    allow_host: Annotated[
        list[str] | None, opt(help="Another name by which clients call it, as in their Host header; repeatable.")
    ] = None,
    max_body: Annotated[int, opt(least=1, help="MiB that a request's body may have.")] = 64,
    page: Annotated[bool, opt(help="Show texts of the last requests at /.")] = True,
    access_log: Annotated[bool, opt(help="A line on standard error for every request.")] = True,
) -> None:
    """Serve before another server, and shorten long texts on their way to it.

    Clients speak to it as to the server behind: chat completions, Responses and Anthropic's Messages. Documents before
    a question are shortened, and what tools answered once an assistant has spoken behind it. Each text is shortened
    once, and written the same in every later request, so that the server behind finds it in its cache. Everything else
    passes unchanged, keys among it.

    Examples
    --------
      sp front --upstream http://127.0.0.1:8080
      sp front --upstream http://127.0.0.1:8080 --keep-ratio 0.1 --max-prompt-tokens 7500
      sp front --upstream http://127.0.0.1:8080 --scorer bm25
    """
    if missing := missing_module():
        raise ConfigError(f"sp front needs the package {missing}; pip install 'sp-prefill[serve]'")
    from sp.front.history import History
    from sp.front.proxy import Front
    from sp.front.rules import Rules
    from sp.front.shorten import Compressor
    from sp.front.store import DecisionStore
    from sp.front.upstream import upstream_of
    from sp.serve.guard import Guard, hosts_of, on_loopback
    from sp.serve.http import Server, listen, log_requests

    address, rules = upstream_of(upstream), Rules(keep_ratio, threshold, max_prompt_tokens, recall, shorten_newest)
    listener = listen(host, port)
    try:
        how: dict[str, Any] = {"scorer": scorer, "selector": selector, "mark": mark, "device": device, "vram": vram}
        compressor = Compressor.open(drafter, keep_ratio=keep_ratio, reporter=once, **how)
        if access_log:
            log_requests()
        near = on_loopback(listener)
        if not near:
            tell(f"warning: anyone who reaches {host} can use this server, and read texts at / unless --no-page")
        where = f"[{host}]" if ":" in host else host
        tell(f"{compressor.name} at http://{where}:{listener.getsockname()[1]}/v1, before {address}")
        guard = Guard(hosts_of(allow_host or [], host, loopback=near))
        history = History(compressor, DecisionStore(store))
        made = Front(history, address, rules, most_bytes=max_body << 20, show=page, guard=guard)
        Server(made).serve_on(listener)
    finally:
        listener.close()
