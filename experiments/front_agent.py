"""An agent's transcript of 20 turns through a front, over three APIs: equal bytes, cached tokens, restored facts.

    python experiments/front_agent.py http://127.0.0.1:8091 "$SP_CACHE_DIR/natural/hg-config.txt" --api messages \\
        --mode default --scorer bm25 --record results

Each turn is a call and its result: the next part of a document, with a fact hidden in it. A recorder between the front
and the upstream server keeps each body as it was sent. Of 19 turns those are counted that repeat the messages of the
turn before byte for byte (without `newest`, but for the newest result, which was sent whole). Then each fact is asked
for in other words, behind the same 20 turns: with recall, without it, and of the transcript that was not shortened. A
fact counts as dropped if the last of the 20 requests does not have it, as restored if the question's request has it,
and as answered if the answer has what was asked for. The server must run one conversation at a time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from real.facts import FACTS
from serve_load import serving

from sp.bench.record import append, make_record
from sp.evals.summary import wilson
from sp.front.bodies import Api
from sp.front.json_text import locate
from sp.front.upstream import prompt_tokens

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
SYSTEM, TASK = "You are an agent that reads a file part by part.", "Read the file, and say what it is about."
LOOK: dict[str, Any] = {"name": "look", "description": "Read a part of the file."}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
MODES = {"off": {"off": True}, "default": {}, "newest": {"shorten_newest": True}}  # options of each request
ANSWER_TOKENS = 16


@dataclass(frozen=True)
class Turn:
    """A call of a tool, its result, and the fact in it with its question and answer."""

    result: str
    fact: str
    question: str
    answer: str


def transcript(document: Path, count: int, size: int) -> list[Turn]:
    """Cut a document into parts of whole lines, and hide a fact in each."""
    rng, turns, lines = random.Random(7), list[Turn](), iter(document.read_text().splitlines())
    for number in range(count):
        part = list[str]()
        while sum(map(len, part)) < size:
            part.append(next(lines))
        fact, question, _, answer = FACTS[number % len(FACTS)].fill(rng)
        part.insert(rng.randrange(1, len(part)), fact)
        turns.append(Turn("\n".join(part), fact, question, answer))
    return turns


def chat(turns: Sequence[Turn], question: str, tokens: int) -> dict[str, Any]:
    """Write the transcript for chat completions."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    for number, turn in enumerate(turns):
        function = {"name": "look", "arguments": json.dumps({"n": number})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": f"I look at part {number}.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": turn.result},
        ]
    if question:
        messages += [{"role": "assistant", "content": "It is a manual."}, {"role": "user", "content": question}]
    tools = [{"type": "function", "function": {**LOOK, "parameters": SCHEMA}}]
    return {"model": "any", "tools": tools, "max_tokens": tokens, "messages": messages}


def responses(turns: Sequence[Turn], question: str, tokens: int) -> dict[str, Any]:
    """Write the transcript for the Responses API."""

    def answer(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    # `type` may be left out, but llama.cpp refuses an assistant's message without it.
    items: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": TASK}]
    for number, turn in enumerate(turns):
        arguments = json.dumps({"n": number})
        items += [
            answer(f"I look at part {number}."),
            {"type": "function_call", "call_id": f"call_{number}", "name": "look", "arguments": arguments},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": turn.result},
        ]
    if question:
        items += [
            answer("It is a manual."),
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]},
        ]
    tools = [{"type": "function", **LOOK, "parameters": SCHEMA}]
    return {"model": "any", "instructions": SYSTEM, "tools": tools, "max_output_tokens": tokens, "input": items}


def messages(turns: Sequence[Turn], question: str, tokens: int) -> dict[str, Any]:
    """Write the transcript for Anthropic's Messages."""
    made: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]
    for number, turn in enumerate(turns):
        said = {"type": "text", "text": f"I look at part {number}."}
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "look", "input": {"n": number}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": turn.result}
        made += [{"role": "assistant", "content": [said, call]}, {"role": "user", "content": [result]}]
    if question:
        said = {"type": "text", "text": "It is a manual."}
        made += [
            {"role": "assistant", "content": [said]},
            {"role": "user", "content": [{"type": "text", "text": question}]},
        ]
    tools = [{**LOOK, "input_schema": SCHEMA}]
    return {"model": "any", "system": SYSTEM, "tools": tools, "max_tokens": tokens, "messages": made}


WRITERS = {"chat": chat, "responses": responses, "messages": messages}


@contextmanager
def recorder(upstream: str, bodies: list[bytes]) -> Iterator[str]:
    """Pass requests on to a server, and collect their bodies."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            headers = {"content-type": "application/json"}
            url = upstream + self.path
            reply = httpx.post(url, content=bodies[-1], headers=headers, timeout=None, trust_env=False)
            self.send_response(reply.status_code)
            self.send_header("Content-Type", reply.headers["content-type"])
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        def log_message(self, *_: Any) -> None:
            """Write no line for a request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def items_of(raw: bytes) -> list[str]:
    """Return the messages or items of a body, as they are spelled."""
    text, body = raw.decode(), json.loads(raw)
    name = "input" if "input" in body else "messages"
    members = locate(text, [(name, index) for index in range(len(body[name]))])
    return [text[member.start : member.end] for member in members.values()]


def play(
    api: Api, mode: str, upstream: str, turns: list[Turn], options: Sequence[str], *, questions: bool
) -> dict[str, Any]:
    """Send the transcript turn by turn, then with `questions` one for each fact; return what was counted."""
    bodies, usages = list[bytes](), list[tuple[int, int]]()

    def ask(url: str, until: int, question: str = "", **changes: Any) -> str:
        body = WRITERS[api](turns[:until], question, ANSWER_TOKENS if question else 8)
        body |= {"temperature": 0, "sp": {**MODES[mode], **changes}}
        reply = httpx.post(url + PATHS[api], json=body, timeout=None, trust_env=False)
        if reply.status_code != 200:
            raise SystemExit(f"{url}{PATHS[api]}: {reply.status_code} {reply.text[:600]}")
        usages.append(prompt_tokens(reply.json()["usage"]))
        return reply.text

    with (
        recorder(upstream, bodies) as address,
        serving("--upstream", address, "--threshold", "256", *options, name="front") as ((host, port), _),
    ):
        url, equal, previous = f"http://{host}:{port}", 0, list[str]()
        for number in range(1, len(turns) + 1):
            ask(url, number)
            items = items_of(bodies[-1])
            repeated = previous[:-1] if mode == "default" else previous
            equal += bool(previous) and items[: len(repeated)] == repeated
            previous = items
            print(f"{api} {mode} turn {number}: {usages[-1]}", file=sys.stderr, flush=True)
        prompt, cached = (sum(column) for column in zip(*usages, strict=True))
        metrics: dict[str, Any] = {
            "equal": equal, "turns": len(turns), "last_prompt": usages[-1][0], "new": prompt - cached,
            "cached_share": cached / prompt,
        }  # fmt: skip
        dropped = [turn for turn in turns if turn.fact.encode() not in bodies[-1]]
        arms: dict[str, tuple[list[Turn], dict[str, Any]]] = {
            "no_recall": (dropped, {"recall": False}),
            "recall": (dropped, {}),
        }
        if not questions:
            return metrics
        if mode != "default":
            arms = {"whole": (turns, {})} if mode == "off" else {}
        for arm, (asked, changes) in arms.items():
            # Another text for each arm: what was decided for a question is written again.
            answers = [
                ask(url, len(turns), f"{turn.question}{' Be brief.' * (arm == 'recall')}", **changes) for turn in asked
            ]
            present = sum(turn.fact.encode() in body for turn, body in zip(asked[::-1], bodies[::-1], strict=False))
            low, high = wilson(present, len(asked)) if asked else (0, 1)
            metrics[arm] = {"n": len(asked), "present": present, "low": low, "high": high}
            metrics[arm]["answered"] = sum(turn.answer in answer for turn, answer in zip(asked, answers, strict=True))
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("upstream", help="address of the server that reads the transcript, without /v1")
    parser.add_argument("document", type=Path)
    parser.add_argument("--server", default="llama.cpp", help="its name, for the record")
    parser.add_argument("--api", choices=list(WRITERS), nargs="+", default=["chat"])
    parser.add_argument("--mode", choices=list(MODES), nargs="+", default=["default"])
    parser.add_argument("--scorer", default="bm25")
    parser.add_argument("--keep-ratio", default="0.2")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--bytes", type=int, default=900, help="of a result")
    parser.add_argument("--no-questions", action="store_true", help="send the turns alone")
    parser.add_argument("--record", type=Path, help="folder of records")
    options = parser.parse_args()
    turns = transcript(options.document, options.turns, options.bytes)
    for api in options.api:
        for mode in options.mode:
            scoring = ("--scorer", options.scorer, "--keep-ratio", options.keep_ratio)
            metrics = play(api, mode, options.upstream, turns, scoring, questions=not options.no_questions)
            config = {"server": options.server, "api": api, "mode": mode, "scorer": options.scorer,
                      "keep_ratio": float(options.keep_ratio), "document": options.document.stem,
                      "bytes": options.bytes}  # fmt: skip
            print(json.dumps({**config, **metrics}), flush=True)
            if options.record:
                append(make_record("front_turns", config, metrics, [], [], device="cpu"), options.record)


if __name__ == "__main__":
    main()
