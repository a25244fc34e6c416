"""OpenAI's MRCR: a long conversation, of which one of several similar replies has to be copied.

Fields and score are those of huggingface.co/datasets/openai/mrcr; its Parquet files are converted to JSON lines by
``pandas.read_parquet(path).to_json(out, orient="records", lines=True)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sp.chat import Turn
from sp.errors import ConfigError, PromptError
from sp.evals.base import Example
from sp.evals.formats.records import FileRecord, RecordTask, checked_text, register_format, type_name
from sp.json_lines import parse_json

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MOST_TURNS = 1 << 14
LONGEST_ANSWER = 1 << 15  # characters; similarity takes superlinear time, and answers of the dataset have thousands


@register_format("mrcr", "prompt", "answer", "random_string_to_prepend")
@dataclass(frozen=True)
class MrcrFile(RecordTask):
    """Records of ``prompt`` (a list of messages, or its JSON text), ``answer`` and ``random_string_to_prepend``.

    All but the last message, system messages and markup may be left out. The evidence is the reply to be copied.
    """

    def replies(self, example: Example) -> tuple[str, ...]:
        """Return the mark and the reply as one text."""
        return ("".join(example.answers),)

    def parse(self, record: FileRecord, index: int) -> Example:
        """Check the messages and split the answer into mark and reply."""
        turns = turns_of(record.fields.get("prompt"), f"{record.where}: prompt")
        mark = record.text("random_string_to_prepend")
        reply = copy_of(record, mark)
        return Example(
            id=f"{self.title}-{index}",
            task=self.title,
            document="",
            question="",
            answer_prefix="",
            answers=(mark, reply),
            needles=(reply,) if [turn.content.strip() for turn in turns].count(reply) == 1 else (),
            match="mrcr",
            facts=record.facts("n_needles", "total_messages", "n_chars"),
            turns=turns,
        )


def copy_of(record: FileRecord, mark: str) -> str:
    """Return the reply after the mark; ConfigError if the answer does not begin with the mark or is too long."""
    answer = record.text("answer").strip()
    reply = answer.removeprefix(mark).strip()
    if not answer.startswith(mark) or not reply:
        raise ConfigError(f"{record.where}: answer must be its random string followed by a reply")
    if len(answer) > LONGEST_ANSWER:
        raise ConfigError(f"{record.where}: answer has {len(answer)} characters; at most {LONGEST_ANSWER} are compared")
    return reply


def turns_of(value: Any, where: str) -> tuple[Turn, ...]:
    """Return messages of text, the last of them the user's; ConfigError names the first that is wrong."""
    messages = parse_json(checked_text(value, where).encode(), where) if isinstance(value, str) else value
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_TURNS:
        raise ConfigError(f"{where} must be a list of 1 to {MOST_TURNS} messages, or JSON of one")
    turns = []
    for number, message in enumerate(messages):
        place = f"{where}[{number}]"
        if not isinstance(message, dict):
            raise ConfigError(f"{place} must be an object of role and content, not {type_name(message)}")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise ConfigError(f"{place}: role must be one of {', '.join(ROLES)}")
        turns.append(Turn(ROLES[role], checked_text(message.get("content"), f"{place}: content")))
    if turns[-1].role != "user":
        raise ConfigError(f"{where} ends with a message of the {turns[-1].role}; the last message must be the user's")
    return tuple(turns)


MARK = 12  # characters of an answer before the reply to be copied
REQUEST = "\n\nUser:"


@register_format("mrcr_v2", "queries", "answer")
@dataclass(frozen=True)
class MrcrV2File(MrcrFile):
    """Records of ``queries`` and ``answer``; the last turn is the question, everything before it the document."""

    def parse(self, record: FileRecord, index: int) -> Example:
        """Split the queries into document and question."""
        document, mark, question = record.text("queries").strip().rpartition(REQUEST)
        if not document.strip() or not question.strip():
            raise PromptError(f"{record.where}: queries must end with a turn that begins with the line User:")
        answer = record.text("answer").strip()
        if len(answer) <= MARK:
            raise ConfigError(f"{record.where}: answer must be a random string of {MARK} characters and a reply")
        reply = copy_of(record, answer[:MARK])
        return Example(
            id=f"{self.title}-{index}",
            task=self.title,
            document=document,
            question=f"{mark.strip()}{question}",
            answer_prefix="",
            answers=(answer[:MARK], reply),
            needles=(reply,) if document.count(reply) == 1 else (),
            match="mrcr_v2",
        )
