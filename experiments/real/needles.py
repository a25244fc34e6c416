"""Facts hidden in real prose, code and JSON lines of chosen lengths, as questions for ``sp eval natural --questions``.

``python needles.py FOLDER -o OUT`` reads the natural documents of FOLDER (``sp eval natural --fetch`` builds them into
``SP_CACHE_DIR/natural``) and the interpreter's standard library, and writes ``OUT/needles-6k.jsonl`` and the like, and
their documents below ``OUT/docs``; a document's suffix names its kind, and paths are relative, so OUT can be moved.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from facts import FACTS

from sp.errors import SpError
from sp.evals.natural.questions import known_documents
from sp.gguf.reader import GGUFFile
from sp.gguf.tokenizer import Tokenizer
from sp.hub.known import model_path
from sp.trace import write_atomic

PROSE = ("manual", "specification", "legal", "narrative")
NOT_CODE = ("site-packages", "dist-packages", "test", "tests", "idlelib", "encodings", "pydoc_data", "lib2to3")
"""Folders of the standard library that are tests, tables or other people's."""
EDGE = 0.03
"""No fact stands in the first and last such share of a document."""
MOST_BYTES = 8
"""A token, on average; a text of so many bytes a token is surely long enough."""


def main() -> None:
    """Write the sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of natural documents")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--tokens", default="6k,28k,60k,120k", help="lengths, in thousands of tokens")
    parser.add_argument("-n", help="examples a kind of text, one number or one a length (64 to 8k, 16 to 32k, else 8)")
    parser.add_argument("--own-words", action="store_true", help="ask in the facts' own words, for small targets")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokens count: GGUF file or known name")
    given = parser.parse_args()
    lengths = given.tokens.split(",")
    if not all(re.fullmatch(r"[1-9]\d*k", length) for length in lengths):
        parser.error("--tokens takes lengths such as 6k,28k")
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", given.n or "1"):
        parser.error("-n takes one number from 1 on, or one for each length")
    counts = [int(number) for number in given.n.split(",")] if given.n else [usual(length) for length in lengths]
    counts = counts * len(lengths) if len(counts) == 1 else counts
    if len(counts) != len(lengths):
        parser.error(f"-n has {len(counts)} numbers for {len(lengths)} lengths")
    if not any(given.folder.glob("*.txt")):
        parser.error(f"no documents in {given.folder}; get them: sp eval natural --fetch")
    try:
        tokenizer = Tokenizer.from_gguf(GGUFFile.open(model_path(given.model)))
    except SpError as error:
        parser.error(str(error))
    try:
        for length, count in zip(lengths, counts, strict=True):
            write_set(given.out, length, count, given.folder, tokenizer, given.own_words)
    except OSError as error:
        parser.error(f"{error.filename or given.out}: {error.strerror}; give another folder with -o, or fetch anew")


def usual(length: str) -> int:
    """How many examples a kind of text; long ones take long to read."""
    thousands = int(length[:-1])
    return 64 if thousands <= 8 else 16 if thousands <= 32 else 8


def write_set(out: Path, length: str, count: int, folder: Path, tokenizer: Tokenizer, own_words: bool) -> None:
    """Questions of one length, and their documents."""
    lines = []
    for kind, haystack in HAYSTACKS.items():
        for index in range(count):
            # Own seeds: an example is the same whatever else is made with it.
            rng = random.Random(f"needles/{kind}/{length}/{index}")
            fact = FACTS[index % len(FACTS)]
            said, asked, repeated, answer = fact.fill(rng)
            tokens = int(length[:-1]) * 1000
            text = cut(haystack(rng, folder, MOST_BYTES * tokens), tokens, tokenizer)
            document, start = HIDES[kind](text, said, rng)
            path = Path("docs", f"{length}-{index:02}.{kind}")
            raw = document.encode()
            begin = len(document[:start].encode())
            end = begin + len(said.encode())
            if raw.count(said.encode()) != 1 or raw[begin:end].decode() != said:
                raise SystemExit(f"{path}: the fact does not stand there once")
            write_atomic(out / path, raw)
            question = {
                "id": f"{kind}-{length}-{index:02}",
                "kind": fact.name,
                "document": path.as_posix(),
                "question": repeated if own_words else asked,
                "answers": [answer],
                "evidence": [[begin, end]],
                "quotes": [said],
            }
            lines.append(json.dumps(question, ensure_ascii=False) + "\n")
    write_atomic(out / f"needles-{length}.jsonl", "".join(lines).encode())
    print(f"{out / f'needles-{length}.jsonl'}: {len(lines)} questions", flush=True)


def cut(text: str, tokens: int, tokenizer: Tokenizer) -> str:
    """The first lines of a text, at most so many tokens of them."""
    size, raw = 0, text.encode()
    # Few texts have more than five bytes a token: encode that much first, and all only if it is too short.
    for most in (5 * tokens, len(raw)):
        part = raw[:most].decode(errors="ignore")
        spans = tokenizer.encode(part).spans
        if len(spans) > tokens:
            size = int(spans[tokens, 0])
            break
    else:
        raise SystemExit(f"a text of {len(raw):,} bytes has fewer than {tokens:,} tokens")
    return raw[:size].decode(errors="ignore").rpartition("\n")[0] + "\n"


def prose(rng: random.Random, folder: Path, size: int) -> str:
    """Manuals, specifications, legal texts and narratives in random order, the first from a random place on."""
    names = [name for name, document in known_documents().items() if document.kind in PROSE]
    return joined((folder / f"{name}.txt" for name in rng.sample(names, len(names))), rng, size)


def code(rng: random.Random, folder: Path, size: int) -> str:
    """Modules of the standard library in random order, likewise."""
    modules = standard_library()
    return joined(rng.sample(modules, len(modules)), rng, size)


def json_lines(rng: random.Random, folder: Path, size: int) -> str:
    """Log records with many similar fields, one a line."""
    lines, total = [], 0
    for number in range(rng.randrange(10_000, 90_000), 1_000_000):
        if total >= size:
            break
        note = rng.choice(NOTES).format(small=rng.randrange(2, 20), number=rng.randrange(100, 10_000))
        lines.append(json.dumps(log_record(rng, number, note)) + "\n")
        total += len(lines[-1])
    return "".join(lines)


@cache
def standard_library() -> list[Path]:
    """Its modules of 2 KB or more."""
    root = Path(sysconfig.get_path("stdlib"))
    found = sorted(root.rglob("*.py"))
    return [
        path for path in found if not set(path.relative_to(root).parts) & {*NOT_CODE} and path.stat().st_size > 2000
    ]


def joined(paths: Iterator[Path] | Sequence[Path], rng: random.Random, size: int) -> str:
    """Texts of files end to end, until there are so many bytes; the first begins at a line of its first half."""
    parts, total = [], 0
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8").strip("\n") + "\n\n"
        except UnicodeDecodeError:  # a few modules keep their old encoding
            continue
        if not parts:
            text = text[text.find("\n", rng.randrange(len(text) // 2)) + 1 :]
        parts.append(text)
        total += len(text)
        if total >= size:
            break
    return "".join(parts)


SERVICES = ("checkout", "billing", "search", "mailer", "ledger", "gateway", "thumbnailer", "scheduler", "inventory")
REGIONS = ("eu-north-1", "eu-west-2", "us-east-1", "ap-south-1", "sa-east-1")
LEVELS = ("debug", "info", "info", "info", "warning", "error")
NOTES = (
    "retried {small} times, then succeeded", "cache miss for tenant {number}",
    "slow query: {number} ms on shard {small}", "connection pool had {small} idle entries",
    "batch {number} was split into {small} parts", "token refreshed, valid for {number} s",
    "replica {small} lagged behind by {number} ms", "queue length fell below {number}",
    "upload of {number} KB resumed at part {small}", "no change",
)  # fmt: skip


def log_record(rng: random.Random, number: int, note: str) -> dict[str, object]:
    """A record of a log."""
    day = f"2026-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
    return {
        "id": number,
        "time": f"{day}T{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}Z",
        "level": rng.choice(LEVELS),
        "service": rng.choice(SERVICES),
        "region": rng.choice(REGIONS),
        "latency_ms": rng.randrange(2, 3000),
        "status": rng.choice((200, 200, 200, 204, 302, 404, 429, 500, 503)),
        "trace": f"{rng.getrandbits(48):012x}",
        "note": note,
    }


def line_starts(text: str, takes: Callable[[str, str], bool]) -> list[int]:
    """Where lines begin that a rule takes, by the line before and the line itself; not near the ends of the text."""
    starts, place, before = [], 0, ""
    for line in text.split("\n"):
        if EDGE * len(text) <= place <= (1 - EDGE) * len(text) and takes(before, line):
            starts.append(place)
        place, before = place + len(line) + 1, line
    return starts


def at_random_depth(starts: Sequence[int], text: str, rng: random.Random) -> int:
    """The place at or before a random depth, which spreads facts evenly however the places lie."""
    if not starts:
        raise SystemExit("the text has no line for a fact")
    return starts[max(0, bisect_right(starts, rng.uniform(EDGE, 1 - EDGE) * len(text)) - 1)]


def hide_in_prose(text: str, said: str, rng: random.Random) -> tuple[str, int]:
    """As a line of its own behind a sentence's end."""
    starts = line_starts(text, lambda before, line: before.rstrip().endswith((".", "!", "?")))
    start = at_random_depth(starts, text, rng)
    return text[:start] + said + "\n" + text[start:], start


def hide_in_code(text: str, said: str, rng: random.Random) -> tuple[str, int]:
    """As a comment above a function or class; seldom, above a line of a docstring that begins with such a word."""
    starts = line_starts(text, lambda before, line: line.lstrip().startswith(("def ", "class ")))
    start = at_random_depth(starts, text, rng)
    margin = text[start:][: len(text[start:]) - len(text[start:].lstrip(" "))] + "# "
    return text[:start] + margin + said + "\n" + text[start:], start + len(margin)


def hide_in_json_lines(text: str, said: str, rng: random.Random) -> tuple[str, int]:
    """As the note of one more record."""
    start = at_random_depth(line_starts(text, lambda before, line: True), text, rng)
    number = json.loads(text[start : text.index("\n", start)])["id"]
    record = json.dumps(log_record(rng, number, said), ensure_ascii=False) + "\n"
    return text[:start] + record + text[start:], start + record.index(said)


HAYSTACKS = {"prose": prose, "code": code, "jsonl": json_lines}
HIDES = {"prose": hide_in_prose, "code": hide_in_code, "jsonl": hide_in_json_lines}

if __name__ == "__main__":
    main()
