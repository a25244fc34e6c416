"""NoLiMa (arXiv 2502.05167): needles that share no words with their questions, in books that the user provides.

The fields of needle sets and their templates are those of github.com/adobe-research/NoLiMa. Its needle sets and code
are under the Adobe Research License, for non-commercial research only: nothing of them is included here, and users
provide the files. Depths, characters and line breaks come from our own generator, so single prompts differ from the
reference's.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.evals.base import MARKUP, Count, Example, answer_room
from sp.evals.formats.records import FileRecord, FileTask, check_each, checked_text, register_format, type_name
from sp.evals.text.filler import Sentence, haystack
from sp.json_lines import decoded

LONGEST, LONGEST_VALUE = 4096, 512
"""Longest template, and longest value of a slot, in characters; those of NoLiMa have hundreds, and tens."""
MOST_ARGUMENTS, MOST_KINDS = 16, 64
SLOT = re.compile(r"\{(CHAR|\d{1,2})\}")
SENTENCE_END = re.compile(r"(?<=[.!?]) +")
TEXT, ASKED = "{haystack}", "{question}"


@register_format("nolima", "id", "needle", "questions", "tests", "task_template")
@dataclass(frozen=True)
class NolimaFile(FileTask):
    """A needle set: every question of every entry with every test, in a haystack of the requested length.

    A system prompt comes before the text. An answer is right if it contains the name, as with the reference's
    `contains`, but in any letter case.

    Parameters
    ----------
    haystack : str
        A text file, such as one of the reference's ``rand_shuffle``.
    depth : float, optional
        Position of the needle, from 0 to 1; random by default.
    questions : str
        Kind of question, such as ``onehop``; all kinds by default.
    """

    haystack: str = ""
    depth: float | None = None
    questions: str = ""

    licence = "NoLiMa's needle sets are licensed for non-commercial research only (Adobe Research License)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.haystack:
            raise ConfigError("format nolima needs a text to hide needles in; pass one with --set haystack=book.txt")
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ConfigError(f"depth must be from 0 to 1, not {self.depth:g}")

    @cached_property
    def book(self) -> str:
        """Text of the haystack."""
        if Path(self.haystack).exists() and not Path(self.haystack).is_file():
            raise ConfigError(f"cannot read {self.haystack}: not a file; check haystack=")
        try:
            return decoded(Path(self.haystack).read_bytes(), self.haystack)
        except OSError as error:
            raise ConfigError(f"cannot read {self.haystack}: {error.strerror}; check haystack=") from None

    @cached_property
    def entries(self) -> tuple[tuple[FileRecord, tuple[str, ...], tuple[str, ...]], ...]:
        """Entries of the needle set, with their kinds of questions and their tests."""
        entries = []
        for number in range(self.records.known(sys.maxsize)):
            record = self.records[number]
            kinds, tests = (tuple(_object(record, name)) for name in ("questions", "tests"))
            if len(kinds) > MOST_KINDS:
                raise ConfigError(f"{record.where}: questions has {len(kinds)} kinds; at most {MOST_KINDS} are allowed")
            entries.append((record, tuple(kind for kind in kinds if self.questions in ("", kind)), tests))
        if self.questions and not any(kinds for _, kinds, _ in entries):
            raise ConfigError(f"{self.path}: no entry has questions of the kind {self.questions!r}")
        return tuple(entries)

    def known(self, most: int) -> int:
        """Return the number of examples, counted up to `most`."""
        return min(most, sum(len(kinds) * len(tests) for _, kinds, tests in self.entries))

    def check(self, most: int) -> None:
        """Check the entries of up to `most` examples."""
        if not self.book.strip():
            raise ConfigError(f"{self.haystack}: empty; pass a text to hide needles in")
        begins = accumulate((len(kinds) * len(tests) for _, kinds, tests in self.entries), initial=0)
        total = sum(begin < most for begin in begins) if most else 0
        check_each(self.path, min(total, len(self.entries)), self._check_entry)

    def _check_entry(self, number: int) -> None:
        record, kinds, tests = self.entries[number]
        for kind, test in product(kinds, tests):
            _filled(record, kind, test, random.Random(0))

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Put a needle into the haystack; a haystack that is too short makes shorter prompts."""
        if not tokens:
            raise ConfigError("format nolima makes prompts of a given length; pass it with --lengths")
        rng = random.Random(f"{Path(self.path).name} {Path(self.haystack).name} {self.depth} {index} {tokens}")
        filled = self.fill(index, rng)
        room = tokens - MARKUP - count(filled.question)
        needles = [filled.needle, *filled.distractor]
        depths = [rng.random() for _ in needles]
        if self.depth is not None:
            depths[0] = self.depth
        document = haystack(self.sentences(), needles, depths, room, count, rng, header=filled.head)
        return Example(
            id=f"{self.title}-{Path(self.haystack).stem}-{self.depth}-{tokens}-{index}",
            task=self.title,
            document=document.text,
            question=filled.question,
            answer_prefix="",
            answers=filled.answers,
            needles=(filled.needle,),
            match="any",
            facts={"depth": document.depths[0], **filled.facts},
            tokens=tokens,
            max_new_tokens=self.max_new_tokens or max(answer_room(32, [answer], count) for answer in filled.answers),
        )

    def sentences(self) -> Iterator[Sentence]:
        """Yield the sentences of the haystack."""
        for line in self.book.splitlines():
            parts = [part for part in SENTENCE_END.split(line.strip()) if part]
            yield from (Sentence(part, number + 1 == len(parts)) for number, part in enumerate(parts))

    def fill(self, index: int, rng: random.Random) -> FilledTemplate:
        """Return question, needle and distractor of an example; ConfigError if its entry is wrong."""
        remaining = index
        for record, kinds, tests in self.entries:
            if remaining < len(kinds) * len(tests):
                return _filled(record, kinds[remaining // len(tests)], tests[remaining % len(tests)], rng)
            remaining -= len(kinds) * len(tests)
        raise ConfigError(f"{self.path} has {index - remaining} examples, so there is no number {index}")


@dataclass(frozen=True)
class FilledTemplate:
    """Templates of an example with their slots filled."""

    head: str
    question: str
    needle: str
    distractor: tuple[str, ...]
    answers: tuple[str, ...]
    facts: Mapping[str, Any]


def _filled(record: FileRecord, kind: str, test: str, rng: random.Random) -> FilledTemplate:
    where = f"{record.where}: tests[{test[:40]!r}]"
    fields = _object(record, "tests")[test]
    arguments = fields.get("input_args") if isinstance(fields, dict) else None
    if not isinstance(arguments, list) or len(arguments) > MOST_ARGUMENTS:
        raise ConfigError(f"{where}: input_args must be a list of up to {MOST_ARGUMENTS} texts")
    slots = {
        str(n): _short(argument, f"{where}: input_args[{n - 1}]", LONGEST_VALUE)
        for n, argument in enumerate(arguments, 1)
    }
    needle = _short(record.fields.get("needle"), f"{record.where}: needle")
    if "{CHAR}" in needle:
        names = record.texts("character_set", 1024)
        slots["CHAR"] = _short(rng.choice(names), f"{record.where}: character_set", LONGEST_VALUE)
        answers: tuple[str, ...] = (slots["CHAR"],)
    else:
        answers = FileRecord(fields, where).texts("gold_answers", 32)
    template = _short(record.fields.get("task_template"), f"{record.where}: task_template")
    head, text, tail = template.partition(TEXT)
    if not text or ASKED not in tail:
        raise ConfigError(f"{record.where}: task_template must have {TEXT} and after it {ASKED}")
    question = _fill(_object(record, "questions")[kind], slots, f"{record.where}: questions[{kind[:40]!r}]")
    system = record.fields.get("system_prompt")
    if system:
        head = f"{_short(system, f'{record.where}: system_prompt')}\n\n{head}"
    others = record.fields.get("distractors")
    distractor = others.get(kind) if isinstance(others, dict) else None
    return FilledTemplate(
        head,
        tail.replace(ASKED, question, 1).strip(),
        _fill(needle, slots, f"{record.where}: needle"),
        () if distractor is None else (_fill(distractor, slots, f"{record.where}: distractors"),),
        answers,
        {"kind": kind, "test": test[:64], **record.facts("id", "reasoning_type")},
    )


def _object(record: FileRecord, name: str) -> dict[str, Any]:
    value = record.fields.get(name)
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{record.where}: {name} must be an object that is not empty, not {type_name(value)}")
    return value


def _short(value: object, where: str, longest: int = LONGEST) -> str:
    text = checked_text(value, where)
    if len(text) > longest:
        raise ConfigError(f"{where} has {len(text)} characters; at most {longest} are allowed")
    return text


def _fill(template: object, slots: Mapping[str, str], where: str) -> str:
    """Fill the slots of a template in one pass, so that slots in values are not filled."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in slots:
            raise ConfigError(f"{where}: {match[0]} has no value in this test")
        return slots[match[1]]

    return SLOT.sub(value, _short(template, where)).strip()
