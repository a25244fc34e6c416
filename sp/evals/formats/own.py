"""Users' own questions: JSON lines of context, question and answers, and if they like of evidence, id and metric."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

from sp.errors import ConfigError, known_names, unknown_name
from sp.evals.base import Example
from sp.evals.formats.records import Record, RecordTask, checked_text, register_format
from sp.evals.matches import Match, normalised

METRICS: dict[str, Match] = {"contains": "any", "exact": "squad_exact", "f1": "squad_f1", "regex": "regex"}
"""Names that users know, and the ways to judge behind them."""
OPTIONAL = ("evidence", "id", "metric")
MOST = 32  # answers and pieces of evidence of one record: each is looked for in the whole text
LONGEST_PATTERN = 1000


@register_format("own", "context", "question", "answers")
@dataclass(frozen=True)
class OwnFile(RecordTask):
    """Records of ``context``, ``question`` and ``answers`` (a text, or a list of texts of which one must do).

    ``evidence`` is a text of the context, or a list of such and of pairs ``[start, end)`` of its characters; ``id``
    goes into the rows; ``metric`` takes the place of the file's. Other fields are passed over.

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

    def read(self, record: Record, index: int) -> Example:
        """See `RecordTask.read`."""
        fields = (*self.keys, *OPTIONAL)
        for name in islice(record.fields, MOST):
            if name not in fields and len(name) < 16 and get_close_matches(name, fields, 1, 0.8):
                raise ConfigError(f"{record.where}: unknown field{known_names(name, fields)}")
        context, question, answers = record.text("context"), record.text("question"), record.texts("answers", MOST)
        metric = record.fields.get("metric", self.metric)
        if not isinstance(metric, str) or metric not in METRICS:
            raise ConfigError(f"{record.where}: metric must be one of {', '.join(METRICS)}")
        check_answers(answers, metric, record.where)
        found = evidence(record.fields.get("evidence"), context, f"{record.where}: evidence")
        depths = [round(at / len(context), 4) for at, _ in found]
        return Example(
            id=f"{self.title}-{index}",
            task=self.title,
            document=context,
            question=question,
            answer_prefix="",
            answers=answers,
            needles=tuple(piece for _, piece in found),
            match=METRICS[metric],
            facts={"depth": min(depths, default=None), "depths": depths, "metric": metric, **record.facts("id")},
            max_new_tokens=64 if metric == "regex" else 32,
            places=tuple(at for at, _ in found),
        )


def check_answers(answers: tuple[str, ...], metric: str, where: str) -> None:
    """ConfigError for an answer that a metric cannot judge by."""
    for number, answer in enumerate(answers):
        if METRICS[metric] in ("squad_exact", "squad_f1") and not normalised(answer):
            raise ConfigError(f"{where}: answers[{number}] has nothing but articles and punctuation; use contains")
        if METRICS[metric] == "regex":
            check_pattern(answer, f"{where}: answers[{number}]")


def check_pattern(pattern: str, where: str) -> None:
    """ConfigError unless a text is a regular expression, and a short one.

    >>> check_pattern("(", "data.jsonl, line 1: answers[0]")
    Traceback (most recent call last):
    sp.errors.ConfigError: data.jsonl, line 1: answers[0] is no regular expression (missing ), unterminated subpattern)
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ConfigError(f"{where} has {len(pattern)} characters; a regular expression may have {LONGEST_PATTERN}")
    try:
        with warnings.catch_warnings(action="ignore"):  # of what later releases of Python may read otherwise
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        said = error.msg if isinstance(error, re.error) else "too large"
        raise ConfigError(f"{where} is no regular expression ({said})") from None


def evidence(given: Any, context: str, where: str) -> list[tuple[int, str]]:
    """Where each piece of evidence begins in a text, and what it says, white space at its ends left out.

    >>> evidence(["Tea is hot.", [0, 3]], "Ice is cold. Tea is hot.", "line 1: evidence")
    [(13, 'Tea is hot.'), (0, 'Ice')]
    """
    listed = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(listed, list) or len(listed) > MOST:
        raise ConfigError(f"{where} must be a text or a list of up to {MOST} texts and pairs [start, end]")
    found = []
    for number, one in enumerate(listed):
        if isinstance(one, list):
            if len(one) != 2 or not all(type(edge) is int for edge in one) or not 0 <= one[0] < one[1] <= len(context):
                told = f"a pair [start, end] of characters from 0 to {len(context)}, the length of the context"
                raise ConfigError(f"{where}[{number}] must be {told}")
            start, piece = one[0], context[one[0] : one[1]]
        else:
            piece = checked_text(one, f"{where}[{number}]")
            start = context.find(piece.strip())
        start += len(piece) - len(piece.lstrip()) if isinstance(one, list) else 0
        if start < 0 or not piece.strip():
            raise ConfigError(f"{where}[{number}] is not in the context, letter by letter")
        found.append((start, piece.strip()))
    return found
