"""Prompts of RULER itself, from the JSON lines its own scripts write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sp.config import check_fields
from sp.errors import ConfigError, PromptError
from sp.evals.base import MARKUP, Count, Example, Match, Task, register_task
from sp.trace import read_jsonl

SENTENCE = re.compile(r"[^\n.!?]*[\n.!?]?")
MOST_PLACES = 3
"""Answers that stand in more sentences than this have no evidence worth naming, as in the counting tasks."""


@register_task("ruler_file")
@dataclass(frozen=True)
class RulerFile(Task):
    """Example i is line i of a file that RULER's `prepare.py` wrote (fields `input`, `outputs`, `answer_prefix`).

    The last line of `input` is the question, everything before it the document. Older files have the answer prefix at
    the end of `input`; there it stays.

    Parameters
    ----------
    path : str
    match : {"auto", "all", "any"}
        How answers are judged; `auto` asks for any of them in files of `qa` tasks and for all elsewhere.
    max_new_tokens : int
        RULER's are 128 (needles), 30 (vt), 120 (cwe), 50 (fwe), 32 (qa).
    """

    path: str
    match: Literal["auto", "all", "any"] = "auto"
    max_new_tokens: int = 128

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")

    def __len__(self) -> int:
        """Examples in the file."""
        return len(_lines(Path(self.path)))

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; `tokens` 0 takes any length, otherwise longer prompts are refused."""
        path = Path(self.path)
        lines = _lines(path)
        if not 0 <= index < len(lines):
            raise ConfigError(f"{path} has {len(lines)} examples, so there is no number {index}")
        line, where = lines[index], f"{path}, line {index + 1}"
        text, answers = line.get("input"), line.get("outputs")
        if not isinstance(text, str) or not isinstance(answers, list) or not answers:
            raise ConfigError(f"{where}: needs `input` (text) and `outputs` (list of answers), as RULER writes them")
        document, _, question = text.strip().rpartition("\n")
        if not document.strip():
            raise PromptError(f"{where}: the input is one line, so text and question cannot be told apart")
        prefix = str(line.get("answer_prefix", ""))
        used = sum(map(count, (document, question, prefix))) + MARKUP if tokens else 0
        if used > tokens:
            raise PromptError(f"{where}: the prompt has about {used} tokens, more than the {tokens} asked for")
        answers = [str(answer) for answer in answers]
        task = path.parent.name if path.stem in ("validation", "test") else path.stem
        match: Match = self.match if self.match != "auto" else "any" if task.startswith("qa") else "all"
        return Example(
            id=f"{task}-{line.get('index', index)}",
            task=task,
            document=document.strip(),
            question=question,
            answer_prefix=prefix,
            answers=tuple(answers),
            needles=evidence(document.strip(), answers),
            match=match,
            facts={"file": path.name, "length": line.get("length")},
            tokens=tokens,
            max_new_tokens=self.max_new_tokens,
        )


def evidence(document: str, answers: list[str]) -> tuple[str, ...]:
    """Sentences that hold an answer, if they are few.

    Examples
    --------
    >>> evidence("The code is 12. The sky is blue.", ["12"])
    ('The code is 12.',)
    """
    found: dict[str, None] = {}
    for answer in answers:
        held = [one.strip() for one in SENTENCE.findall(document) if answer in one]
        if len(held) > MOST_PLACES:
            return ()
        found |= dict.fromkeys(held)
    return tuple(found)


@cache
def _lines(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))
