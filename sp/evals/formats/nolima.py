"""NoLiMa (arXiv 2502.05167): needles that share no words with their questions, in books that the user has.

The fields of needle sets and how they are filled in are those of github.com/adobe-research/NoLiMa. Its needle sets and
code are under the Adobe Research License, for non-commercial research only: nothing of them is here, and whoever runs
this brings the files. Depths, characters and line breaks are drawn by our own generator, so single prompts differ from
theirs.
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
from sp.evals.formats.records import FileTask, Record, check_each, checked_text, register_format, shown
from sp.evals.text.filler import Sentence, haystack
from sp.json_lines import decoded

LONGEST, LONGEST_VALUE = 4096, 512
"""Characters of a template, and of what is filled into it; theirs have some hundreds, and some tens."""
MOST_ARGUMENTS, MOST_KINDS = 16, 64
SLOT = re.compile(r"\{(CHAR|\d{1,2})\}")
SENTENCE_END = re.compile(r"(?<=[.!?]) +")
TEXT, ASKED = "{haystack}", "{question}"


@register_format("nolima", "id", "needle", "questions", "tests", "task_template")
@dataclass(frozen=True)
class NolimaFile(FileTask):
    """A needle set: every question of every entry with every test, in a haystack of the length asked for.

    A system prompt stands before the text. Answers are judged by whether they hold the name, as theirs by `contains`,
    but for letter case.

    Parameters
    ----------
    haystack : str
        A text file, such as one of their ``rand_shuffle``.
    depth : float, optional
        Where the needle stands, from 0 to 1; drawn at random if left out.
    questions : str
        The kind of question, such as ``onehop``; all kinds if left out.
    """

    haystack: str = ""
    depth: float | None = None
    questions: str = ""

    licence = "NoLiMa's needle sets are licensed for non-commercial research only (Adobe Research License)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.haystack:
            raise ConfigError("format nolima needs a text to hide needles in; give one with --set haystack=book.txt")
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ConfigError(f"depth must be from 0 to 1, not {self.depth:g}")

    @cached_property
    def book(self) -> str:
        """The haystack."""
        if Path(self.haystack).exists() and not Path(self.haystack).is_file():
            raise ConfigError(f"cannot read {self.haystack}: not a file; check haystack=")
        try:
            return decoded(Path(self.haystack).read_bytes(), self.haystack)
        except OSError as error:
            raise ConfigError(f"cannot read {self.haystack}: {error.strerror}; check haystack=") from None

    @cached_property
    def asked(self) -> tuple[tuple[Record, tuple[str, ...], tuple[str, ...]], ...]:
        """Entries of the needle set with the kinds of questions and the tests that they have."""
        found = []
        for number in range(self.records.known(sys.maxsize)):
            record = self.records[number]
            kinds, tests = (tuple(_object(record, name)) for name in ("questions", "tests"))
            if len(kinds) > MOST_KINDS:
                raise ConfigError(f"{record.where}: questions has {len(kinds)} kinds; at most {MOST_KINDS} are asked")
            found.append((record, tuple(one for one in kinds if self.questions in ("", one)), tests))
        if self.questions and not any(kinds for _, kinds, _ in found):
            raise ConfigError(f"{self.path}: no entry has questions of the kind {self.questions!r}")
        return tuple(found)

    def known(self, most: int) -> int:
        """See `FileTask.known`."""
        return min(most, sum(len(kinds) * len(tests) for _, kinds, tests in self.asked))

    def check(self, most: int) -> None:
        """See `FileTask.check`."""
        if not self.book.strip():
            raise ConfigError(f"{self.haystack}: empty; give a text to hide needles in")
        begins = accumulate((len(kinds) * len(tests) for _, kinds, tests in self.asked), initial=0)
        total = sum(begin < most for begin in begins) if most else 0
        check_each(self.path, min(total, len(self.asked)), self._check_entry)

    def _check_entry(self, number: int) -> None:
        record, kinds, tests = self.asked[number]
        for kind, test in product(kinds, tests):
            _filled(record, kind, test, random.Random(0))

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; a haystack that is too short makes shorter prompts."""
        if not tokens:
            raise ConfigError("format nolima fills texts to a length; give it with --lengths")
        rng = random.Random(f"{Path(self.path).name} {Path(self.haystack).name} {self.depth} {index} {tokens}")
        filled = self.fill(index, rng)
        room = tokens - MARKUP - count(filled.question)
        needles = [filled.needle, *filled.distractor]
        depths = [rng.random() for _ in needles]
        if self.depth is not None:
            depths[0] = self.depth
        found = haystack(self.sentences(), needles, depths, room, count, rng, header=filled.head)
        return Example(
            id=f"{self.title}-{Path(self.haystack).stem}-{self.depth}-{tokens}-{index}",
            task=self.title,
            document=found.text,
            question=filled.question,
            answer_prefix="",
            answers=filled.answers,
            needles=(filled.needle,),
            match="any",
            facts={"depth": found.depths[0], **filled.facts},
            tokens=tokens,
            max_new_tokens=self.max_new_tokens or max(answer_room(32, [one], count) for one in filled.answers),
        )

    def sentences(self) -> Iterator[Sentence]:
        """The book by sentences."""
        for line in self.book.splitlines():
            parts = [one for one in SENTENCE_END.split(line.strip()) if one]
            yield from (Sentence(one, number + 1 == len(parts)) for number, one in enumerate(parts))

    def fill(self, index: int, rng: random.Random) -> Filled:
        """Question, needle and distractor of an example; ConfigError names what is wrong with its entry."""
        left = index
        for record, kinds, tests in self.asked:
            if left < len(kinds) * len(tests):
                return _filled(record, kinds[left // len(tests)], tests[left % len(tests)], rng)
            left -= len(kinds) * len(tests)
        raise ConfigError(f"{self.path} has {index - left} examples, so there is no number {index}")


@dataclass(frozen=True)
class Filled:
    """Templates with everything in its place."""

    head: str
    question: str
    needle: str
    distractor: tuple[str, ...]
    answers: tuple[str, ...]
    facts: Mapping[str, Any]


def _filled(record: Record, kind: str, test: str, rng: random.Random) -> Filled:
    where = f"{record.where}: tests[{test[:40]!r}]"
    given = _object(record, "tests")[test]
    arguments = given.get("input_args") if isinstance(given, dict) else None
    if not isinstance(arguments, list) or len(arguments) > MOST_ARGUMENTS:
        raise ConfigError(f"{where}: input_args must be a list of up to {MOST_ARGUMENTS} texts")
    slots = {str(n): _short(one, f"{where}: input_args[{n - 1}]", LONGEST_VALUE) for n, one in enumerate(arguments, 1)}
    needle = _short(record.fields.get("needle"), f"{record.where}: needle")
    if "{CHAR}" in needle:
        names = record.texts("character_set", 1024)
        slots["CHAR"] = _short(rng.choice(names), f"{record.where}: character_set", LONGEST_VALUE)
        answers: tuple[str, ...] = (slots["CHAR"],)
    else:
        answers = Record(given, where).texts("gold_answers", 32)
    template = _short(record.fields.get("task_template"), f"{record.where}: task_template")
    head, text, tail = template.partition(TEXT)
    if not text or ASKED not in tail:
        raise ConfigError(f"{record.where}: task_template must have {TEXT} and behind it {ASKED}")
    question = _fill(_object(record, "questions")[kind], slots, f"{record.where}: questions[{kind[:40]!r}]")
    system = record.fields.get("system_prompt")
    if system:
        head = f"{_short(system, f'{record.where}: system_prompt')}\n\n{head}"
    others = record.fields.get("distractors")
    distractor = others.get(kind) if isinstance(others, dict) else None
    return Filled(
        head,
        tail.replace(ASKED, question, 1).strip(),
        _fill(needle, slots, f"{record.where}: needle"),
        () if distractor is None else (_fill(distractor, slots, f"{record.where}: distractors"),),
        answers,
        {"kind": kind, "test": test[:64], **record.facts("id", "reasoning_type")},
    )


def _object(record: Record, name: str) -> dict[str, Any]:
    value = record.fields.get(name)
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{record.where}: {name} must be an object with something in it, not {shown(value)}")
    return value


def _short(value: object, where: str, longest: int = LONGEST) -> str:
    text = checked_text(value, where)
    if len(text) > longest:
        raise ConfigError(f"{where} has {len(text)} characters; at most {longest} are filled in")
    return text


def _fill(template: object, slots: Mapping[str, str], where: str) -> str:
    """A template with its slots filled in one pass, so that what is filled in is never filled again."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in slots:
            raise ConfigError(f"{where}: {match[0]} stands for nothing in this test")
        return slots[match[1]]

    return SLOT.sub(value, _short(template, where)).strip()
