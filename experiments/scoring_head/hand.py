"""Questions that people wrote about documents, in the form `corpus.py` writes.

    python hand.py FOLDER... -d DRAFTER.gguf -o hand.npz

Each folder holds `docs/*.txt` and `out/questions.jsonl` with `doc`, `question` and `quote` (or a list of `quotes`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from sp.prompt import Prompt
from sp.session.loaded import load


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("-d", type=Path, required=True)
    parser.add_argument("-o", type=Path, default=Path("hand.npz"))
    parser.add_argument("--window", type=int, default=8192)
    args = parser.parse_args()
    loaded = load(args.d, device="cpu", extrapolate=True)
    tokenizer, template = loaded.tokenizer, loaded.template
    by_doc: dict[Path, list[dict[str, str]]] = {}
    for folder in args.folders:
        for line in (folder / "out" / "questions.jsonl").open():
            row = json.loads(line)
            by_doc.setdefault(folder / "docs" / row["doc"], []).append(row)
    ids, bounds, factors, evidence, of, questions, names = [], [0], [], [], [], [], []
    lost = 0
    for path, rows in sorted(by_doc.items()):
        text = path.read_text("utf8").strip()
        for row in rows:
            question = row["question"].strip()
            quotes = row.get("quotes") or [row["quote"]]
            try:
                tokenised = Prompt.from_document(text, question, template, needle=quotes).tokenise(tokenizer)
            except Exception as error:
                lost += 1
                print(path.name, error)
                continue
            asked = tokenised.mask("question").argmax()
            stop = int(asked)
            while tokenizer.decode(tokenised.ids[stop - 1 : stop].tolist()).strip() == "":
                stop -= 1
            of.append(len(evidence))
            needle = tokenised.mask("needle").nonzero()[0]
            runs = np.split(needle, np.flatnonzero(np.diff(needle) > 1) + 1)
            evidence.append((len(bounds) - 1, int(runs[0][0]), int(runs[-1][-1]) + 1))
            questions.append(tokenised.ids[stop:].tolist())
            last = tokenised.ids[:stop]
        ids.append(last.astype(np.uint16))
        bounds.append(bounds[-1] + len(last))
        factor = 1
        while factor * args.window < len(last) + 100:
            factor *= 2
        factors.append(factor)
        names.append(path.name)
    np.savez_compressed(
        args.o,
        ids=np.concatenate(ids), bounds=np.array(bounds, np.int64), factors=np.array(factors, np.int8),
        evidence=np.array(evidence, np.int32), made_of=np.array(of, np.int32),
        made_ids=np.concatenate([np.array(q, np.uint16) for q in questions]),
        made_at=np.cumsum([0, *map(len, questions)]).astype(np.int32), names=np.array(names),
    )  # fmt: skip
    print(len(of), "questions", lost, "lost", len(names), "documents", bounds[-1], "tokens", factors)


if __name__ == "__main__":
    main()
