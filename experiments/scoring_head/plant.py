"""Invented facts hidden in text, as `hand.py` reads them: python plant.py facts.jsonl FOLDER/corpus.jsonl -o OUT

``OUT/natural.jsonl`` has the same questions as ``sp eval natural --questions`` and ``sp train scorer`` read them.

Each document is a piece of one text of ``corpus.jsonl`` with ten facts between its lines. A fact and its question were
written by a language model that saw nothing of this project; facts of ``experiments/real`` are not among them.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

A_DOCUMENT = 10
SIZES = (16_000, 36_000, 80_000, 120_000)
"""Characters of a document."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("facts", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("-o", type=Path, required=True)
    args = parser.parse_args()
    rng = random.Random(7)
    facts = [json.loads(line) for line in args.facts.read_text("utf8").splitlines()]
    rng.shuffle(facts)
    texts = [json.loads(line)["text"] for line in args.corpus.open()]
    long = [text for text in texts if len(text) >= max(SIZES)]
    rng.shuffle(long)
    (args.o / "docs").mkdir(parents=True)
    (args.o / "out").mkdir()
    with (args.o / "out" / "questions.jsonl").open("w") as out, (args.o / "natural.jsonl").open("w") as natural:
        for number, first in enumerate(range(0, len(facts), A_DOCUMENT)):
            size = rng.choice(SIZES)
            start = rng.randrange(len(long[number]) - size + 1)
            lines = long[number][start : start + size].strip().split("\n")
            name = f"facts-{number:02}.txt"
            for one in facts[first : first + A_DOCUMENT]:
                lines.insert(rng.randrange(1, len(lines)), one["fact"])
                out.write(json.dumps({"doc": name, "question": one["question"], "quote": one["fact"]}) + "\n")
                asked = {"document": f"docs/{name}", "question": one["question"]}
                natural.write(json.dumps(asked | {"answers": [one["fact"]], "evidence": [one["fact"]]}) + "\n")
            (args.o / "docs" / name).write_text("\n".join(lines))
    print(len(facts), "facts")


if __name__ == "__main__":
    main()
