"""The document of a prompt: haystack slices and needle sentences as parts that are safe to concatenate."""

from __future__ import annotations

import random

import numpy as np
import text as T  # noqa: N812
from haystack import Bank, Ints, Recipe, pick
from tokenizer import Encoder


class Documents:
    """Places needles in haystacks for one tokenizer."""

    def __init__(self, encoder: Encoder, bank: Bank, seed: int) -> None:
        self.encoder, self.bank, self.rng = encoder, bank, random.Random(seed)

    def _needle_text(self, n: T.Needle) -> tuple[str, int]:
        """Sentence and the offset of the space before its value."""
        head, tail = n.template.split("{value}")
        slots = {"key": n.key, "kind": n.kind}
        head = head.format(**slots)
        return head[:-1] + " " + n.value + tail.format(**slots), len(head) - 1

    def _distractor_lines(
        self, tokens: int, template: str, kind: str, style: str, source: T.Source, used: set[str]
    ) -> list[T.Needle]:
        trial = [T.Needle(k, source.value(kind), kind, template) for k in source.keys(4, style, 0.0)]
        per = sum(len(self.encoder(self._needle_text(n)[0])) + 1 for n in trial) / len(trial)
        out = []
        for key in source.keys(max(1, int(tokens / per)), style, 0.2):
            if key not in used:
                out.append(T.Needle(key, source.value(kind), kind, template))
        return out

    def _run(self, kind: str, tokens: int, whole_lines: bool) -> tuple[Ints, Ints, Ints, Ints]:
        """A slice of the bank starting at a line: ids and its line, word and sentence cuts (relative, inner)."""
        ids, lines, words, stops = self.bank.kinds[kind]
        tokens = min(tokens, len(ids) - 64)
        last = int(np.searchsorted(lines, len(ids) - tokens))
        start = int(lines[self.rng.randrange(max(1, last))])
        ends = lines if whole_lines or kind in ("code",) else words
        i = int(np.searchsorted(ends, start + tokens, side="right")) - 1
        stop = int(ends[max(i, 0)])
        if stop <= start:
            stop = start
        inner = [c[np.searchsorted(c, start + 1) : np.searchsorted(c, stop)] - start for c in (lines, words, stops)]
        return ids[start:stop], inner[0], inner[1], inner[2]

    def _document(
        self, r: Recipe, hay: str, budget: int, needles: list[T.Needle], texts: list[tuple[str, int]], order: list[int],
        header: str, kind: str, style: str, source: T.Source, task: str,
    ) -> list[tuple[object, list[tuple[int, int, int]]]]:  # fmt: skip
        """Parts (array or text, marks); a mark is (needle, start of its sentence, space before its value)."""
        rng = self.rng
        parts: list[tuple[object, list[tuple[int, int, int]]]] = [(header, [])] if header else []

        def needle_part(i: int, before: str, after: str) -> tuple[str, list[tuple[int, int, int]]]:
            sentence, at = texts[i]
            return before + sentence + after, [(i, len(before), len(before) + at)]

        if hay == "lines" or budget < 24:
            template = rng.choice(T.LINE_NEEDLES) if task != "vt" and hay == "lines" and rng.random() < 0.8 else None
            entries: list[tuple[str, list[tuple[int, int, int]]]] = []
            if template:
                for n in needles:
                    n.template = template
                texts = [self._needle_text(n) for n in needles]
            if hay == "lines" and budget > 24:
                kind2 = kind if kind in T.KINDS else "number"
                used = {n.key for n in needles}
                extra = self._distractor_lines(budget, template or T.RULER_NEEDLE, kind2, style, source, used)
                taken = {n.value for n in needles}
                entries = [(self._needle_text(n)[0], []) for n in extra if n.value not in taken]
            slots = sorted(rng.sample(range(len(entries) + len(order)), len(order)))
            for at, i in zip(slots, order, strict=True):
                entries.insert(at, needle_part(i, "", ""))
            sep = "\n" if hay == "lines" or rng.random() < 0.5 else " "
            for j, (sentence, marks) in enumerate(entries):
                parts.append((sentence + (sep if j + 1 < len(entries) else ""), marks))
            return parts

        runs = 1 if budget < 500 else rng.choice((1, 1, 2, 3, 4))
        kinds = [hay] + [
            pick(rng, {k: w for k, w in r.haystack.items() if k != "lines"} or {hay: 1}) for _ in range(runs - 1)
        ]
        rng.shuffle(kinds)
        shares = np.array([rng.random() + 0.3 for _ in kinds])
        sizes = (budget * shares / shares.sum()).astype(int)
        closing = rng.choice(("", "That is all.", "The rest is silence.", "Here the text ends."))
        places: list[list[tuple[int, str, int]]] = []
        slices = []
        for k, size in zip(kinds, sizes, strict=True):
            pieces = [self._run(k, int(size), True)]
            while k != "noise" and sum(len(p[0]) for p in pieces) < size - 400 and len(pieces) < 40:
                pieces.append(self._run(k, int(size) - sum(len(p[0]) for p in pieces), True))
            while k == "noise" and sum(len(p[0]) for p in pieces) < size - 400:
                pieces.append(self._run(k, int(size) - sum(len(p[0]) for p in pieces), True))
            slices += [(k, p) for p in pieces if len(p[0])]
        # positions of the needles: random depth, then snapped to a cut of the chosen sort
        lengths = np.array([len(p[0]) for _, p in slices] or [0])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        low, high = r.depth
        depths = sorted(int(starts[-1] * (low + (high - low) * rng.random())) for _ in order)
        places = [[] for _ in slices]
        for d, i in zip(depths, order, strict=True):
            if not slices:
                break
            s = min(int(np.searchsorted(starts, d, side="right")) - 1, len(slices) - 1)
            k, (_, lines, words, stops) = slices[s]
            choice = "line" if k in ("code", "noise") else rng.choice(("line", "stop", "stop", "word"))
            if k == "noise" and rng.random() < 0.3:
                choice = "stop"
            cuts = {"line": lines, "word": words, "stop": stops}[choice]
            before = places[s][-1] if places[s] else (0, choice, -1)
            at = int(np.searchsorted(cuts, max(d - starts[s], before[0])))
            if at < len(cuts):
                at = int(cuts[at])
            elif places[s]:  # keep the order of the needles: join the one before
                at, choice = before[:2]
            else:
                at, choice = (int(cuts[-1]), choice) if len(cuts) else (0, "line")
            places[s].append((at, choice, i))
        if not slices:
            return parts + [needle_part(i, "", "\n" if j + 1 < len(order) else "") for j, i in enumerate(order)]
        for (_, (ids, _, _, _)), marks in zip(slices, places, strict=True):
            at = 0
            for cut, choice, i in sorted(marks, key=lambda m: m[0]):
                parts.append((ids[at:cut], []))
                line = choice == "line"
                sentence, mark = needle_part(i, "" if line else " ", "\n" if line else "")
                parts.append((sentence, mark))
                at = cut
            parts.append((ids[at:], []))
        parts.append((closing or "End.", []))
        return parts
