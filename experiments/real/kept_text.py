"""What is kept of the text, for five natural questions: records, and docs/results/kept-text.md made from them.

    python experiments/real/kept_text.py            # reads, adds records below results/ and writes the page
    python experiments/real/kept_text.py --page     # only writes the page, from the records that are there

The questions are chosen by rule: of every kind of document, the first hard question about one of at most 15,000 tokens.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from sp.bench.record import append, key_of, make_record, read
from sp.evals.natural.questions import NaturalQuestion, known_questions
from sp.evals.natural.rows import judge, masks
from sp.evals.run import cell_columns, counter
from sp.prompt import TokenisedPrompt
from sp.scoring.calibration.record import file_sha256
from sp.selection import Selection, token_budget
from sp.session import Pipeline, RunOptions
from sp.studies.tables.page import insert_between

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "kept-text.md"
MARKS = "<!-- kept text: made by experiments/real/kept_text.py -->", "<!-- end of kept text -->"
BEST = {"auto": 3, "tail": 1, "bm25": 1}
"""Scorers, and how many of their best runs are shown."""
KEEP = 0.05
TOKENS = 15_000
SIZE = 160
"""Characters of a run that are shown."""
WIDTH = 120
LABEL = 10
GAP = "[...]"


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens ``[start, end)`` of a document that were kept.

    `start`, `end`; `chunk`: Tokens ``[start, end)`` of its best chunk, as far as they are in the run; `score`: of that
    chunk.
    """

    start: int
    end: int
    chunk: tuple[int, int]
    score: float


def main() -> None:
    """Read, write the records, and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", default="smollm2-135m", help="GGUF file or known name")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", type=Path, default=ROOT / "results", help="folder of records")
    parser.add_argument("--page", action="store_true", help="only write the page")
    given = parser.parse_args()
    if not given.page:
        options = [RunOptions(scorer=scorer, keep_ratio=KEEP) for scorer in BEST]
        pipeline = Pipeline.open(
            given.drafter, given.drafter, device=given.device, scorers=[one.scorer for one in options]
        )
        count = counter(pipeline.target.tokenizer)
        for question in first_hard_ones(known_questions(), count):
            for record in records(pipeline, question, options):
                append(make_record("kept_text", **record, sources=[], device=given.device), given.record)
                print(question.id, record["config"]["scorer"], record["metrics"], flush=True)
    page = insert_between(PAGE.read_text(), *MARKS, "\n".join(["", *page_lines(newest(given.record)), ""]))
    PAGE.write_text(page)


def first_hard_ones(questions: Iterable[NaturalQuestion], count: Any, most: int = TOKENS) -> list[NaturalQuestion]:
    """Of every kind of document, the first hard question about one of at most so many tokens."""
    first: dict[str, NaturalQuestion] = {}
    lengths: dict[str, int] = {}
    for question in questions:
        if not question.hard or question.text_kind in first:
            continue
        if question.document not in lengths:
            lengths[question.document] = count(question.text)
        if lengths[question.document] <= most:
            first[question.text_kind] = question
    return list(first.values())


def records(pipeline: Pipeline, question: NaturalQuestion, options: Iterable[RunOptions]) -> Iterator[dict[str, Any]]:
    """Of a question, one a scorer: what became of the evidence, and the best runs."""
    template, tokenizer = pipeline.target.template, pipeline.target.tokenizer
    prompt = pipeline.tokenise(question.example().prompt(template, tokenizer=tokenizer))
    evidence = masks(prompt, question)
    protected = prompt.mask("protected")
    wanted = np.logical_or.reduce([place for places in evidence for place in places])
    for cell in options:
        _, selection = pipeline.select(pipeline.score(prompt, cell), prompt, cell)
        verdict = judge(selection, evidence, token_budget(cell.keep_ratio, len(prompt), int(protected.sum())))
        columns = cell_columns(0, cell, pipeline.target.model.config)
        names = {name: columns[name] for name in ("scorer", "selector", "keep_ratio")}
        config = {
            "drafter": file_sha256(pipeline.drafter.path), **names, "question": question.id, "asked": question.question,
            "evidence": [f" {GAP} ".join(map(squeezed, question.quotes(places))) for places in question.evidence],
            "document": question.document, "kind": question.text_kind, "overlap": round(question.overlap, 4),
        }  # fmt: skip
        runs = runs_of(selection, ~protected)
        facts = {name: verdict.columns()[name] for name in ("whole", "reason", "recall", "rank", "scored_chunks")}
        sizes = {"kept_tokens": int(selection.selected.sum()), "prompt_tokens": len(prompt), "runs": len(runs)}
        samples = list(shown(prompt, runs, wanted, BEST.get(names["scorer"], 1)))
        yield {"config": config, "metrics": facts | sizes, "samples": samples}


def runs_of(selection: Selection, free: np.ndarray) -> list[Run]:
    """Runs of kept tokens among those that could be left out, the one with the best chunk first.

    Examples
    --------
    >>> kept, none = np.array([1, 1, 0, 0, 1, 1], bool), np.zeros(6, bool)
    >>> runs_of(Selection(kept, none, np.array([0.5, 0.1, 0.9]), np.array([0, 2, 4, 6])), ~none)
    [Run(start=4, end=6, chunk=(4, 6), score=0.9), Run(start=0, end=2, chunk=(0, 2), score=0.5)]
    """
    scores = np.where(np.isfinite(selection.chunk_scores), selection.chunk_scores, -np.inf)
    steps = np.diff(np.concatenate([[False], selection.selected & free, [False]]).astype(np.int8))
    runs = []
    for start, end in zip(np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True):
        first, last = np.searchsorted(selection.bounds, [start, end - 1], side="right") - 1
        best = int(first + scores[first : last + 1].argmax())
        chunk = max(start, int(selection.bounds[best])), min(end, int(selection.bounds[best + 1]))
        runs.append(Run(start, end, chunk, float(scores[best])))
    return sorted(runs, key=lambda run: -run.score)


def shown(prompt: TokenisedPrompt, runs: Sequence[Run], wanted: np.ndarray, most: int) -> Iterator[dict[str, Any]]:
    """The best runs, and those that hold some of the evidence."""
    raw = prompt.prompt.text.encode()
    for number, run in enumerate(runs, start=1):
        held = np.flatnonzero(wanted[run.start : run.end]) + run.start
        if number > most and not len(held):
            continue
        middle = (int(held[0]), int(held[-1]) + 1) if len(held) else run.chunk
        edges = [run.start, *middle, run.end]
        before, inside, behind = (
            raw[prompt.bytes[start, 0] : prompt.bytes[end - 1, 1]].decode(errors="replace") if end > start else ""
            for start, end in pairwise(edges)
        )
        yield {
            "number": number, "tokens": run.end - run.start, "evidence": bool(len(held)),
            "text": cut(before, inside, behind),
        }  # fmt: skip


def cut(before: str, inside: str, behind: str, size: int = SIZE) -> str:
    """A text of three parts on one line, cut to so many characters around the one inside, at words.

    Examples
    --------
    >>> cut("one two three four ", "five", " six seven eight nine", 26)
    '[...] four five six [...]'
    """
    text, start = squeezed(before + inside + behind), len(squeezed(before))
    room = max(size - 2 * (len(GAP) + 1), 1)
    if len(text) <= size:
        return text
    first = max(min(start - (room - len(squeezed(inside))) // 2, start, len(text) - room), 0)
    last = min(first + room, len(text))
    if first and text[first - 1] != " ":
        first = text.find(" ", first, last) + 1 or first
    if last < len(text) and text[last] != " ":
        last = max(text.rfind(" ", first, last), first) or last
    return f"{f'{GAP} ' if first else ''}{text[first:last].strip()}{f' {GAP}' if last < len(text) else ''}"


def squeezed(text: str) -> str:
    """With single blanks."""
    return re.sub(r"\s+", " ", text).strip()


def newest(folder: Path) -> list[Mapping[str, Any]]:
    """The last record of every question and scorer, whatever machine made it."""
    found = [record for path in folder.glob("*/kept_text.jsonl") for record in read(path)]
    return list({key_of(record): record for record in sorted(found, key=lambda record: record["date"])}.values())


def page_lines(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """The page of records: a heading and a block a question."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in found:
        groups.setdefault(record["config"]["question"], []).append(record)
    lines = []
    for group in groups.values():
        config, tokens = group[0]["config"], group[0]["metrics"]["prompt_tokens"]
        lines += [f"## {config['kind'].capitalize()}: {config['document']}", ""]
        shared = f"{100 * config['overlap']:.0f} % of the question's content words stand in the evidence."
        lines += [f"**{config['asked']}** A prompt of {tokens:,} tokens;", shared, "", "```text"]
        for label, text in zip(("evidence", *["or"] * len(config["evidence"])), config["evidence"], strict=False):
            lines += labelled(label, cut("", text, ""))
        for record in group:
            lines += ["", *labelled(record["config"]["scorer"], verdict_line(record["metrics"]))]
            for run in record["samples"]:
                lines += labelled(f"{run['number']:>4}{' *' if run['evidence'] else ''}", run["text"])
        lines += ["```", ""]
    return lines[:-1]


def verdict_line(metrics: Mapping[str, Any]) -> str:
    """Hit or miss, why, and the rank of the evidence."""
    lost = f"miss ({metrics['reason']}), {100 * metrics['recall']:.0f} % of the evidence kept"
    rank = "no rank" if metrics["rank"] is None else f"rank {metrics['rank']:g} of {metrics['scored_chunks']} chunks"
    return f"{'hit' if metrics['whole'] else lost}; {rank}; {metrics['runs']} runs kept"


def labelled(label: str, text: str) -> list[str]:
    """Lines of a text, with a label before the first."""
    return wrap(text, WIDTH, initial_indent=f"{label:<{LABEL}}", subsequent_indent=" " * LABEL, break_on_hyphens=False)


if __name__ == "__main__":
    main()
