"""Transcripts by the thousand: what is kept parses, no line is cut, nothing is unbalanced, no markup is lost.

``python tests/selection/structure_fuzz.py 10000`` says how many transcripts were kept how, and the first faults; files
of other vocabularies may follow.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from structure_cases import MARKUP, Said, faults, transcript

from sp.chat import Segment
from sp.gguf import GGUFFile, Tokenizer
from sp.prompt import Prompt, Span, TokenisedPrompt
from sp.selection import SELECTORS, Selection, SelectionRequest
from sp.session import embedded
from sp.session.compress import SelectionDetails, compress

MARK = re.compile(r"\[\.\.\. [\d,]+ (?:line|character)s? \.\.\.\]")
NAMES = ("lines", "json", "segments")
OPTIONS = ({}, {"neighbours": 0, "longest": 16}, {"neighbours": 2, "longest": 200, "backbone": 0.25}, {"min_run": 12})


@cache
def tokenizer(path: str) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile.open(Path(path)))


def vocabularies() -> list[str]:
    return [str(embedded("target")), str(embedded("drafter"))]


def prompt_of(chat: Iterable[Said]) -> Prompt:
    """The messages in markup, the last question and an opening of the answer behind them."""
    text, spans, segments = b"", [], []
    for index, one in enumerate([*chat, Said("user", "Which one is it?", "question")]):
        opens, closes = (mark.encode() for mark in MARKUP[one.role])
        start, said = len(text) + len(opens), one.written.encode()
        text += opens + said + closes
        protected = (start - len(opens), start), (start + len(said), len(text))
        spans += [Span("protected", *edges) for edges in protected]
        spans.append(Span("plain", start, start + len(said)))
        segments.append(Segment(one.role, start, start + len(said), index, one.quoted))  # type: ignore[arg-type]
    spans.append(Span("protected", segments[-1].start, segments[-1].end))
    return Prompt(text.decode(), tuple(sorted(spans, key=lambda span: span.start)), None, tuple(segments))


def kept_of(prompt: TokenisedPrompt, selection: Selection, start: int, end: int) -> str:
    """What is read of bytes [start, end)."""
    raw, found = prompt.prompt.text.encode(), []
    for token in selection.indices.tolist():
        for low, high in selection.byte_ranges.get(token, (tuple(prompt.bytes[token].tolist()),)):
            found.append(raw[max(low, start) : max(min(high, end), start)])
    return b"".join(found).decode()


def reading_faults(prompt: TokenisedPrompt, selection: Selection, reader: Tokenizer, values: list[str]) -> list[str]:
    """What is wrong of what the target reads, by tokens or encoded anew: other text than is kept, marks in values."""
    text, found = kept_of(prompt, selection, 0, 1 << 40), []
    for mapping in ("byte_span", "text_rejoin"):
        plain, marked = (
            compress(
                prompt,
                selection.selected,
                reader,
                "original",
                mapping,
                SelectionDetails(selection.byte_ranges, mark, whole=True),
            )  # type: ignore[arg-type]
            for mark in (False, True)
        )
        if reader.decode(plain.ids[plain.ids != reader.bos_id]) != text:
            found.append(f"{mapping}: the target reads other text")
        for given in (plain, marked):
            if (np.diff(given.positions) <= 0).any() or given.positions[-1] >= given.next_position:
                found.append(f"{mapping}: positions do not ascend")
        shown = reader.decode(marked.ids[marked.ids != reader.bos_id])
        if "".join(MARK.sub("", shown).split()) != "".join(text.split()):
            found.append(f"{mapping}: marks change the text")
        found += [f"{mapping}: a mark inside of {value[:80]!r}" for value in values if value not in shown]
    return found


def check(seed: int, paths: list[str]) -> tuple[Counter[str], list[str]]:
    """One transcript by all selectors: what was counted, and what is wrong."""
    rng, chat = random.Random(seed), transcript(seed)
    reader = tokenizer(rng.choice(paths))
    prompt = prompt_of(chat).tokenise(reader)
    scores = np.array([rng.choice([0, 1, 5, 50]) * rng.random() for _ in range(len(prompt))], np.float32)
    counted, wrong = Counter[str](), []
    protected = prompt.mask("protected")
    for name in NAMES:
        options = rng.choice(OPTIONS)
        ratio = rng.choice([0.03, 0.1, 0.3, 0.6]) + 0.02
        text, free = prompt.prompt.text.encode(), prompt.prompt.free
        request = SelectionRequest(scores, protected, ratio, text, prompt.bytes, free)
        selection = SELECTORS.build(name, options).select(request)
        where = f"seed {seed}, {name} {options} {ratio:.3f}"
        if selection.selected.sum() > request.budget or not selection.selected[protected].all():
            wrong.append(f"{where}: over the budget, or protected text is lost")
        larger = replace(request, keep_ratio=min(1.0, ratio * rng.uniform(1, 2)))
        if not SELECTORS.build(name, options).select(larger).selected[selection.selected].all():
            wrong.append(f"{where}: a larger keep ratio drops what this one keeps")
        values: list[str] = []
        for one, segment in zip(chat, prompt.prompt.segments, strict=False):
            kept = kept_of(prompt, selection, segment.start, segment.end)
            if one.quoted:
                kept = json.loads(f'"{kept}"')
            elif one.sort == "json" and name != "lines":
                values.append(kept.strip())
            sort = one.sort if name != "lines" or one.sort in ("code", "log") else "code"
            counted[f"{name} {one.sort}"] += 1
            if kept.strip() and kept != one.text:
                counted[f"{name} {one.sort} in part"] += 1
            if name == "lines" and one.sort in ("fenced", "tags"):
                wrong += [f"{where}, {one.sort}: {fault}" for fault in faults(one.sort, kept, one.text)]
            if not (sort == "code" and name == "segments"):
                wrong += [f"{where}, {one.sort}: {fault}" for fault in faults(sort, kept, one.text)]
        found = reading_faults(prompt, selection, reader, values)
        wrong += [f"{where}: {fault}" for fault in found]
    return counted, wrong


def main(many: int, paths: list[str]) -> None:
    counted, wrong = Counter[str](), list[str]()
    for seed in range(many):
        more, found = check(seed, paths)
        counted.update(more)
        wrong += found
    print(f"{many} transcripts, {len(wrong)} faults")
    for name, count in sorted(counted.items()):
        print(f"{count:8d} {name}")
    print("\n".join(wrong[:20]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or vocabularies())
