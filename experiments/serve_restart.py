"""A long conversation before and after its server is killed: the time to the first token of its next turn.

    sp get smollm2-135m
    python experiments/serve_restart.py results --model smollm2-135m [--tokens 100000]

Appends to results/<machine>/serve_restart.jsonl. `sp serve --session-dir`, with the model as target and drafter, reads
a document of Python's own sources and answers questions about it, each as a further turn. Once the session is on disk,
the server is killed (SIGKILL) and started again on the same folder. The record has, of every turn, the seconds to the
first event of the stream and to the first token, and those of its stages: of turns before the kill, of the first one
after it, which finds the session on disk, and of the next, for which it is in memory again. The pages of the session's
file are dropped from the system's cache before the restart. Exit status 1 if the session was not restored.

Published small models have short windows, so the server gets a copy of the file with a longer one: its answers mean
nothing, its times are those of any model of this shape.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from agent_turns import write
from serve_load import serving
from serve_proxy import sources

from sp.bench.record import append, file_facts, make_record
from sp.gguf import GGUFFile, Tokenizer
from sp.hub import model_path

TOKENS = 8  # of an answer
WARM = 2  # turns before the kill
QUESTIONS = ("Which module opens files?", "Which module parses dates?", "Which one starts threads?",
             "Which one reads archives?", "Which one compares texts?", "Which one prints tables?")  # fmt: skip


class Talk:
    """A conversation about a document that sends all of its turns each time."""

    def __init__(self, document: str) -> None:
        self.messages = [{"role": "user", "content": document}, {"role": "assistant", "content": "I read it."}]

    def ask(self, url: str, question: str) -> dict[str, Any]:
        """Return the times of a turn."""
        self.messages.append({"role": "user", "content": question})
        body = {"model": "any", "messages": self.messages, "max_tokens": TOKENS, "stream": True}
        start, first_event, first_token, text, used = time.perf_counter(), None, None, "", dict[str, Any]()
        body["stream_options"] = {"include_usage": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=None, trust_env=False) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                now = time.perf_counter() - start
                first_event = now if first_event is None else first_event
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                used = event.get("usage") or used
                if piece := "".join(choice["delta"].get("content") or "" for choice in event["choices"]):
                    first_token = now if first_token is None else first_token
                    text += piece
        self.messages.append({"role": "assistant", "content": text.strip() or "I see."})
        own, cached = used["sp"], {name: used["sp"][name] for name in ("cached", "new", "read", "restored", "session")}
        stages = {stage["name"]: stage["ms"] / 1e3 for stage in own["stages"]}
        times = {"first_event_s": first_event, "first_token_s": first_token, "prompt_tokens": used["prompt_tokens"]}
        return {**times, **cached, "stages": stages}


def settled(folder: Path, before: float) -> Path:
    """Wait until the session's file was written after a moment, and no longer changes; return it."""
    while True:
        files = [path for path in folder.glob("*.sp-session") if path.stat().st_mtime > before]
        size = [path.stat().st_size for path in files]
        time.sleep(2)
        if files and size == [path.stat().st_size for path in files] and not list(folder.glob("*.part")):
            return files[0]


def uncached(path: Path) -> None:
    """Drop the pages of a file from the system's cache."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--model", required=True, help="a GGUF, or the name of one that was fetched")
    parser.add_argument("--tokens", type=int, default=100_000, help="of the document")
    parser.add_argument("--keep-ratio", default="0.05")
    parser.add_argument("--scorer", default="auto")
    parser.add_argument("--sparse", help="key blocks that the drafter reads")
    options = parser.parse_args()
    with GGUFFile.open(model_path(options.model)) as file:
        tokenizer = Tokenizer.from_gguf(file)
    text = sources(5 * options.tokens)
    ids = tokenizer.encode(text, ((0, len(text.encode())),)).ids[: options.tokens]
    talk, turns = Talk(tokenizer.decode(ids.tolist())), dict[str, Any]()
    with tempfile.TemporaryDirectory() as base:
        model, folder = Path(base, "model.gguf"), Path(base, "sessions")
        write(model_path(options.model), model, 2 * options.tokens)
        run = ["--target", str(model), "--drafter", str(model), "--device", "cpu", "--keep-ratio", options.keep_ratio]
        run += ["--scorer", options.scorer, "--session-dir", str(folder), "--session-memory", "16g"]
        run += ["--sparse", options.sparse] if options.sparse else []
        with serving(*run) as ((host, port), pid):
            for number in range(WARM):
                start = time.time()
                turns[f"live {number}"] = talk.ask(f"http://{host}:{port}", QUESTIONS[number])
                print(json.dumps(turns[f"live {number}"]), flush=True)
                path = settled(folder, start)
            os.kill(pid, signal.SIGKILL)
        nbytes = path.stat().st_size
        uncached(path)
        start = time.time()
        with serving(*run) as ((host, port), _):
            ready = time.time() - start
            for number, name in enumerate(("restored", "after")):
                turns[name] = talk.ask(f"http://{host}:{port}", QUESTIONS[WARM + number])
                print(json.dumps(turns[name]), flush=True)
    live = turns[f"live {WARM - 1}"]["first_token_s"]
    metrics = {
        "live_s": live, "restored_s": turns["restored"]["first_token_s"], "after_s": turns["after"]["first_token_s"],
        "first_event_s": turns["restored"]["first_event_s"], "more_s": turns["restored"]["first_token_s"] - live,
        "find_s": turns["restored"]["stages"]["find conversation"], "start_s": ready, "session_bytes": nbytes,
    }  # fmt: skip
    named = {"keep_ratio": options.keep_ratio, "scorer": options.scorer, "sparse": options.sparse}
    config = {**file_facts(model_path(options.model)), "tokens": len(ids), **named}
    append(make_record("serve_restart", config, metrics, [turns], (), device="cpu"), options.results)
    print(json.dumps({**config, **metrics}))
    if not turns["restored"]["restored"]:
        sys.exit("the session was not restored")


if __name__ == "__main__":
    main()
