"""Google's MRCR v2 (arXiv 2409.12640): the conversation is written out in one text, the request at its end.

Columns ``queries`` and ``answer`` and the score are those of github.com/google-deepmind/eval_hub at 67b7fd2
(Apache-2.0), whose files are CSV. Turns begin with "User: " and "Assistant: " on lines of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sp.errors import ConfigError, PromptError
from sp.evals.base import Example
from sp.evals.formats.file_task import register_format
from sp.evals.formats.mrcr import MrcrFile, copy_of
from sp.evals.formats.records import Record

MARK = 12
"""Characters of an answer before what is to be copied."""
REQUEST = "\n\nUser:"


@register_format("mrcr_v2", "queries", "answer")
@dataclass(frozen=True)
class MrcrV2File(MrcrFile):
    """Records of ``queries`` and ``answer``; what the last user says is the question, all before it the document."""

    def read(self, record: Record, index: int) -> Example:
        """See `RecordTask.read`."""
        document, mark, question = record.text("queries").strip().rpartition(REQUEST)
        if not document.strip() or not question.strip():
            raise PromptError(f"{record.where}: queries must end with a turn that begins with a line of User:")
        answer = record.text("answer").strip()
        if len(answer) <= MARK:
            raise ConfigError(f"{record.where}: answer must have a random string of {MARK} characters, and go on")
        wanted = copy_of(record, answer[:MARK])
        return Example(
            id=f"{self.title}-{index}",
            task=self.title,
            document=document,
            question=f"{mark.strip()}{question}",
            answer_prefix="",
            answers=(answer[:MARK], wanted),
            needles=(wanted,) if document.count(wanted) == 1 else (),
            match="mrcr_v2",
        )
