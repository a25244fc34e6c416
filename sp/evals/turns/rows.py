"""Rows of the turns of transcripts, way by way; those of a file that are there already are not made again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp.chat import Thinking
from sp.evals.base import WITHOUT, Count
from sp.evals.known_rows import Key
from sp.evals.known_rows import known_rows as rows_of_file
from sp.evals.run import Row, cell_columns
from sp.evals.transcripts.transcript import Transcript
from sp.evals.turns.ways import TOKENS, WAYS, Progress, Session
from sp.scoring.base import ModelFreeScorer
from sp.session import Pipeline, RunOptions

KEY = ("example", "way", "scorer", "selector", "decode", "keep_ratio", "positions", "mapping", "kv", "rotate", "seed")
"""What tells a row from all others of the same models."""
THOUGHT = ("thinking", "reasoning_effort")
"""Likewise, where rows have it."""


def key_of(row: Mapping[str, Any]) -> Key:
    """What tells a row from others."""
    return (*(row[name] for name in KEY), *(row.get(name) for name in THOUGHT))


@dataclass(frozen=True)
class Round:
    """A way and the options that it is run with; places of the options among all that were asked for, or -1."""

    way: str
    cells: tuple[tuple[int, RunOptions], ...]


def rounds(ways: Sequence[str], cells: Sequence[RunOptions]) -> list[Round]:
    """Every way with the options that matter to it; controls, which keep nothing between turns, only where they do.

    Examples
    --------
    >>> [(one.way, [place for place, _ in one.cells]) for one in rounds(["full", "cold"], [RunOptions()])]
    [('full', [-1]), ('cold', [0])]
    """
    found = []
    for name in ways:
        way, numbered = WAYS[name], list(enumerate(cells))
        if not way.compresses:
            numbered = [(-1, cells[0])]
        elif not way.controls:
            numbered = [(place, one) for place, one in numbered if not is_control(one)]
        found.append(Round(name, tuple(numbered)))
    return found


def is_control(options: RunOptions) -> bool:
    """Whether a scorer reads no model, or knows the evidence.

    Examples
    --------
    >>> from sp.scoring import SCORERS
    >>> [is_control(RunOptions(scorer=SCORERS.build(name))) for name in ("tail", "lexical", "oracle")]
    [False, True, True]
    """
    return isinstance(options.scorer, ModelFreeScorer) or options.scorer.oracle


@dataclass(frozen=True)
class Work:
    """What is measured.

    `layout`, one of "chat", "plain": see `Turns`.
    """

    pipeline: Pipeline
    rounds: list[Round]
    layout: str = "chat"
    thinking: Thinking = WITHOUT

    def total(self, turns: int) -> int:
        """Rows of so many turns."""
        return turns * sum(len(one.cells) for one in self.rounds)

    def rows(
        self, transcript: Transcript, count: Count, done: Mapping[Key, Row], progress: Progress = lambda done: None
    ) -> Iterator[Row]:
        """Rows of a transcript that are not done; options of which any turn is missing go through all turns again."""
        examples = tuple(transcript.example(asked, count, self.layout) for asked in transcript.asked)
        session = Session(self.pipeline, examples, self.thinking, progress)
        for one in self.rounds:
            missing = [(place, cell) for place, cell in one.cells if self.missing(one.way, place, cell, examples, done)]
            progress((len(one.cells) - len(missing)) * len(examples))
            if not missing:
                continue
            for row in WAYS[one.way].run(session, [cell for _, cell in missing]):
                made = self.completed(row, one.way, missing)
                if key_of(made) not in done:
                    yield made

    def all_keys(self, transcript: Transcript, count: Count) -> list[Key]:
        """Of all rows of a transcript."""
        examples = [transcript.example(asked, count, self.layout) for asked in transcript.asked]
        return [key for one in self.rounds for cell in one.cells for key in self.keys(one.way, *cell, examples)]

    def missing(self, way: str, place: int, cell: RunOptions, examples: Sequence[Any], done: Mapping[Key, Row]) -> bool:
        """Whether a row of these options is not done."""
        return not all(key in done for key in self.keys(way, place, cell, examples))

    def keys(self, way: str, place: int, cell: RunOptions, examples: Sequence[Any]) -> list[Key]:
        """Of all rows that a way makes of examples with some options."""
        thought: dict[str, str] = {} if self.thinking.mode == "off" else {"thinking": self.thinking.mode}
        thought |= {} if self.thinking.effort is None else {"reasoning_effort": self.thinking.effort}
        columns = cell_columns(place, cell) | {"way": way} | thought
        return [key_of(columns | {"example": example.id}) for example in examples]

    def completed(self, row: Row, way: str, missing: Sequence[tuple[int, RunOptions]]) -> Row:
        """A row with its way, the place of its options, whether the answer is outdated, and tokens by what became."""
        place, cell = missing[max(row["cell"], 0)]
        known = row["status"] == "ok"
        outdated = known and not row["correct"] and any(one in row["answer"] for one in row["stale"])
        counts = (0, row["prompt_tokens"], row["kept_tokens"], 0) if known else (None,) * len(TOKENS)
        tokens = dict(zip(TOKENS, counts, strict=True))
        ours = {"cell": place, "seed": cell.seed, "outdated": int(outdated) if known else None}
        return {"way": way, **tokens} | row | ours


def known_rows(path: Path, models: Mapping[str, Any]) -> dict[Key, Row]:
    """Rows of turns of a file that are of these models, by key; see `sp.evals.known_rows`."""
    return rows_of_file(path, models, KEY, key_of, THOUGHT)
