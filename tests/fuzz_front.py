"""Random transcripts of three APIs through a front: ``python tests/fuzz_front.py [COUNT]``.

JSON parses, tags pair, ids and blocks that are no texts stay, and each turn repeats the one before.

A share runs as `front/test_front_history.py`.
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from typing import Any

from sp.errors import PromptError
from sp.front.history import OPENING, History
from sp.front.json_text import with_strings
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
MARK = {"cache_control": {"type": "ephemeral"}}
IMAGE = {"type": "image", "source": {"type": "base64", "data": "x" * 400}}
UNKNOWN = {"type": "unknown", "text": "x " * 400}


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


Path = tuple[str | int, ...]


@dataclass
class Made:
    """A random transcript. `texts`: what may be shortened, by path, with its kind: json, tags, prose, user or said."""

    api: str
    items: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[Path, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Field of the body that has the items."""
        return "input" if self.api == "responses" else "messages"

    @property
    def body(self) -> dict[str, Any]:
        rest: dict[str, Any] = {"system": "Be brief." * 60, "instructions": "Be brief." * 60, "n": 1e300}
        return {**rest, self.name: self.items}

    def add(self, rng: random.Random, item: dict[str, Any], key: str, *parts: tuple[str, str, dict[str, Any]]) -> None:
        """Add an item with texts below a key: (text, kind, other fields of the block); no kind for those that stay."""
        path: Path = (self.name, len(self.items), key)
        if len(parts) == 1 and not parts[0][2] and rng.random() < 0.5:
            item[key], parts = parts[0][0], parts[:1]
            self.texts |= {path: parts[0][1]} if parts[0][1] else {}
        else:
            item[key] = self.blocks(
                rng, path, parts, "output_text" if item.get("role") == "assistant" else "input_text"
            )
        self.items.append(item)

    def blocks(self, rng: random.Random, path: Path, parts: Any, kind: str) -> list[dict[str, Any]]:
        """Blocks of texts, with others among them."""
        made = list[dict[str, Any]]()
        for said, name, more in parts:
            if rng.random() < 0.2:
                made.append(rng.choice([IMAGE, UNKNOWN]))
            self.texts |= {(*path, len(made), "text"): name} if name and "cache_control" not in more else {}
            made.append({"type": kind if self.api == "responses" else "text", "text": said, **more})
        return made

    def call(self, rng: random.Random, numbers: range) -> None:
        """Add an assistant's words and calls."""
        said, arguments = sentence(rng) * rng.randrange(1, 9), [json.dumps(value(rng, 2)) for _ in numbers]
        if self.api == "responses":
            self.items.append({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x" * 400})
            self.add(rng, {"type": "message", "role": "assistant"}, "content", (said, "said", {}))
            self.items += [
                {"type": "function_call", "call_id": f"c{n}", "arguments": a}
                for n, a in zip(numbers, arguments, strict=True)
            ]
        elif self.api == "chat":
            calls = [
                {"id": f"c{n}", "function": {"name": "look", "arguments": a}}
                for n, a in zip(numbers, arguments, strict=True)
            ]
            self.add(rng, {"role": "assistant", "tool_calls": calls}, "content", (said, "said", {}))
        else:
            self.add(rng, {"role": "assistant"}, "content", (said, "said", {"citations": None}))
            content = self.items[-1]["content"]
            content += [
                {"type": "tool_use", "id": f"c{n}", "name": "look", "input": json.loads(a)}
                for n, a in zip(numbers, arguments, strict=True)
            ]
            content.append({"type": "thinking", "thinking": said * 9, "signature": "x" * 400})
            content.append({"type": "redacted_thinking", "data": "x" * 400})

    def results(self, rng: random.Random, numbers: range) -> None:
        """Add the results of calls."""
        if self.api == "messages":
            self.items.append({"role": "user", "content": []})
        for number in numbers:
            parts = [(*text(rng), rng.choice([{}, {}, {}, MARK])) for _ in range(rng.choice([1, 1, 1, 2]))]
            if self.api == "responses":
                kind = rng.choice(["function", "custom_tool"])
                self.add(rng, {"type": f"{kind}_call_output", "call_id": f"c{number}"}, "output", *parts)
            elif self.api == "chat":
                self.add(rng, {"role": "tool", "tool_call_id": f"c{number}"}, "content", *parts)
            else:
                content = self.items[-1]["content"]
                path: Path = (self.name, len(self.items) - 1, "content", len(content), "content")
                content.append(
                    {"type": "tool_result", "tool_use_id": f"c{number}", "content": self.blocks(rng, path, parts, "")}
                )


def without(api: str, body: Any, texts: Collection[Path]) -> Any:
    """A body without what a front may change: restored passages, and the texts at some paths."""
    body = copy.deepcopy(body)
    for item in body["input" if api == "responses" else "messages"]:
        if isinstance(item.get("content"), list):
            item["content"] = [part for part in item["content"] if not part.get("text", "").startswith(OPENING)]
    for path in texts:
        reduce(getitem, path[:-1], body)[path[-1]] = 0
    return body


def check(compressor: Compressor, rng: random.Random, ratio: float) -> None:
    """One transcript; AssertionError for one that is broken."""
    made, number = Made(rng.choice(["chat", "responses", "messages"])), 0
    rules = Rules(ratio, 0, rng.choice([None, None, 3000]), shorten_newest=rng.random() < 0.3)
    history, previous = History(compressor), list[Any]()
    for _ in range(rng.randrange(1, 4)):
        newest = None
        made.add(rng, {"role": "user"}, "content", (sentence(rng), "user", rng.choice([{}, MARK])))
        for _ in range(rng.randrange(3)):
            numbers = range(number, number := number + rng.randrange(1, 3))
            made.call(rng, numbers)
            newest = len(made.items)
            made.results(rng, numbers)
        before = json.dumps(made.body)
        try:
            outcome = history.shorten(made.api, made.body, rules)
        except PromptError:
            assert rules.max_prompt_tokens
            return
        assert json.dumps(made.body) == before
        sent = json.loads(with_strings(before, outcome.texts, outcome.blocks))
        assert sent == outcome.body
        mutable = {path for path, kind in made.texts.items() if kind != "said" or rules.max_prompt_tokens}
        plain = without(made.api, sent, ())
        assert without(made.api, plain, mutable) == without(made.api, made.body, mutable)
        for path, kind in made.texts.items():
            check_text(reduce(getitem, path, made.body), reduce(getitem, path, plain), kind)
        items = sent[made.name]
        if not rules.max_prompt_tokens:  # where a transcript no longer fits, more of it is shortened
            assert items[: len(previous)] == previous
        previous = items if rules.shorten_newest else items[:newest]
        made.add(rng, {"role": "assistant"}, "content", ("So.", "", {}))


def check_text(old: str, new: str, kind: str) -> None:
    """JSON parses, tags pair, questions stay."""
    if kind == "json" and not new.startswith("[... "):
        json.loads(new)
    if kind == "tags":
        opened = [closing for closing, _ in TAG.findall(new)]
        assert opened in ([], ["", "/"]), new
    if kind == "user":
        assert new == old or (new.startswith(OPENING) and new.endswith(old))
    assert new or not old


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    compressor = Compressor.open(scorer="bm25")
    for seed in range(count):
        check(compressor, random.Random(seed), random.Random(seed).choice([0.02, 0.1, 0.2, 0.5]))
        if seed % 500 == 499:
            print(f"{seed + 1:,} transcripts", flush=True)


if __name__ == "__main__":
    main()
