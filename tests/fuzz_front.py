"""Random transcripts through a front: ``python tests/fuzz_front.py [COUNT]``. JSON parses, tags pair, ids stay.

A share runs as `front/test_front_history.py`.
"""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Any

from sp.front.history import History
from sp.front.rules import Rules
from sp.front.shorten import Compressor

WORDS = [
    "kettle",
    "ladder",
    "harbour",
    "engine",
    "violin",
    "garden",
    "bridge",
    "candle",
    "orchard",
    "tunnel",
    "17",
    "0.5",
    "größe",
    "数字",
    "naïve",
]
TAG = re.compile(r"<(/?)(\w+)>")


def value(rng: random.Random, depth: int) -> Any:
    """Something that JSON can say."""
    kind = rng.randrange(7 if depth else 5)
    if kind == 5:
        return [value(rng, depth - 1) for _ in range(rng.randrange(12))]
    if kind == 6:
        return {f"{rng.choice(WORDS)}{n}": value(rng, depth - 1) for n in range(rng.randrange(10))}
    return [rng.randrange(10**6), rng.random(), None, rng.random() < 0.5, sentence(rng)][kind]


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 14))) + rng.choice([".", "?", "\n", ' \\ "x" '])


def text(rng: random.Random) -> tuple[str, str]:
    """A text and its kind: json, tags or prose."""
    kind = rng.choice(["json", "tags", "prose"])
    if kind == "json":
        made: Any = {f"k{n}": value(rng, 4) for n in range(rng.randrange(2, 20))}
        return json.dumps(made, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1, 2])), kind
    lines = [sentence(rng).strip() for _ in range(rng.randrange(5, 80))]
    if kind == "tags":
        at = sorted(rng.sample(range(len(lines) + 1), 2))
        lines = [*lines[: at[0]], "<result>", *lines[at[0] : at[1]], "</result>", *lines[at[1] :]]
    return "\n".join(lines), kind


def check(compressor: Compressor, rng: random.Random, ratio: float) -> None:
    """One transcript; AssertionError for one that is broken."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": sentence(rng)}]
    kinds = dict[int, str]()
    for turn in range(rng.randrange(1, 5)):
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps(value(rng, 2))},
        }
        messages.append({"role": "assistant", "content": sentence(rng), "tool_calls": [call]})
        said, kind = text(rng)
        kinds[len(messages)] = kind
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": said})
    messages.append({"role": "assistant", "content": "So."})
    messages.append({"role": "user", "content": sentence(rng)})
    before = json.dumps(messages)
    done = History(compressor).shorten("chat", {"messages": messages}, Rules(ratio, 0))
    assert json.dumps(messages) == before
    sent = done.body["messages"]
    assert len(sent) == len(messages)
    for index, (old, new) in enumerate(zip(messages, sent, strict=True)):
        assert {**new, "content": 0} == {**old, "content": 0}
        if kinds.get(index) == "json" and not new["content"].startswith("[... "):
            json.loads(new["content"])
        if kinds.get(index) == "tags":
            opened = [closing for closing, _ in TAG.findall(new["content"])]
            assert opened in ([], ["", "/"]), new["content"]
        assert new["content"] or not old["content"]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    compressor = Compressor.open(scorer="bm25")
    for seed in range(count):
        check(compressor, random.Random(seed), random.Random(seed).choice([0.02, 0.1, 0.2, 0.5]))
        if seed % 500 == 499:
            print(f"{seed + 1:,} transcripts", flush=True)


if __name__ == "__main__":
    main()
