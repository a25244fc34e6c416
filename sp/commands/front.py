"""`sp front`: a proxy that shortens long texts on their way to another server."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from sp.commands.common import report_once
from sp.commands.serve import log
from sp.commands.shell.parser import opt
from sp.errors import ConfigError
from sp.session.device_memory import Size

NEEDED = ("starlette", "uvicorn", "httpx", "prometheus_client")


def missing_module() -> str | None:
    """Return the first module that a front needs and that is not installed; None if all are installed."""
    return next((name for name in NEEDED if find_spec(name) is None), None)


Drafter = Annotated[
    Path | None,
    opt(help="GGUF file or known name of the drafter; the best downloaded one if omitted."),
]
KeepRatio = Annotated[float, opt(least=1e-6, most=1, help="Share of a text's tokens to keep.")]
ScorerName = Annotated[str, opt(help="Scorer of tokens, as for sp run; bm25 compares words and runs no model.")]
SelectorName = Annotated[str, opt(help="Selector of tokens; segments keeps whole lines, sentences and JSON values.")]
Mark = Annotated[bool, opt(help="Write a mark such as [... 212 lines ...] in place of omitted text.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], opt(help="cuda, cpu, or auto: the GPU if there is one.")]


def front(
    upstream: Annotated[str, opt(help="Address of the upstream server, e.g. http://127.0.0.1:8080.")],
    drafter: Drafter = None,
    keep_ratio: KeepRatio = 0.2,
    scorer: ScorerName = "auto",
    selector: SelectorName = "segments",
    mark: Mark = True,
    threshold: Annotated[int, opt(least=0, help="Requests with fewer tokens pass unchanged.")] = 2048,
    max_prompt_tokens: Annotated[
        int | None, opt(least=64, help="Largest prompt that the upstream server accepts, in tokens.")
    ] = None,
    recall: Annotated[bool, opt(help="Restore omitted text that a later question needs.")] = True,
    shorten_newest: Annotated[
        bool, opt(help="Shorten tool results at once; without it, once the model has answered to them.")
    ] = False,
    store: Annotated[Size, opt(help="Memory for past selections, e.g. 256m.")] = Size(256 << 20),  # noqa: B008
    device: Device = "auto",
    vram: Annotated[Size | None, opt(help="GPU memory for the drafter, e.g. 4g; unlimited if omitted.")] = None,
    host: Annotated[str, opt(help="Address to listen on. There is no authentication.")] = "127.0.0.1",
    port: Annotated[int, opt(least=0, most=65535, help="Port to listen on.")] = 8100,
    allow_host: Annotated[
        list[str] | None, opt(help="Further host name by which clients address it (Host header); repeatable.")
    ] = None,
    max_body: Annotated[int, opt(least=1, help="Largest body of a request, in MiB.")] = 64,
    page: Annotated[bool, opt(help="Show texts of the last requests at /.")] = True,
    access_log: Annotated[bool, opt(help="Print a line on standard error for every request.")] = True,
) -> None:
    """Shorten long texts in requests to another server, as a proxy before it.

    Clients use its address instead of the upstream server's, with the same APIs: chat completions, Responses and
    Anthropic's Messages. It shortens documents before a question, and results of tools after an assistant's message.
    Each text is shortened once and is the same in every later request, so that the upstream server finds it in its
    cache. Everything else passes unchanged, including API keys.

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
    listener = listen(host, port)  # before the drafter is loaded, so that a port in use is an error at once
    try:
        options: dict[str, Any] = {
            "scorer": scorer, "selector": selector, "mark": mark, "device": device, "vram": vram,
        }  # fmt: skip
        compressor = Compressor.open(drafter, keep_ratio=keep_ratio, reporter=report_once, **options)
        if access_log:
            log_requests()
        local = on_loopback(listener)
        if not local:
            log(f"warning: anyone who can reach {host} can use this server, and read texts at / without --no-page")
        where = f"[{host}]" if ":" in host else host
        log(f"{compressor.name} at http://{where}:{listener.getsockname()[1]}/v1, upstream {address}")
        guard = Guard(hosts_of(allow_host or [], host, loopback=local))
        history = History(compressor, DecisionStore(store))
        proxy = Front(history, address, rules, most_bytes=max_body << 20, show=page, guard=guard)
        Server(proxy).serve_on(listener)
    finally:
        listener.close()
