"""Kinds of files that users write, each with good ones to begin with and what reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from sp.bench.simulate import read_trace
from sp.commands.common import overrides, read_settings
from sp.evals.formats.records import FORMATS, recognise
from sp.evals.turns.ways import KEY, known_rows
from sp.named import read_strategies
from sp.scoring import SCORERS
from sp.scoring.attention import heads
from sp.scoring.attention.heads import EMBEDDED_MAP, HeadMap
from sp.session.measured import read_break_evens
from sp.studies.board.entries import read_board
from sp.studies.board.html import as_html, as_markdown
from sp.studies.pages.report import write_report
from sp.studies.plots.maps import read_turns
from sp.studies.sweep.sweep import load_sweep
from sp.studies.training import load_plan

ROOT = Path(__file__).parents[1]
KEPT = TemporaryDirectory(prefix="sp-inputs-")
SCRATCH = Path(KEPT.name)


@dataclass(frozen=True)
class Case:
    """One kind of file.

    Parameters
    ----------
    name, file : str
    kind : {"yaml", "json", "lines"}
    seeds : list
        Texts, JSON values, or lists of the objects of lines.
    read : callable
        What a command does with the file, as far as it goes without models.
    """

    name: str
    file: str
    kind: str
    seeds: list[Any] = field(repr=False)
    read: Callable[[Path], object]


def _setting(path: Path) -> None:
    """The bytes of the file as values on the command line."""
    for line in path.read_bytes().decode("utf-8", "surrogateescape").split("\n"):
        name, _, value = line.partition(": ")
        overrides([f"scorer.{name}={value}"], "scorer")
        read_settings("tail", "top_chunks", "greedy", [f"scorer.{name}={value}"])


def _names(path: Path) -> None:
    read_strategies(path.read_bytes().decode("utf-8", "surrogateescape"), SCORERS, "--scorer")


def _set_option(path: Path) -> None:
    value = path.read_bytes().decode("utf-8", "surrogateescape")
    load_sweep(ROOT / "experiments" / "quickstart.yaml", [f"cells.keep_ratio={value}"])


def _task(path: Path) -> None:
    book = SCRATCH / "book.txt"
    book.write_text("It rained. Nobody came. " * 40)
    name = recognise(path)
    options = {"haystack": str(book)} if name == "nolima" else {}
    task = FORMATS.build(name, {"path": str(path), **options})
    task.check(9)
    for index in range(task.known(3)):
        made = task.example(index, 200 if options else 0, count)
        json.dumps(made.told_facts(), ensure_ascii=False).encode()
        if not made.turns:  # a conversation needs a template
            made.prompt(None).text.encode()


def _heads(path: Path) -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(heads=4, layers=5))
    found, key = HeadMap.load(path), heads.model_key
    heads.model_key = lambda model: MADE.model
    try:
        found.select_heads(model, 0.1)
    finally:
        heads.model_key = key


MADE = HeadMap.load(EMBEDDED_MAP)


def _break_even(path: Path) -> None:
    for even in read_break_evens(path, "t", "d", "nvidia-h200", None):
        even.describe()


def _report(path: Path) -> None:
    write_report([path], SCRATCH / "report")


def _board(path: Path) -> None:
    found = read_board([path])
    as_markdown(found, "tail")
    as_html(found)


def _turns(path: Path) -> None:
    known_rows(path, {})


def count(text: str) -> int:
    """Tokens of a text, as many as words."""
    return len(text.split())


def _row(scorer: str, example: int, correct: int, keep: float) -> dict[str, Any]:
    full = scorer == "full"
    return {
        "task": "needle", "example": f"needle-{example}", "tokens_asked": 1024 << example % 2,
        "cell": -1 if full else 0,
        "scorer": scorer, "selector": "full" if full else "top_chunks", "decode": "greedy", "keep_ratio": keep,
        "positions": "original", "kv": "f16", "rotate": False, "seed": 3, "status": "ok", "correct": correct,
        "score": 0.5, "given_kept": bool(correct), "ttft_s": 0.25, "kept_tokens": 12, "depth": 0.5,
        "realised_keep": 0.1, "needle_rank": 1, "needle_margin": 0.5,
    }  # fmt: skip


def _timed(tokens: int) -> dict[str, Any]:
    config = {"target": "t", "drafter": "d", "vram": None, "prompt_tokens": tokens, "keep_ratio": 0.1, "kv": "f16"}
    config |= {"scorer": "tail", "attention": "dense", "alpha": None, "density": None}
    metrics = {"ttft_s": tokens**0.5, "full_ttft_s": tokens / 50, "full_runs": 3, "stages": {"score": 0.1}}
    return {"bench": "ttft", "config": config, "metrics": metrics, "samples": [1.0] * 5, "gpu": "NVIDIA H200"}


def _turn(turn: int, prompt: int, cached: list[list[int]]) -> dict[str, Any]:
    spans = {"cached": cached, "kept": [[500, 640]], "needle": [[510, 520]]}
    recall = [{"start": 690, "end": 722}]
    return {"conversation": 1, "turn": turn, "prompt": prompt, "read": 7, "spans": spans, "recall": recall}


WAYS = (("full", 1.0), ("tail", 0.1), ("oracle", 0.1))
ASKED = [_row(scorer, n, int(n % 3 > 0), keep) for n in range(4) for scorer, keep in WAYS]
MODELS = {role: {"file": f"{role}.gguf", "sha256": "ab" * 32} for role in ("target", "drafter")}
HEAD = {"schema": 1, "kind": "session", "session": "s", "sweep": "made-up", "sp": "0", "commit": "1234567"}
HEAD |= {"date": "2026-11-22T10:00:00+00:00", "device": "cpu", "cpu": "a <fast> one", "cores": 2}
CLOSING = {"schema": 1, "kind": "run", "run": "a", "session": "s", "part": "", "seconds": 1.0, "rows": len(ASKED)}
CLOSING |= {"config": {"cells": [], "files": {"w": "ab"}}, "models": MODELS}
SWEPT = [HEAD, *({"schema": 1, "kind": "row", "run": "a"} | each for each in ASKED), CLOSING]
OWN = {"context": "Tea is hot. Ice is cold.", "question": "How is ice?", "answers": ["cold", "frosty"]}
CHOICES = {
    "_id": "66f1", "domain": "Tales", "difficulty": "easy", "length": "short", "question": "Who steers?",
    "choice_A": "Ada", "choice_B": "Bo", "choice_C": "Cy", "choice_D": "Di", "answer": "C", "context": "Cy steers.",
}  # fmt: skip
SAID = [
    {"role": "user", "content": "write a poem about owls"},
    {"role": "assistant", "content": "Owls hunt."},
    {"role": "user", "content": "Prepend q7W to the 1st poem about owls."},
]
MRCR = {"prompt": json.dumps(SAID), "answer": "q7WOwls hunt.", "random_string_to_prepend": "q7W", "n_needles": 1}
NEEDLES = [
    {
        "id": "0701", "system_prompt": "A word.", "task_template": "Read.\n{haystack}\nAnd now: {question}",
        "needle": "{CHAR} sleeps beside the {1}.", "character_set": ["Ivo"], "questions": {"onehop": "Who was in {2}?"},
        "tests": {"T1": {"input_args": ["Tower", "Ghent"]}},
    },
]  # fmt: skip
RULER = {"index": 3, "input": "A code is 12.\nIt rained. What is the code?", "outputs": ["12"], "length": 40}
TURN = dict.fromkeys(KEY, 1) | {"models": {}}
BENCH = [
    json.loads(line)
    for name in ("ttft", "decode", "verify")
    for line in (ROOT / "results" / "nvidia-h200" / f"{name}.jsonl").read_text().splitlines()[-4:]
]
TRACE = {"origin": {"date": "x"}, "accepted": [{"method": "ddtree", "budget": 8, "lengths": [1, 3, 2]}]}
SWEEP = """name: x
full: true
pairs: {target_rope: yarn:2}
tasks:
  - grid: {task: [needle, vt], tokens: [1024, 2048]}
    task.seed: 1
    examples: 20
    per_run: 5
cells:
  - zip: {positions: [original, contiguous], seed: [0, 1]}
    grid: {scorer: [tail, {name: tail, queries: 24}, random], keep_ratio: [0.1, 0.25], selector.neighbours: [0, 1]}
  - list: [{kv: f16}, {scorer: oracle, keep_ratio: 0.5}]
    selector: {name: top_chunks, sink: 4}
"""
PARTS = """parts:
  - name: one
    tasks: {task: needle, tokens: 64, examples: 2, thinking: on}
    cells: {scorer: tail}
  - {name: two, tasks: {task: vt, tokens: 64, examples: 1}, cells: {scorer: tail, scorer.queries: 3}}
"""
PLAN = """kind: probe
tasks: [{suite: unmatched}, fact, {name: needle, depth: 0.5}]
lengths: [2048, 4096]
n: 4
held_out: 1
seed: 1
leave_out: [fact]
labels: {scorer: oracle, top: 0.1}
options: {chunk_size: 4, neighbours: 2}
"""
QUICK = (ROOT / "experiments" / "quickstart.yaml").read_text()

CASES = [
    Case("sweep file", "x.yaml", "yaml", [SWEEP, PARTS, QUICK], load_sweep),
    Case("training file", "x.yaml", "yaml", [PLAN], load_plan),
    Case("--set of a run", "x.txt", "yaml", ["queries: 24", "pool: 5", "attention: dense"], _setting),
    Case("--set of a sweep", "x.txt", "yaml", ["[0.1, 0.2]", "0.5"], _set_option),
    Case("--scorer", "x.txt", "yaml", ["tail[queries=24 pool=5],lookahead", "tail[queries=1]"], _names),
    Case("ruler file", "x.jsonl", "lines", [[RULER, RULER]], _task),
    Case("own file", "x.jsonl", "lines", [[OWN, OWN | {"evidence": [[0, 3]], "id": "a", "metric": "f1"}]], _task),
    Case("choices file", "x.jsonl", "lines", [[CHOICES]], _task),
    Case("mrcr file", "x.jsonl", "lines", [[MRCR]], _task),
    Case("needle set", "x.json", "json", [NEEDLES], _task),
    Case("head map", "x.json", "json", [json.loads(EMBEDDED_MAP.read_text())], _heads),
    Case("break-even", "x.jsonl", "lines", [[_timed(1000), _timed(4000)]], _break_even),
    Case("sweep rows, report", "x.jsonl", "lines", [SWEPT], _report),
    Case("eval rows, report", "x.jsonl", "lines", [ASKED], _report),
    Case("records, report", "x.jsonl", "lines", [BENCH], _report),
    Case("sweep rows, board", "x.jsonl", "lines", [SWEPT], _board),
    Case("eval rows, board", "x.jsonl", "lines", [ASKED], _board),
    Case("conversation", "x.jsonl", "lines", [[_turn(1, 1000, []), _turn(2, 1075, [[0, 30]])]], read_turns),
    Case("rows to go on from", "x.jsonl", "lines", [[TURN, TURN | {"example": "b"}]], _turns),
    Case("accepted lengths", "x.json", "json", [TRACE], read_trace),
]
