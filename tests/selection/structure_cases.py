"""Random transcripts of agents, and what must hold of what is kept of them, told by `json` and string methods alone."""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass
from typing import Any

WORDS = [
    *(
        "alpha",
        "beta",
        "gamma",
        "delta",
        "retry",
        "cache",
        "naïve",
        "token",
        "größe",
        "上海",
        "rate",
        "limit",
        "user_id",
    ),
    *("path/to/file", "e.g.", "ok"),
]
CODE = [
    *("def f(x, *, y=[1, 2]):", "return {", "};", "foo[0] += bar(1, [2]);", "", "    ", "}", "x = {'a': 1}", "<b>"),
    *("if a[i] == {}:", 'print(f"{x}")', "\tgoto end"),
]
MARKUP = {
    "user": ("<|im_start|>user\n", "<|im_end|>\n"),
    "assistant": ("<|im_start|>assistant\n", "<|im_end|>\n"),
    "tool": ("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"),
}


@dataclass(frozen=True)
class Said:
    """A message and what sort of text it is: json, ndjson, around, code, log, fenced, tags or prose.

    A `quoted` one stands in its prompt as the inside of a JSON string, as some chat templates write results of tools.
    """

    role: str
    text: str
    sort: str
    quoted: bool = False

    @property
    def written(self) -> str:
        return json.dumps(self.text, ensure_ascii=False)[1:-1] if self.quoted else self.text


def words(rng: random.Random, most: int = 8) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def scalar(rng: random.Random) -> Any:
    return rng.choice(
        [
            rng.randint(-5, 10**6),
            rng.random() * 1e3,
            True,
            None,
            "",
            words(rng),
            words(rng) + '"\\\n\t{[,:]} ```',
            "".join(rng.choices(string.printable, k=rng.randint(0, 30))),
        ]
    )


def value(rng: random.Random, depth: int) -> Any:
    sort = rng.random()
    if depth == 0 or sort < 0.35:
        return scalar(rng)
    count = rng.choice([0, 1, 2, 3, 5, 12])
    if sort < 0.65:
        return [value(rng, depth - 1) for _ in range(count)]
    return {words(rng, 2): value(rng, depth - 1) for _ in range(count)}


def container(rng: random.Random) -> Any:
    """An object, or an array, often of records as interfaces answer."""
    if rng.random() < 0.4:
        keys = [rng.choice(string.ascii_lowercase) * 3 + str(at) for at in range(rng.randint(1, 6))]
        return [{key: scalar(rng) for key in keys} for _ in range(rng.randint(1, 30))]
    made = value(rng, rng.randint(1, 5))
    return made if isinstance(made, dict | list) else {"value": made}


def dumps(rng: random.Random, what: Any) -> str:
    style: dict[str, Any] = rng.choice(
        [{}, {"indent": 2}, {"indent": 4}, {"indent": 1}, {"separators": (",", ":")}, {"separators": (" ,", " :\n")}]
    )
    return json.dumps(what, ensure_ascii=rng.random() < 0.5, **style)


def code(rng: random.Random) -> str:
    lines, depth = [], 0
    for _ in range(rng.randint(1, 60)):
        line = rng.choice([*CODE, "# " + words(rng), '"' + words(rng) + '",'])
        lines.append("    " * depth + line)
        depth = max(0, min(4, depth + rng.choice([-1, 0, 0, 1])))
    return rng.choice(["\n", "\n", "\r\n"]).join(lines)


def log(rng: random.Random) -> str:
    lines = []
    for at in range(rng.randint(1, 60)):
        tail = " " + json.dumps(container(rng)) if rng.random() < 0.2 else ""
        lines.append(f"2026-01-{at % 28 + 1:02d}T10:00:{at % 60:02d}Z [INFO] {words(rng)} took {at}ms{tail}")
    return "\n".join(lines)


def fenced(rng: random.Random) -> str:
    mark = rng.choice(["```", "~~~~"])
    inner = code(rng).splitlines() if rng.random() < 0.6 else dumps(rng, container(rng)).splitlines()
    return "\n".join([words(rng), "", mark + "py", *inner, mark, "", words(rng)])


def tags(rng: random.Random) -> str:
    """Files in tags, some in others."""
    parts = []
    for at in range(rng.randint(1, 5)):
        name = rng.choice(["file", "document", "a-b"])
        inner = rng.choice([code, log, fenced])(rng).replace("<b>", "b")
        parts += [f'<{name} path="{at}">', inner, f"</{name}>"]
    return "\n".join(["<results>", *parts, "</results>"])


def prose(rng: random.Random) -> str:
    paragraphs = []
    for _ in range(rng.randint(1, 6)):
        said = " ".join(words(rng, 14).capitalize() + rng.choice([".", "!", "?"]) for _ in range(rng.randint(1, 9)))
        paragraphs.append(said)
    return "\n\n".join(paragraphs)


def said(rng: random.Random) -> Said:
    sort = rng.choice(["json", "json", "ndjson", "around", "code", "log", "fenced", "tags", "prose"])
    if sort == "json":
        text = dumps(rng, container(rng))
    elif sort == "ndjson":
        text = "\n".join(json.dumps(container(rng)) for _ in range(rng.randint(1, 12)))
    elif sort == "around":
        text = f"{words(rng)}:" + rng.choice(" \n") + dumps(rng, container(rng)) + rng.choice(["", "\n"]) + words(rng)
    else:
        text = {"code": code, "log": log, "fenced": fenced, "tags": tags, "prose": prose}[sort](rng)
    text += rng.choice(["", "", "\n"])
    role = rng.choice(["tool", "tool", "tool", "user", "assistant"])
    return Said(role, text, sort, role == "tool" and rng.random() < 0.2)


def transcript(seed: int) -> list[Said]:
    rng = random.Random(seed)
    return [said(rng) for _ in range(rng.randint(1, 6))]


def is_part(kept: Any, whole: Any) -> bool:
    """Whether a value is another with members left out."""
    if isinstance(whole, dict):
        return isinstance(kept, dict) and all(key in whole and is_part(kept[key], whole[key]) for key in kept)
    if isinstance(whole, list):
        rest = iter(whole)
        return isinstance(kept, list) and all(any(is_part(one, other) for other in rest) for one in kept)
    return bool(kept == whole) and type(kept) is type(whole)


def json_faults(kept: str, whole: str) -> list[str]:
    """What is wrong of a kept JSON value; nothing if it parses and is a part of the whole one."""
    if not kept.strip():
        return []
    try:
        found = json.loads(kept)
    except ValueError as error:
        return [f"does not parse: {error}: {kept[:300]!r}"]
    return [] if is_part(found, json.loads(whole)) else [f"is no part: {kept[:300]!r}"]


def line_faults(kept: str, whole: str, loose: bool = False) -> list[str]:
    """Kept lines with ink that are no lines of the whole text, in its order; with `loose` JSON may be shorter."""
    rest = iter([line.strip() if loose else line.rstrip() for line in whole.split("\n")])
    faults = []
    for line in kept.split("\n"):
        one = line.strip() if loose else line.rstrip()
        if one and not any(one == other or (loose and shortened(one, other)) or is_cut(one, other) for other in rest):
            faults.append(f"no line of the text: {line[:200]!r}")
    return faults


def is_cut(kept: str, line: str) -> bool:
    """True for parts of a line, in their order, that may have over 1,024 tokens, of a byte at least."""
    rest = iter(line)
    return len(line.encode()) > 1024 and all(character in rest for character in kept)


def shortened(kept: str, whole: str) -> bool:
    """Whether a line is another one with members of the JSON value at its end left out."""
    at = next((at for at, (one, other) in enumerate(zip(kept, whole, strict=False)) if one != other), 0)
    for start in range(at, -1, -1):
        if whole[start] in "[{" and kept[start : start + 1] == whole[start]:
            try:
                full = json.loads(whole[start:])
            except ValueError:
                continue
            return not json_faults(kept[start:], whole[start:]) and isinstance(full, dict | list)
    return False


def balance_faults(kept: str) -> list[str]:
    """Fences and tags with a line each that do not pair up."""
    stack: list[str] = []
    for line in kept.split("\n"):
        mark = line.strip()
        fence = next((sign for sign in ("```", "~~~~") if mark.startswith(sign)), None)
        if stack and stack[-1] in ("```", "~~~~"):
            if mark == stack[-1]:
                stack.pop()
        elif fence:
            stack.append(fence)
        elif mark.startswith("</") and mark.endswith(">"):
            if not stack or stack.pop() != mark[2:-1]:
                return [f"closes nothing: {mark}"]
        elif mark.startswith("<") and mark.endswith(">"):
            stack.append(mark[1:-1].split()[0])
    return [f"never closed: {stack}"] if stack else []


def faults(sort: str, kept: str, whole: str) -> list[str]:
    """What is wrong of what is kept of a message."""
    if sort == "json":
        return json_faults(kept, whole)
    if sort == "ndjson":
        lines = [line for line in whole.split("\n") if line]
        found = []
        rest = iter(lines)
        for line in filter(str.strip, kept.split("\n")):
            if not any(not json_faults(line, other) for other in rest):
                found.append(f"no part of a line: {line[:300]!r}")
        return found
    if sort == "around":
        start = min((kept + "[{").find("["), (kept + "[{").find("{"))
        end = max(kept.rfind("]"), kept.rfind("}")) + 1
        first = min((whole + "[{").find("["), (whole + "[{").find("{"))
        last = max(whole.rfind("]"), whole.rfind("}")) + 1
        return json_faults(kept[start:end], whole[first:last])
    if sort == "code":
        return line_faults(kept, whole)
    if sort == "log":
        return line_faults(kept, whole, loose=True)
    if sort in ("fenced", "tags"):
        return balance_faults(kept)
    return []
