"""Real documents to learn from: windows of Debian's documentation packages and of Python's own modules, tokenised.

    python corpus.py FOLDER DRAFTER.gguf -o data.npz

`FOLDER` holds `corpus.jsonl`, a JSON object a line with `pkg`, `name` and `text` (see README.md for the packages). What
is written holds token ids alone, in the drafter's vocabulary: documents inside the drafter's chat markup, the evidence
in them, and questions made by deletion and by synonyms.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import sysconfig
from pathlib import Path

import numpy as np
from wordnet import WordNet

from sp.prompt import Prompt
from sp.session.loaded import load

SENTENCE = re.compile(r"(?<=[.!?;:])\s+(?=[A-Z\"'(`])|\n\s*\n|\n(?=\s*[-*•\d])")
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_'-]*")
STOP = set(
    """a an the this that these those it its is are was were be been being am do does did done has have had having will
    would shall should can could may might must of in on at by for with without to from into onto over under as if
    then than so such not no nor and or but which who whom whose what when where why how there here all any each
    some other more most also only own same too very just you your we our us they their them he his she her i me my
    one two use used using see e.g i.e etc""".split()  # noqa: SIM905
)
LENGTHS = ((2200, 3000, 7400, 1), (450, 9000, 15500, 4), (170, 18000, 30000, 4))
"""(windows, shortest, longest, YaRN factor they are read with)."""
A_WINDOW = {1: 10, 4: 22}
"""Pieces of evidence drawn in a window, by its factor."""


def words_of(text: str) -> list[str]:
    return [w.lower() for w in WORD.findall(text)]


def content(words: list[str]) -> list[str]:
    return [w for w in words if w not in STOP and len(w) > 2]


def modules() -> list[dict[str, str]]:
    """Python's own modules, which any machine has."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(p for p in root.rglob("*.py") if not {"test", "tests", "site-packages", "idlelib"} & set(p.parts))
    return [{"pkg": "python", "name": p.name, "text": p.read_text("utf8", "replace")} for p in files]


def windows(rows: list[dict[str, str]], rng: random.Random) -> list[tuple[str, int]]:
    """(text, factor) of documents: neighbouring pieces of one package, cut at lines."""
    packages: dict[str, list[str]] = {}
    for row in rows:
        packages.setdefault(row["pkg"], []).append(row["text"])
    found = []
    for count, shortest, longest, factor in LENGTHS:
        names = list(packages)
        for number in range(count):
            texts = packages[names[number % len(names)] if rng.random() < 0.8 else rng.choice(names)]
            size = int(rng.uniform(shortest, longest) * 3.7)
            at = rng.randrange(len(texts))
            text = texts[at]
            if len(text) > size:
                start = rng.randrange(len(text) - size)
                text = text[text.find("\n", start) + 1 :]
            while len(text) < size and len(texts) > 1:
                at = (at + 1) % len(texts)
                text += "\n\n" + texts[at]
                if at == 0 and len(text) < size // 2:
                    break
            text = text[:size]
            text = text[: text.rfind("\n")] if "\n" in text else text
            if len(text) > 3000:
                found.append((text.strip(), factor))
    rng.shuffle(found)
    return found


def sentences(text: str) -> list[tuple[int, int]]:
    """Spans of characters that may be evidence."""
    spans, at = [], 0
    for cut in [*SENTENCE.finditer(text), None]:
        end = cut.start() if cut else len(text)
        lead = len(text[at:end]) - len(text[at:end].lstrip())
        start, stop = at + lead, at + len(text[at:end].rstrip())
        if 40 <= stop - start <= 340 and 5 <= len(content(words_of(text[start:stop]))) <= 40:
            spans.append((start, stop))
        at = cut.end() if cut else end
    return spans


FORMS = (
    "{}?", "{}", "What does the text say about {}?", "Where is it said that {}?", "How about {}?",
    "What is known of {}?",
    "Tell me about {}.", "What happens with {}?", "Find what concerns {}.", "Which part deals with {}?",
    "I need to know about {}", "Why {}?", "How {}?", "When {}?",
)  # fmt: skip


def made_question(sentence: str, net: WordNet, rng: random.Random) -> str | None:
    """A question out of the words of a sentence: many left out, some others in their place."""
    words = WORD.findall(sentence)
    keep, swap = rng.uniform(0.2, 0.7), rng.uniform(0.2, 0.9)
    out = []
    for word in words:
        low = word.lower()
        if low in STOP:
            if rng.random() < 0.6:
                out.append(low)
            continue
        if rng.random() > keep + 0.15:
            continue
        other = net.other(low, rng) if rng.random() < swap else None
        out.append(other or (low if rng.random() < 0.8 else word))
    if sum(w.lower() not in STOP for w in out) < 2:
        return None
    if rng.random() < 0.3:
        rng.shuffle(out)
    return rng.choice(FORMS).format(" ".join(out[:18]))


THINGS = [
    "invoice", "parcel", "ticket", "locker", "badge", "report", "recipe", "permit", "crate", "violin", "server",
    "kettle", "garden gate", "old bridge",
]  # fmt: skip
NAMES = [
    "Mara", "Olek", "Priya", "Tomas", "Ines", "Bjarne", "Leila", "Kofi", "Yuki", "Dario", "Nadia", "Ewan", "Sofia",
    "Rui", "Hanna", "Viktor",
]  # fmt: skip
PLACES = [
    "Tromso", "Cadiz", "Lund", "Perth", "Oaxaca", "Fez", "Gdansk", "Bergamo", "Quito", "Riga", "Hobart", "Utrecht",
]  # fmt: skip
FACTS = (
    ("The {t} of {n} carries the number {d}.", "What number is on {n}'s {t}?"),
    ("{n} left the {t} in {p} on day {d}.", "Where did {n} leave the {t}?"),
    ("Note that the {t} belonging to {n} was moved to {p}.", "To which town was {n}'s {t} moved?"),
    ("For {n}, the code that opens the {t} is {d}.", "Which code does {n} need for the {t}?"),
    ("In {p}, {n} paid {d} coins for a {t}.", "How much did {n} spend in {p}?"),
    ("It was {n} who repaired the {t} at {p}, after {d} attempts.", "Who fixed the {t} in {p}?"),
    ('{{"owner": "{n}", "item": "{t}", "city": "{p}", "id": {d}}}', "What is the id of the {t} owned by {n}?"),
    ("# {n} set the limit of the {t} to {d} in {p}", "What limit did {n} set for the {t}?"),
)  # fmt: skip


def planted(text: str, rng: random.Random) -> tuple[str, int, int, str]:
    """A text with a made-up fact in it, where it stands, and what is asked of it."""
    fact, question = rng.choice(FACTS)
    what = {
        "t": rng.choice(THINGS),
        "n": rng.choice(NAMES),
        "p": rng.choice(PLACES),
        "d": str(rng.randrange(100, 99999)),
    }
    said = fact.format(**what)
    at = text.find("\n", rng.randrange(len(text)))
    at = len(text) if at < 0 else at + 1
    return text[:at] + said + "\n" + text[at:], at, at + len(said), question.format(**what)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("-o", type=Path, default=Path("data.npz"))
    parser.add_argument("--most", type=int, default=10**9, help="windows at most, to try it")
    args = parser.parse_args()
    rng = random.Random(11)
    net = WordNet(args.folder / "wordnet")
    loaded = load(args.drafter, device="cpu", extrapolate=True)
    tokenizer, template = loaded.tokenizer, loaded.template
    rows = [json.loads(line) for line in (args.folder / "corpus.jsonl").open()]
    drawn = windows(rows + 6 * modules(), rng)[: args.most]

    def suffix(question: str) -> list[int]:
        text = Prompt.from_document("x", question, template).text
        return tokenizer.encode(text[text.index("\n\n" + question) :], []).ids.tolist()

    ids, bounds, factors, evidence, made = [], [0], [], [], []
    for number, (text, factor) in enumerate(drawn):
        plants = []
        if rng.random() < 0.35:
            text, start, end, question = planted(text, rng)
            plants.append((start, end, question))
        prompt = Prompt.from_document(text, "?", template)
        tokenised = prompt.tokenise(tokenizer)
        raw = prompt.text.encode()
        body = text.strip()
        head = prompt.text.index(body[:200])
        stop = int(np.searchsorted(tokenised.bytes[:, 0], len(raw[: raw.rindex(b"\n\n?")])))
        if prompt.text.isascii():
            byte = lambda char: char  # noqa: E731
        else:
            table = np.cumsum([0, *(len(c.encode()) for c in prompt.text)])
            byte = lambda char, table=table: int(table[char])  # noqa: E731
        lead = len(text) - len(text.lstrip())

        def tokens(start: int, end: int, head=head, byte=byte, lead=lead, tokenised=tokenised) -> tuple[int, int]:
            a, b = byte(head + start - lead), byte(head + end - lead)
            spans = tokenised.bytes
            return int(np.searchsorted(spans[:, 1], a, side="right")), int(np.searchsorted(spans[:, 0], b))

        pieces = sentences(body)
        chosen = rng.sample(pieces, min(len(pieces), A_WINDOW[factor]))
        ids.append(tokenised.ids[:stop].astype(np.uint16))
        bounds.append(bounds[-1] + stop)
        factors.append(factor)
        for start, end in chosen:
            sentence = body[start:end]
            at = tokens(start + lead, end + lead)
            evidence.append((number, *at))
            for _ in range(2):
                question = made_question(sentence, net, rng)
                if question:
                    made.append((len(evidence) - 1, suffix(question)))
        for start, end, question in plants:
            evidence.append((number, *tokens(start, end)))
            made.append((len(evidence) - 1, suffix(question)))
        if number % 200 == 0:
            print(number, len(drawn), bounds[-1], file=sys.stderr)

    def packed(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        ends = np.cumsum([0, *map(len, lists)]).astype(np.int32)
        return np.concatenate([np.array(x, np.uint16) for x in lists]), ends

    made_ids, made_at = packed([q for _, q in made])
    np.savez_compressed(
        args.o,
        ids=np.concatenate(ids), bounds=np.array(bounds, np.int64), factors=np.array(factors, np.int8),
        evidence=np.array(evidence, np.int32),
        made_of=np.array([e for e, _ in made], np.int32), made_ids=made_ids, made_at=made_at,
    )  # fmt: skip


if __name__ == "__main__":
    main()
