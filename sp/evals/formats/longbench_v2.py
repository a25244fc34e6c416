"""LongBench v2 (arXiv 2412.15204): questions with four choices, with the prompts of its `pred.py`.

The fields, the prompt (``prompts/0shot.txt``), the longest answer and the search for the letter are those of
github.com/THUDM/LongBench at c5ea10b (MIT). Its scripts truncate texts that are too long for a model in the middle;
here they are an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from sp.config import Tokens
from sp.errors import ConfigError
from sp.evals.base import Example
from sp.evals.formats.records import FileRecord, RecordTask, register_format

LETTERS = "ABCD"
CHOICES = tuple(f"choice_{letter}" for letter in LETTERS)


@register_format("longbench_v2", "_id", "question", *CHOICES, "answer", "context")
@dataclass(frozen=True)
class LongBenchV2File(RecordTask):
    """Records of ``_id, domain, sub_domain, difficulty, length, question, choice_A`` to ``D, answer, context``.

    They are one per line, or all in a list, as in ``data.json``. The words before the context are part of the document,
    so a selection may leave them out.

    Parameters
    ----------
    max_new_tokens : int
        Longest answer in tokens, by default the 128 of the reference.
    """

    max_new_tokens: Tokens = 128

    def parse(self, record: FileRecord, index: int) -> Example:
        """Make the reference's prompt from a record."""
        question, *choices = (record.text(name).strip() for name in ("question", *CHOICES))
        letter = record.fields.get("answer")
        if letter not in tuple(LETTERS):
            raise ConfigError(f"{record.where}: answer must be one of {', '.join(LETTERS)}")
        choice_lines = "\n".join(f"({mark}) {choice}" for mark, choice in zip(LETTERS, choices, strict=True))
        return Example(
            id=f"{self.title}-{index}",
            task=self.title,
            document=f"{HEAD}{record.text('context').strip()}{TAIL}",
            question=f"What is the correct answer to this question: {question}\nChoices:\n{choice_lines}\n\n{FORMAT}",
            answer_prefix="",
            answers=(letter,),
            match="choice",
            facts=record.facts("_id", "domain", "sub_domain", "difficulty", "length"),
        )


HEAD = "Please read the following text and answer the question below.\n\n<text>\n"
TAIL = "\n</text>"
FORMAT = 'Format your response as follows: "The correct answer is (insert answer here)".'
