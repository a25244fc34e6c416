"""Haystack text: sentences of our own grammar, and the prose and source code that ship with Python.

``python bank.py OUT`` writes ``bank.json`` with one training and one held-out text a kind. ASCII only, no blank-only
lines, every text ends with a newline, so that `Bank` can cut it anywhere between words or lines.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pydoc_data.topics
import random
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizer import Encoder
from words import ADJECTIVES, FIRST_NAMES, LAST_NAMES, NOUNS, WORDS, split_words

VERBS, PLACES, TIMES, TOPICS, TEMPLATES = (WORDS[name] for name in ("VERBS", "PLACES", "TIMES", "TOPICS", "TEMPLATES"))
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
Ints = NDArray[np.int64]


def sentence(
    rng: random.Random,
    adjectives: Sequence[str],
    nouns: Sequence[str],
    towns: Sequence[str],
    first: Sequence[str] = FIRST_NAMES,
    last: Sequence[str] = LAST_NAMES,
) -> str:
    """One sentence of the grammar (about 10^9 distinct ones)."""

    def person() -> str:
        return rng.choice(first) + (" " + rng.choice(last) if rng.random() < 0.4 else "")

    numbers = {"year": str(rng.randrange(1400, 2030)), "small": str(rng.randrange(2, 60))}
    time = rng.choice(TIMES).format(**numbers)
    s = rng.choice(TEMPLATES).format(
        adj=rng.choice(adjectives), adj2=rng.choice(adjectives), noun=rng.choice(nouns), noun2=rng.choice(nouns),
        verb=rng.choice(VERBS), verb2=rng.choice(VERBS), name=person(), name2=person(), place=rng.choice(PLACES),
        time=time, time_c=time[0].upper() + time[1:], topic=rng.choice(TOPICS), town=rng.choice(towns),
        town2=rng.choice(towns), num=str(rng.randrange(60, 10 ** rng.choice((3, 4, 7)))), **numbers,
    )  # fmt: skip
    return s[0].upper() + s[1:]


def line(rng: random.Random, *words: Sequence[str]) -> str:
    """Two to eight sentences; `words` as `sentence` takes them."""
    return " ".join(sentence(rng, *words) for _ in range(rng.randrange(2, 9)))


def grammar(seed: int, characters: int, held_out: bool) -> str:
    rng = random.Random(seed)
    part = 1 if held_out else 0
    adjectives, nouns = split_words(ADJECTIVES)[part], split_words(NOUNS)[part]
    towns = [w.capitalize() + rng.choice(("ton", "ford", "by", "ville", " Bay")) for w in rng.sample(nouns, 20)]
    lines, size = [], 0
    while size < characters:
        lines.append(line(rng, adjectives, nouns, towns))
        size += len(lines[-1]) + 1
    return "\n".join(lines) + "\n"


def clean(text: str) -> str:
    """ASCII lines without trailing blanks; runs of blank lines become one."""
    lines = [line.rstrip().replace("\t", "    ") for line in text.splitlines()]
    text = "\n".join(line for line in lines if line.isascii())
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def prose() -> str:
    """Documentation that ships with Python (pydoc topics, licence, docstrings); one line a paragraph."""
    parts = list(pydoc_data.topics.topics.values())
    licence = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if licence.exists():
        parts.append(licence.read_text())
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in ("antigravity", "this", "idlelib", "turtledemo"):
            continue
        try:
            module = importlib.import_module(name)
        except Exception:  # a module of another platform
            continue
        parts.append(inspect.getdoc(module) or "")
        for _, member in inspect.getmembers(module, lambda m: inspect.isclass(m) or inspect.isfunction(m)):
            if getattr(member, "__module__", "") == name:
                parts.append(inspect.getdoc(member) or "")
    paragraphs = [" ".join(p.split()) for part in parts for p in clean(part).split("\n\n")]
    return "\n".join(dict.fromkeys(p for p in paragraphs if len(p) > 60)) + "\n"


def code(characters: int) -> str:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    random.Random(3).shuffle(files)
    out, size = [], 0
    for f in files:
        try:
            text = clean(f.read_text(encoding="utf-8"))[:60_000]
        except UnicodeDecodeError:
            continue
        out.append(text[: text.rfind("\n") + 1])
        size += len(out[-1])
        if size > characters:
            break
    return "".join(out)


def split(text: str, share: float = 0.12) -> tuple[str, str]:
    """Training and held-out part, cut at a line end."""
    at = text.rfind("\n", 0, int(len(text) * (1 - share))) + 1
    return text[:at], text[at:].lstrip("\n")


class Bank:
    """Pre-tokenised haystack text with its safe cuts."""

    def __init__(self, encoder: Encoder, texts: dict[str, str]) -> None:
        self.kinds: dict[str, tuple[Ints, Ints, Ints, Ints]] = {}
        vocab = {i: t for t, i in encoder.tokenizer.get_vocab().items()}
        ends_line = np.zeros(encoder.size, bool)
        starts_line = np.zeros(encoder.size, bool)
        starts_word = np.zeros(encoder.size, bool)
        ends_sentence = np.zeros(encoder.size, bool)
        for i, t in vocab.items():
            ends_line[i], starts_line[i] = t.endswith("Ċ"), t.startswith("Ċ")
            starts_word[i] = t.startswith("Ġ") and t[1:2].isalpha() and t[1:2].isascii()
            ends_sentence[i] = t.endswith(".")
        for kind, body in {**texts, "noise": NOISE * 400}.items():
            ids = np.array(encoder.tokenizer.encode(body, add_special_tokens=False).ids)
            a, b = ids[:-1], ids[1:]
            lines = 1 + np.flatnonzero(ends_line[a] & ~starts_line[b])
            words = 1 + np.flatnonzero(starts_word[b] & ~ends_line[a])
            stops = 1 + np.flatnonzero(starts_word[b] & ends_sentence[a])
            self.kinds[kind] = (ids, np.concatenate([[0], lines]), words, stops)

    @classmethod
    def load(cls, encoder: Encoder, path: Path | str, part: str) -> Bank:
        return cls(encoder, json.loads(Path(path).read_text())[part])


def main(out: Path) -> None:
    p, c = split(prose()), split(code(2_400_000))
    bank = {
        "train": {"grammar": grammar(1, 3_000_000, False), "prose": p[0], "code": c[0]},
        "held_out": {"grammar": grammar(2, 700_000, True), "prose": p[1], "code": c[1]},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "bank.json").write_text(json.dumps(bank))
    print({k: {n: len(t) for n, t in v.items()} for k, v in bank.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
