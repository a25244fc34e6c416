"""Prompts of RULER itself, from the JSON lines its own scripts write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sp.config import Tokens
from sp.errors import ConfigError, PromptError
from sp.evals.base import Example, Match
from sp.evals.formats.records import Record, RecordTask, register_format

SENTENCE = re.compile(r"[^\n.!?]*[\n.!?]?")
MOST_PLACES = 3
"""Answers that stand in more sentences than this have no evidence worth naming, as in the counting tasks."""
MOST_ANSWERS = 64


@register_format("ruler", "input", "outputs")
@dataclass(frozen=True)
class RulerFile(RecordTask):
    """Example i is line i of a file that RULER's `prepare.py` wrote (fields `input`, `outputs`, `answer_prefix`).

    The last line of `input` is the question, everything before it the document. Older files have the answer prefix at
    the end of `input`; there it stays.

    Parameters
    ----------
    max_new_tokens : int
        RULER's are 128 (needles), 30 (vt), 120 (cwe), 50 (fwe), 32 (qa).
    match : {"auto", "all", "any"}
        How answers are judged; `auto` asks for any of them in files of `qa` tasks and for all elsewhere.
    """

    max_new_tokens: Tokens = 128
    match: Literal["auto", "all", "any"] = "auto"

    def read(self, record: Record, index: int) -> Example:
        """See `RecordTask.read`."""
        fields, where = record.fields, record.where
        if not isinstance(fields.get("input"), str) or not isinstance(fields.get("outputs"), list):
            raise ConfigError(f"{where}: needs `input` (text) and `outputs` (list of answers), as RULER writes them")
        given = [str(one) if isinstance(one, int | float) else one for one in fields["outputs"]]
        answers = Record({"outputs": given}, where).texts("outputs", MOST_ANSWERS)
        document, _, question = record.text("input").strip().rpartition("\n")
        if not document.strip():
            raise PromptError(f"{where}: the input is one line, so text and question cannot be told apart")
        prefix = record.text("answer_prefix") if fields.get("answer_prefix") else ""
        match: Match = self.match if self.match != "auto" else "any" if self.title.startswith("qa") else "all"
        return Example(
            id=f"{self.title}-{fields['index'] if type(fields.get('index')) is int else index}",
            task=self.title,
            document=document.strip(),
            question=question,
            answer_prefix=prefix,
            answers=answers,
            needles=evidence(document.strip(), answers),
            match=match,
            facts={"file": self.records.path.name, "length": record.facts("length").get("length")},
        )


def evidence(document: str, answers: Sequence[str]) -> tuple[str, ...]:
    """Sentences that hold an answer, if they are few."""
    found: dict[str, None] = {}
    for answer in answers:
        held = [one.strip() for one in SENTENCE.findall(document) if answer in one]
        if len(held) > MOST_PLACES:
            return ()
        found |= dict.fromkeys(held)
    return tuple(found)
