"""A stream whose prompt is read for minutes, through nginx, which closes a connection after 60 silent seconds.

    sp get smollm2-135m
    python experiments/agent_turns.py --write agent.gguf
    nice python experiments/serve_proxy.py results --model agent.gguf [--characters 150000]

Appends to results/<machine>/serve_proxy.jsonl: seconds to the first byte and to the end, the longest time without one,
tokens of the prompt and the version of nginx, which runs with its default timeouts. The prompt is made of Python's own
sources and is read whole on the CPU; a busy or slow machine takes longer, which is what is tried. Exit status 1 if the
answer did not come.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from typing import Any

import httpx
from serve_load import serving

from sp.bench.record import append, file_facts, make_record

CONFIG = """\
daemon off; pid {folder}/pid; error_log {folder}/errors;
events {{}}
http {{ access_log off; client_max_body_size 64m;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{behind}; proxy_http_version 1.1; }} }} }}
"""
TOKENS = 8  # of the answer


@contextmanager
def nginx(behind: str) -> Iterator[str]:
    """Address of an nginx in front of a server."""
    with create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "nginx.conf")
        config.write_text(CONFIG.format(folder=folder, port=port, behind=behind))
        proxy = subprocess.Popen(["nginx", "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            proxy.terminate()
            proxy.wait(30)


def sources(characters: int) -> str:
    """The beginning of Python's own sources."""
    text = ""
    for path in sorted(Path(json.__file__).parents[1].glob("*.py")):
        text += path.read_text("utf-8", errors="ignore")
        if len(text) >= characters:
            break
    return text[:characters]


def ask(url: str, text: str) -> dict[str, Any]:
    """Times of a streamed answer."""
    content = f"{text}\n\nWhich module opens files?"
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": TOKENS, "stream": True}
    body |= {"model": "any", "sp": {"compress": "off"}, "stream_options": {"include_usage": True}}
    start = last = time.perf_counter()
    silence, first, tokens, ended = 0.0, None, 0, False
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=None, trust_env=False) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            now = time.perf_counter()
            first = now - start if first is None else first
            silence, last = max(silence, now - last), now
            ended = line == "data: [DONE]" or ended
            if line.startswith("data: {"):
                tokens = (json.loads(line[6:]).get("usage") or {}).get("prompt_tokens", tokens)
    return {"first_s": first, "end_s": last - start, "silence_s": silence, "prompt_tokens": tokens, "ended": ended}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--model", required=True, help="a GGUF with a long window")
    parser.add_argument("--characters", type=int, default=150_000)
    options = parser.parse_args()
    version = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr.strip()
    model = ("--target", options.model, "--drafter", options.model, "--device", "cpu")
    with serving(*model) as ((host, port), _), nginx(f"{host}:{port}") as url:
        times = ask(url, sources(options.characters))
    print(json.dumps(times))
    config = {**file_facts(Path(options.model)), "characters": options.characters, "proxy": version}
    append(make_record("serve_proxy", config, times, [], (), device="cpu"), options.results)
    if not times["ended"]:
        sys.exit("the answer did not come")


if __name__ == "__main__":
    main()
