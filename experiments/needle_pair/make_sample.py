"""The document of ``sp run`` without arguments: ``python make_sample.py DATA ASSETS`` (held-out text, one needle)."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from text import RULER_QUESTION
from tokenizers import Tokenizer
from words import ADJECTIVES, NOUNS, split_words

ANSWER = "8301947"
MARKUP = 10


def main(data: Path, assets: Path, tokens: int = 8150) -> None:
    rng = random.Random(2026)
    bank = json.loads((data / "bank.json").read_text())["held_out"]
    tok = Tokenizer.from_file(str(data / "target.json"))

    def count(text: str) -> int:
        return len(tok.encode(text, add_special_tokens=False).ids)

    adjective = next(
        w
        for w in ("tranquil", "quiet", "velvet", "amber", "misty", *split_words(ADJECTIVES)[1])
        if w in split_words(ADJECTIVES)[1]
    )
    noun = next(
        w for w in ("lantern", "lighthouse", "compass", "harbor", *split_words(NOUNS)[1]) if w in split_words(NOUNS)[1]
    )
    key = f"{adjective}-{noun}"
    needle = f"One of the special magic numbers for {key} is: {ANSWER}."
    question = RULER_QUESTION.format(kind="number", key=key)
    grammar, prose = bank["grammar"].splitlines(), [p for p in bank["prose"].splitlines() if 120 < len(p) < 700]
    code = bank["code"]
    listing = code[code.index("\ndef ") :][:900]
    listing = listing[: listing.rfind("\n")].strip("\n")
    budget = tokens - MARKUP - count(question) - count(needle) - 4
    paragraphs: list[str] = []
    used = 0
    first = rng.randrange(len(grammar) - 400)
    i = 0
    while True:
        if i == 22:
            p = listing
        elif i % 4 == 3:
            p = prose[rng.randrange(len(prose))]
        else:
            p = grammar[first + i]
        if p in paragraphs:
            i += 1
            continue
        n = count(p) + 1
        if used + n > budget:
            break
        paragraphs.append(p)
        used += n
        i += 1
    at = next(
        j
        for j in range(int(len(paragraphs) * 0.63), len(paragraphs))
        if paragraphs[j].count(". ") > 3 and paragraphs[j] in grammar
    )
    sentences = paragraphs[at].split(". ")
    half = len(sentences) // 2
    paragraphs[at] = ". ".join(sentences[:half]) + ". " + needle + " " + ". ".join(sentences[half:])
    document = "\n\n".join(paragraphs) + "\n"
    assert document.count(ANSWER) == 1, document.count(ANSWER)
    assert document.count(key) == 1, document.count(key)
    (assets / "sample.txt").write_text(document)
    (assets / "sample.json").write_text(
        json.dumps({"question": question, "answers": [ANSWER], "needle": needle}, indent=2) + "\n"
    )
    print(
        count(document + "\n\n" + question) + MARKUP,
        "tokens; needle at",
        round(document.index(needle) / len(document), 3),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
