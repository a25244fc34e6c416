"""Prompts of RULER itself, from the JSON lines its own scripts write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sp.config import Tokens
from sp.errors import ConfigError, PromptError
from sp.evals.base import Example, Match
from sp.evals.formats.records import FileRecord, RecordTask, register_format

SENTENCE = re.compile(r"[^\n.!?]*[\n.!?]?")
MOST_PLACES = 3
"""Answers in more sentences than this have no evidence that could be named, as in the counting tasks."""
MOST_ANSWERS = 64


@register_format("ruler", "input", "outputs")
@dataclass(frozen=True)
class RulerFile(RecordTask):
    """Example i is line i of a file that RULER's `prepare.py` wrote (fields `input`, `outputs`, `answer_prefix`).

    The last line of `input` is the question, everything before it the document. Older files have the answer prefix at
    the end of `input`, where it remains.

    Parameters
    ----------
    max_new_tokens : int
        RULER's are 128 (needles), 30 (vt), 120 (cwe), 50 (fwe), 32 (qa).
    match : {"auto", "all", "any"}
        Method of scoring; `auto` requires any of the answers in files of `qa` tasks and all of them in others.
    """

    max_new_tokens: Tokens = 128
    match: Literal["auto", "all", "any"] = "auto"

    def parse(self, record: FileRecord, index: int) -> Example:
        """Split the input into document and question."""
        fields, where = record.fields, record.where
        if not isinstance(fields.get("input"), str) or not isinstance(fields.get("outputs"), list):
            raise ConfigError(f"{where}: needs `input` (text) and `outputs` (list of answers), as RULER writes them")
        outputs = [str(output) if isinstance(output, int | float) else output for output in fields["outputs"]]
        answers = FileRecord({"outputs": outputs}, where).texts("outputs", MOST_ANSWERS)
        document, _, question = record.text("input").strip().rpartition("\n")
        if not document.strip():
            raise PromptError(f"{where}: the input is one line; write the question on a line of its own after the text")
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
    """Return the sentences that contain an answer, or nothing if there are more than `MOST_PLACES` for one."""
    sentences: dict[str, None] = {}
    for answer in answers:
        matches = [sentence.strip() for sentence in SENTENCE.findall(document) if answer in sentence]
        if len(matches) > MOST_PLACES:
            return ()
        sentences |= dict.fromkeys(matches)
    return tuple(sentences)
