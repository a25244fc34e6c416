"""Users' own questions: JSON lines of context, question and answers, and optionally evidence, id and metric."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

from sp.errors import ConfigError, known_names, unknown_name
from sp.evals.base import Example
from sp.evals.formats.records import FileRecord, RecordTask, checked_text, register_format
from sp.evals.matches import Match, normalised

METRICS: dict[str, Match] = {"contains": "any", "exact": "squad_exact", "f1": "squad_f1", "regex": "regex"}
"""Methods of scoring by the names that users know."""
OPTIONAL = ("evidence", "id", "metric")
MOST = 32  # most answers and pieces of evidence of one record, each of which is searched for in the whole text
LONGEST_PATTERN = 1000


@register_format("own", "context", "question", "answers")
@dataclass(frozen=True)
class OwnFile(RecordTask):
    """Records of ``context``, ``question`` and ``answers`` (a text, or a list of texts of which one is enough).

    ``evidence`` is a text in the context, or a list of such texts and of pairs ``[start, end)`` of its characters;
    ``id`` is written to the rows; ``metric`` replaces the file's. Other fields are ignored.

    Parameters
    ----------
    metric : str
        ``contains``, ``exact``, ``f1`` or ``regex``.
    """

    metric: str = "contains"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in METRICS:
            raise unknown_name("metric", self.metric, METRICS)

    def parse(self, record: FileRecord, index: int) -> Example:
        """Check the fields and locate the evidence."""
        fields = (*self.keys, *OPTIONAL)
        for name in islice(record.fields, MOST):
            if name not in fields and len(name) < 16 and get_close_matches(name, fields, 1, 0.8):
                raise ConfigError(f"{record.where}: unknown field{known_names(name, fields)}")
        context, question, answers = record.text("context"), record.text("question"), record.texts("answers", MOST)
        metric = record.fields.get("metric", self.metric)
        if not isinstance(metric, str) or metric not in METRICS:
            raise ConfigError(f"{record.where}: metric must be one of {', '.join(METRICS)}")
        check_answers(answers, metric, record.where)
        pieces = evidence(record.fields.get("evidence"), context, f"{record.where}: evidence")
        depths = [round(start / len(context), 4) for start, _ in pieces]
        return Example(
            id=f"{self.title}-{index}",
            task=self.title,
            document=context,
            question=question,
            answer_prefix="",
            answers=answers,
            needles=tuple(piece for _, piece in pieces),
            match=METRICS[metric],
            facts={"depth": min(depths, default=None), "depths": depths, "metric": metric, **record.facts("id")},
            max_new_tokens=64 if metric == "regex" else 32,
            places=tuple(start for start, _ in pieces),
        )


def check_answers(answers: tuple[str, ...], metric: str, where: str) -> None:
    """Raise ConfigError for an answer that a metric cannot use."""
    for number, answer in enumerate(answers):
        if METRICS[metric] in ("squad_exact", "squad_f1") and not normalised(answer):
            raise ConfigError(f"{where}: answers[{number}] is only articles and punctuation; use metric contains")
        if METRICS[metric] == "regex":
            check_pattern(answer, f"{where}: answers[{number}]")


def check_pattern(pattern: str, where: str) -> None:
    """Raise ConfigError unless a text is a regular expression of at most `LONGEST_PATTERN` characters.

    >>> check_pattern("(", "data.jsonl, line 1: answers[0]")
    Traceback (most recent call last):
    sp.errors.ConfigError: data.jsonl, line 1: answers[0] is no regular expression (missing ), unterminated subpattern)
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ConfigError(f"{where} has {len(pattern)} characters; a regular expression may have {LONGEST_PATTERN}")
    try:
        with warnings.catch_warnings(action="ignore"):  # about syntax that may change in later releases of Python
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        reason = error.msg if isinstance(error, re.error) else "too large"
        raise ConfigError(f"{where} is no regular expression ({reason})") from None


def evidence(value: Any, context: str, where: str) -> list[tuple[int, str]]:
    """Return the start and the text of each piece of evidence in a context, without white space at its ends.

    >>> evidence(["Tea is hot.", [0, 3]], "Ice is cold. Tea is hot.", "line 1: evidence")
    [(13, 'Tea is hot.'), (0, 'Ice')]
    """
    items = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, list) or len(items) > MOST:
        raise ConfigError(f"{where} must be a text or a list of up to {MOST} texts and pairs [start, end]")
    pieces = []
    for number, item in enumerate(items):
        if isinstance(item, list):
            if (
                len(item) != 2
                or not all(type(edge) is int for edge in item)
                or not 0 <= item[0] < item[1] <= len(context)
            ):
                allowed = f"a pair [start, end] of characters from 0 to {len(context)}, the length of the context"
                raise ConfigError(f"{where}[{number}] must be {allowed}")
            start, piece = item[0], context[item[0] : item[1]]
        else:
            piece = checked_text(item, f"{where}[{number}]")
            start = context.find(piece.strip())
        start += len(piece) - len(piece.lstrip()) if isinstance(item, list) else 0
        if start < 0 or not piece.strip():
            raise ConfigError(f"{where}[{number}] does not occur verbatim in the context")
        pieces.append((start, piece.strip()))
    return pieces
