"""Other words for a word, of WordNet's own files (Debian's package wordnet-base)."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}


class WordNet:
    """Synonyms and hypernyms by lemma.

    `folder`: with ``data.noun`` and its like.
    """

    def __init__(self, folder: Path) -> None:
        self.members: dict[tuple[str, str], list[str]] = {}
        self.above: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.of: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, letter in PARTS.items():
            for line in (folder / f"data.{name}").open():
                if line.startswith(" "):
                    continue
                fields = line.split(" | ")[0].split()
                key, count = (letter, fields[0]), int(fields[3], 16)
                words = [fields[4 + 2 * i].split("(")[0].lower() for i in range(count)]
                at = 4 + 2 * count
                pointers = [fields[at + 1 + 4 * i : at + 5 + 4 * i] for i in range(int(fields[at]))]
                self.members[key] = words
                self.above[key] = [(p[2], p[1]) for p in pointers if p[0] in ("@", "~", "&", "+")]
            for line in (folder / f"index.{name}").open():
                if line.startswith(" "):
                    continue
                fields = line.split()
                senses = int(fields[2])
                self.of[fields[0]] += [(letter, offset) for offset in fields[-senses:][:2]]  # the commonest two

    def lemma(self, word: str) -> str | None:
        """The form that the files list."""
        for tail, put in (
            ("", ""),
            ("s", ""),
            ("es", ""),
            ("ies", "y"),
            ("ed", ""),
            ("ed", "e"),
            ("ing", ""),
            ("ing", "e"),
        ):
            if word.endswith(tail) and (stem := word[: len(word) - len(tail)] + put) in self.of:
                return stem
        return None

    def other(self, word: str, rng: random.Random) -> str | None:
        """A synonym, a word of wider or narrower sense, or None."""
        lemma = self.lemma(word)
        if lemma is None:
            return None
        sense = rng.choice(self.of[lemma])
        near = [w for w in self.members[sense] if w != lemma]
        wide = [w for key in self.above[sense][:6] for w in self.members.get(key, ()) if w != lemma]
        pool = near if near and rng.random() < 0.7 else near + wide
        return rng.choice(pool).replace("_", " ") if pool else None
