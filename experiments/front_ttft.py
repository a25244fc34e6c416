"""Time to the first token of a server, asked directly and through a front.

    python experiments/real/needles.py "$SP_CACHE_DIR/natural" -o needles/own-words --tokens 6k -n 12 --own-words
    sp front --upstream http://127.0.0.1:8091 --keep-ratio 0.2 --port 8100 --threshold 0 &
    sp front --upstream http://127.0.0.1:8091 --keep-ratio 0.2 --port 8101 --threshold 0 --scorer bm25 &
    python experiments/front_ttft.py needles/own-words/needles-6k.jsonl --record results \\
        direct=http://127.0.0.1:8091 auto=http://127.0.0.1:8100 bm25=http://127.0.0.1:8101

The servers take turns with each question, so that what else a machine does is spread alike. A question is a message of
its document, a blank line and itself; answers are greedy, and right if they hold what the question's record asks for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from sp.bench.record import append, make_record
from sp.evals.matches import score_answer
from sp.evals.natural.questions import NaturalQuestion, own_questions
from sp.evals.summary import wilson

MOST = 32  # tokens of an answer


def asked(url: str, text: str) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """Seconds until each piece of an answer, the piece, and what the headers say."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": MOST, "temperature": 0, "stream": True}
    body |= {"cache_prompt": False}  # which llama-server alone knows: each prompt is read from its beginning
    start = time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=None, trust_env=False) as reply:
        reply.raise_for_status()
        told = {name: value for name, value in reply.headers.items() if name.startswith("x-sp-")}
        for line in reply.iter_lines():
            if line.startswith("data:") and "[DONE]" not in line:
                choices = json.loads(line[5:]).get("choices") or [{}]
                if said := choices[0].get("delta", {}).get("content"):
                    yield time.perf_counter() - start, said, told


def answer(url: str, question: NaturalQuestion) -> dict[str, Any]:
    """One question to one server."""
    pieces = list(asked(url, f"{question.text}\n\n{question.question}"))
    said = "".join(piece for _, piece, _ in pieces)
    right = score_answer(said, question.answers, question.match) == 1
    return {"ttft_s": pieces[0][0], "right": int(right), "said": said, **pieces[0][2]}


def metrics_of(rows: list[dict[str, Any]], direct: list[dict[str, Any]], *, times: bool) -> dict[str, Any]:
    """Right answers of a server with a 95 % interval, those also right directly, and its times where they count."""
    right = sum(row["right"] for row in rows)
    low, high = wilson(right, len(rows))
    both = sum(a["right"] and b["right"] for a, b in zip(direct, rows, strict=True))
    metrics = {"right": right, "n": len(rows), "low": low, "high": high, "right_in_both": both}
    if times:
        ratio = median(a["ttft_s"] / b["ttft_s"] for a, b in zip(direct, rows, strict=True))
        metrics |= {"ttft_s": median(row["ttft_s"] for row in rows), "times_faster": ratio}
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("servers", nargs="+", help="NAME=ADDRESS, the first is what the others are compared with")
    parser.add_argument("-n", type=int, help="questions, spread over the file")
    parser.add_argument("--model", default="smollm2-135m", help="the servers' model, for the record")
    parser.add_argument("--record", type=Path, help="folder of records")
    parser.add_argument("--answers", action="store_true", help="count answers only: other work shares the machine")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the fronts' drafter runs")
    options = parser.parse_args()
    servers = dict(one.split("=", 1) for one in options.servers)
    questions = own_questions(options.questions)
    questions = questions[:: max(len(questions) // options.n, 1)][: options.n] if options.n else questions
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in servers}
    for number, question in enumerate(questions, 1):
        for name, url in servers.items():
            row = answer(url, question)
            rows[name].append(row)
            print(f"{number} {name} {row['ttft_s']:.2f} s {row['right']} {row['said'][:60]!r}", flush=True)
    direct = rows[next(iter(servers))]
    for name, server_rows in rows.items():
        metrics = metrics_of(server_rows, direct, times=not options.answers)
        print(name, *(f"{key} {value:.4g}" for key, value in metrics.items()))
        if options.record:
            config = {"set": options.questions.stem, "model": options.model, "server": name, "most": MOST}
            samples = [row["right" if options.answers else "ttft_s"] for row in server_rows]
            bench = "front_answers" if options.answers else "front"
            append(make_record(bench, config, metrics, samples, [], device=options.device), options.record)


if __name__ == "__main__":
    main()
