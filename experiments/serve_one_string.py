"""The commonest request: a document and a question in one string; its time to first token compressed and in full.

    python experiments/serve_one_string.py results [--task 'fact[form=0 facts=1]'] [--tokens 8192] [--requests 5]

Appends to results/<machine>/serve_one_string.jsonl. Starts `sp serve` with its defaults and the embedded pair, and asks
over its socket, each example once as it is and once with "sp": {"off": true}, in turn; sessions are off, as each
request is a new one. What was taken for the question, and whether the answers are right, stand in the record.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from sp.bench.record import append, make_record
from sp.evals import TASKS
from sp.evals.matches import MATCHES
from sp.kernels.device import pick_device
from sp.named import read_strategy
from sp.session import embedded, load


def ask(url: str, text: str, more: dict[str, Any]) -> dict[str, Any]:
    """One streamed request: seconds to the first text, the answer and the usage."""
    body = {"model": "any", "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 16,
            "stream_options": {"include_usage": True}, "sp": {"session": False} | more}  # fmt: skip
    start, first, answer, usage = time.perf_counter(), 0.0, "", {}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            said = "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", []))
            first = first or (time.perf_counter() - start if said else 0.0)
            answer, usage = answer + said, chunk.get("usage") or usage
    return {"ttft_s": first, "answer": answer, "prompt_tokens": usage["prompt_tokens"],
            "kept_tokens": usage["sp"]["kept_tokens"], "question": usage["sp"]["question"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--task", default="fact[form=0 facts=1]")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--joined", default="\n\n", help="what stands between document and question")
    given = parser.parse_args()
    device, tokenizer = pick_device(given.device), load(embedded("target"), device="cpu").tokenizer
    task = read_strategy(given.task, TASKS, "--task")
    examples = [task.example(n, given.tokens, lambda text: len(tokenizer.encode(text))) for n in range(given.requests)]
    command = [sys.executable, "-m", "sp.cli", "serve", "--port", "0", "--no-access-log", "--device", device]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    samples = []
    try:
        assert server.stderr is not None
        said = ""
        while not (found := re.search("http://[0-9.]+:[0-9]+", said)):
            said = server.stderr.readline()
            assert said, "the server did not start"
        ask(found[0], "Who is there?", {})
        for example in examples:
            text = f"{example.document}{given.joined}{example.question}"
            for name, more in (("compressed", {}), ("off", {"off": True})):
                told = ask(found[0], text, more)
                right = MATCHES[example.match](told["answer"], example.answers) == 1
                samples.append({"example": example.id, "mode": name, "right": right, **told})
    finally:
        server.terminate()
        server.wait(60)
    pairs = list(zip(samples[::2], samples[1::2], strict=True))
    metrics = {
        "ttft_s_compressed": statistics.median(each["ttft_s"] for each, _ in pairs),
        "ttft_s_off": statistics.median(each["ttft_s"] for _, each in pairs),
        "ratio": statistics.median(full["ttft_s"] / each["ttft_s"] for each, full in pairs),
        "same_answers": sum(each["answer"] == full["answer"] for each, full in pairs),
        "right_compressed": sum(each["right"] for each, _ in pairs),
        "right_off": sum(each["right"] for _, each in pairs),
    }
    config = {name: getattr(given, name) for name in ("task", "tokens", "requests", "joined")}
    append(make_record("serve_one_string", config, metrics, samples, (), device=device), given.results)
    print(json.dumps({**config, **metrics}))
    for sample in samples:
        print(json.dumps({name: value for name, value in sample.items() if name != "example"}))


if __name__ == "__main__":
    main()
