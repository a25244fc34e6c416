"""A coding agent's transcript: how much of each prompt the server knew already, and the time to the first token.

    sp get smollm2-135m
    python experiments/agent_turns.py --write agent.gguf            # SmolLM2 with tools and a window of 65,536 tokens
    python experiments/agent_turns.py results --model agent.gguf [--peer http://127.0.0.1:8080] [--turns 15]

Appends to results/<machine>/agent_turns.jsonl and prints a table by turn. The transcript is made of Python's own
sources, the same wherever Python is: a system message, a task, and of each turn a call and its result of 2,000 to 4,000
tokens. `sp serve`, with the model as target and drafter, is asked as Claude Code asks, at /v1/messages with a line
`x-anthropic-billing-header` that differs each time, once compressing, without notice of its marks, and once with
`off`; and as `--peer` any server of OpenAI's API on the same file, such as llama.cpp's, at /v1/chat/completions without
that line. Each turn is sent twice: the share that was reused is of the second request, the time of the first.

Published small models know no tools and have short windows, so `--write` makes a copy with a chat template that shows
them and with a longer window. What it says beyond the window that it was trained for means nothing; what it costs does
not change.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from serve_load import serving

from sp.bench.record import append, file_facts, make_record
from sp.gguf import GGUFFile, GGUFWriter, Tokenizer
from sp.kernels.device import pick_device

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
{{- 'To call one, write:\\n<tool_call>\\n{"name": <its name>, "arguments": <an object>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
WINDOW = 65536
TOKENS = 8  # of an answer, of which the first is timed
MESSAGES = "/v1/messages"
SAID = re.compile(r'"(?:text|content|partial_json|arguments|reasoning_content)": ?"[^"]')
SOURCES = ("argparse", "ast", "asyncio/events", "configparser", "csv", "dataclasses", "difflib", "enum", "inspect",
           "json/decoder", "mailbox", "pdb", "pickle", "statistics", "subprocess", "tarfile", "threading")  # fmt: skip
SYSTEM = "You are an agent that answers questions about a program by reading its files. Look before you say anything. "
TASK = "Which of these modules opens files, and where does it close them again when something goes wrong?"
READ = {
    "name": "read_file",
    "description": "Read lines of a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def write(model: str | Path, out: Path, window: int = WINDOW) -> None:
    """A copy of a model that knows tools and takes long prompts."""
    with GGUFFile.open(model) as file:
        length = f"{file.architecture}.context_length"
        writer = GGUFWriter(out, {**file.metadata, length: window, "tokenizer.chat_template": TEMPLATE})
        for name in file.tensors:
            weight = file.weight(name)
            writer.add(name, weight.shape, weight.format, weight.data.reshape(-1))
        writer.write()


@dataclass(frozen=True)
class Turn:
    """What an agent did before it asks: a call and its result; nothing before the first request."""

    path: str
    result: str


def transcript(tokenizer: Tokenizer, turns: int, sizes: tuple[int, int]) -> list[Turn]:
    """Sources of so many tokens each, in an order of their own."""
    rng, found = random.Random(7), list[Turn]()
    library = Path(json.__file__).parents[1]
    for number in range(turns):
        name = f"{SOURCES[number % len(SOURCES)]}.py"
        text = (library / name).read_text(encoding="utf-8")
        ids = tokenizer.encode(text, ((0, len(text.encode())),)).ids[: rng.randint(*sizes)]
        found.append(Turn(name, tokenizer.decode(ids.tolist())))
    return found


Speak = Callable[[Sequence[Turn], int, dict[str, Any]], tuple[str, dict[str, Any]]]


def claude(turns: Sequence[Turn], stamp: int, more: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path and body of a request as Claude Code sends it."""
    header = f"x-anthropic-billing-header: cc_version=2.1.332; cch={stamp:05x};"
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]
    for number, turn in enumerate(turns):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "read_file", "input": {"path": turn.path}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": turn.result}
        said = {"type": "text", "text": f"I read {turn.path}."}
        messages += [{"role": "assistant", "content": [said, call]}, {"role": "user", "content": [result]}]
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    system = [{"type": "text", "text": header}, {"type": "text", "text": SYSTEM * 40}]
    body = {"model": "any", "system": system, "messages": messages, "tools": [READ], "max_tokens": TOKENS}
    return MESSAGES, {**body, "stream": True, **more}


def openai(turns: Sequence[Turn], stamp: int, more: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The same for servers of OpenAI's API."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM * 40}, {"role": "user", "content": TASK}]
    for number, turn in enumerate(turns):
        function = {"name": "read_file", "arguments": json.dumps({"path": turn.path})}
        call = {"type": "function", "id": f"toolu_{number}", "function": function}
        messages.append({"role": "assistant", "content": f"I read {turn.path}.", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"toolu_{number}", "content": turn.result})
    function = {"name": READ["name"], "description": READ["description"], "parameters": READ["input_schema"]}
    body = {"model": "any", "messages": messages, "tools": [{"type": "function", "function": function}]}
    return "/v1/chat/completions", {**body, "max_tokens": TOKENS, "stream": True, **more}


def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a request says of its tokens, and the milliseconds to its first piece of text, or to its end without any."""
    start, first, used = time.perf_counter(), None, dict[str, Any]()
    with httpx.stream("POST", url + path, json=body, timeout=None) as reply:
        if reply.status_code != 200:
            raise SystemExit(f"{url}{path}: {reply.status_code} {reply.read().decode()[:600]}")
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if first is None and SAID.search(line):
                first = time.perf_counter()
            used = event.get("usage") or used
    spent = 1e3 * ((first or time.perf_counter()) - start)
    if path == MESSAGES:
        cached = used["cache_read_input_tokens"]
        return {"tokens": used["input_tokens"] + cached, "cached": cached, "ttft_ms": spent}
    cached = used["prompt_tokens_details"]["cached_tokens"]
    return {"tokens": used["prompt_tokens"], "cached": cached, "ttft_ms": spent}


def play(url: str, speak: Speak, turns: Sequence[Turn], more: dict[str, Any]) -> list[dict[str, Any]]:
    """Each request of the transcript, and the same again."""
    found = []
    for number in range(len(turns) + 1):
        first, again = (ask(url, *speak(turns[:number], 2 * number + time_, more)) for time_ in range(2))
        found.append({"turn": number, "tokens": first["tokens"], "cached": first["cached"], "ttft_ms": first["ttft_ms"],
                      "again_cached": again["cached"], "again_ttft_ms": again["ttft_ms"]})  # fmt: skip
        print(json.dumps(found[-1]), file=sys.stderr)
    return found


def table(arms: dict[str, list[dict[str, Any]]]) -> str:
    """Of each turn its tokens, and by arm the share that the second request reused, and the first one's time."""
    rows = [
        f"| turn | tokens | {' | '.join(f'{name}: reused, TTFT' for name in arms)} |",
        "|--:|--:" + "|--:" * len(arms) + "|",
    ]
    for turn in zip(*arms.values(), strict=True):
        told = (f"{100 * each['again_cached'] / each['tokens']:.1f} %, {each['ttft_ms'] / 1e3:.2f} s" for each in turn)
        rows.append(f"| {turn[0]['turn']} | {turn[0]['tokens']:,} | {' | '.join(told)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the copy of --model, and do nothing else")
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF whose chat template shows tools")
    parser.add_argument("--peer", metavar="URL", help="of another server of the same file, without /v1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--sizes", default="2000,4000", help="the fewest and the most tokens of a result")
    parser.add_argument("--keep-ratio", default="0.2")
    given = parser.parse_args()
    if given.write:
        write(given.model, given.write)
        return
    if given.results is None:
        parser.error("name a folder for records, or a file to --write")
    if given.peer:
        try:
            httpx.get(f"{given.peer}/v1/models", timeout=10).raise_for_status()
        except httpx.HTTPError as error:
            parser.error(f"--peer {given.peer} does not answer at /v1/models ({error}); start it first")
    least, most = (int(each) for each in given.sizes.split(","))
    with GGUFFile.open(given.model) as file:
        turns = transcript(Tokenizer.from_gguf(file), given.turns, (least, most))
    device, arms = pick_device(given.device), {}
    own = ("--target", given.model, "--drafter", given.model, "--device", device, "--keep-ratio", given.keep_ratio)
    modes: dict[str, dict[str, Any]] = {"compressed": {"compress": "always", "marked": False}, "off": {"off": True}}
    for name, options in modes.items():
        with serving(*own) as (address, _):
            arms[name] = play("http://{}:{}".format(*address), claude, turns, {"sp": options})
    if given.peer:
        arms["peer"] = play(given.peer, openai, turns, {"stream_options": {"include_usage": True}})
    facts = {**file_facts(Path(given.model)), "turns": given.turns, "sizes": [least, most]}
    for name, found in arms.items():
        config = {**facts, "arm": name, **({"keep_ratio": float(given.keep_ratio)} if name == "compressed" else {})}
        metrics = {
            "least_reused": min(each["again_cached"] / each["tokens"] for each in found),
            "ttft_ms_last": found[-1]["ttft_ms"],
            "ttft_ms_sum": sum(each["ttft_ms"] for each in found),
        }
        append(make_record("agent_turns", config, metrics, found, (), device=device), given.results)
        print(json.dumps({"arm": name, **metrics}))
    print(table(arms))


if __name__ == "__main__":
    main()
