"""OpenAI's MRCR: a long conversation, of which one of several look-alike replies is to be copied.

Fields and score as the page of huggingface.co/datasets/openai/mrcr has them; its Parquet files become JSON lines
by ``pandas.read_parquet(path).to_json(out, orient="records", lines=True)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sp.chat import Turn
from sp.errors import ConfigError, PromptError
from sp.evals.base import Example
from sp.evals.formats.records import Record, RecordTask, checked_text, register_format, shown
from sp.json_lines import parse_json

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MOST_TURNS = 1 << 14
LONGEST_ANSWER = 1 << 15  # characters; likeness takes more than their number in steps, and theirs have some thousands


@register_format("mrcr", "prompt", "answer", "random_string_to_prepend")
@dataclass(frozen=True)
class MrcrFile(RecordTask):
    """Records of ``prompt`` (messages, as a list or as JSON of one), ``answer`` and ``random_string_to_prepend``.

    All but the last message, system messages and markup may be left out. The evidence is the reply to be copied.
    """

    def replies(self, made: Example) -> tuple[str, ...]:
        """See `RecordTask.replies`."""
        return ("".join(made.answers),)

    def read(self, record: Record, index: int) -> Example:
        """See `RecordTask.read`."""
        turns = turns_of(record.fields.get("prompt"), f"{record.where}: prompt")
        mark = record.text("random_string_to_prepend")
        wanted = copy_of(record, mark)
        return Example(
            id=f"{self.title}-{index}",
            task=self.title,
            document="",
            question="",
            answer_prefix="",
            answers=(mark, wanted),
            needles=(wanted,) if [turn.content.strip() for turn in turns].count(wanted) == 1 else (),
            match="mrcr",
            facts=record.facts("n_needles", "total_messages", "n_chars"),
            turns=turns,
        )


def copy_of(record: Record, mark: str) -> str:
    """What is to be copied behind the mark; ConfigError if the answer does not begin with it or is too long."""
    answer = record.text("answer").strip()
    wanted = answer.removeprefix(mark).strip()
    if not answer.startswith(mark) or not wanted:
        raise ConfigError(f"{record.where}: answer must begin with its random string, and go on")
    if len(answer) > LONGEST_ANSWER:
        raise ConfigError(f"{record.where}: answer has {len(answer)} characters; at most {LONGEST_ANSWER} are compared")
    return wanted


def turns_of(given: Any, where: str) -> tuple[Turn, ...]:
    """Messages of text, the last of them the user's; ConfigError names the first that is none."""
    listed = parse_json(checked_text(given, where).encode(), where) if isinstance(given, str) else given
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_TURNS:
        raise ConfigError(f"{where} must be a list of 1 to {MOST_TURNS} messages, or JSON of one")
    turns = []
    for number, one in enumerate(listed):
        place = f"{where}[{number}]"
        if not isinstance(one, dict):
            raise ConfigError(f"{place} must be an object of role and content, not {shown(one)}")
        role = one.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise ConfigError(f"{place}: role must be one of {', '.join(ROLES)}")
        turns.append(Turn(ROLES[role], checked_text(one.get("content"), f"{place}: content")))
    if turns[-1].role != "user":
        raise ConfigError(f"{where} ends with the {turns[-1].role}; the last message asks, so it is the user's")
    return tuple(turns)


MARK = 12  # characters of an answer before what is to be copied
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
