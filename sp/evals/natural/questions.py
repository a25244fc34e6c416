"""Questions about documents, each with its answers and the bytes of its evidence: those that ship, and users' own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sp.config import check_fields
from sp.errors import ConfigError, unknown_name
from sp.evals.base import Count, Example, Task, register_task
from sp.evals.formats.records import Record, Records
from sp.evals.matches import MATCHES
from sp.folders import cache_folder
from sp.hub.fetch import ByteProgress, download, take_member
from sp.json_lines import read_object
from sp.trace import write_atomic

LARGEST = 1 << 26  # bytes of a member of an archive


@dataclass(frozen=True)
class Archive:
    """A wheel or a source distribution. `name`: of its file; `requirement`: package and version, as in
    ``"click==8.5.1"``; `size`: bytes of the download."""

    name: str
    requirement: str
    sha256: str
    size: int


def fetch_members(archive: Archive, members: Sequence[str], watch: Callable[[int], None]) -> list[bytes]:
    """Download an archive, read some of its files, and leave nothing on disk. `watch` is called as by
    `sp.hub.fetch.download`; FetchError as there, and as by `sp.hub.fetch.take_member`."""
    with TemporaryDirectory(prefix="sp-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        path = download(
            archive.requirement, folder, watch, sha256=archive.sha256, source=not archive.name.endswith(".whl")
        )
        place, found = folder / "member", []
        for member in members:
            take_member(path, member, place, LARGEST)
            found.append(place.read_bytes())
        return found


MANIFEST = Path(__file__).with_name("documents.json")


@dataclass(frozen=True)
class Document:
    """A file of an archive, line ends made LF, cut behind the last line that ends within `limit` bytes, 0 for nowhere.
    `kind`: manual, specification, legal, narrative, code, changelog or table; `member`: path inside the archive, of a
    source distribution inside its folder; `sha256`, `size`: of the document in UTF-8."""

    name: str
    kind: str
    archive: Archive
    member: str
    sha256: str
    size: int
    limit: int = 0

    @property
    def path(self) -> Path:
        """Where the cache has it."""
        return documents_folder() / f"{self.name}.txt"

    def build(self, member: bytes) -> bytes:
        """The document of what the archive holds; ConfigError if it is another than was pinned."""
        made = cut(member.replace(b"\r\n", b"\n"), self.limit)
        if not self.is_whole(made):
            raise ConfigError(f"document {self.name} of {self.archive.name} has another SHA-256 than was pinned")
        return made

    def is_whole(self, text: bytes) -> bool:
        """Whether these are its bytes."""
        return sha256(text).hexdigest() == self.sha256


def cut(text: bytes, limit: int) -> bytes:
    """A text up to the last line that ends within `limit` bytes; all of it where that is 0 or the text is shorter."""
    return text if not limit or len(text) <= limit else text[: text.rfind(b"\n", 0, limit) + 1]


def documents_folder() -> Path:
    """``natural`` in ``SP_CACHE_DIR``, or in ``sp`` in the user's cache folder."""
    return cache_folder() / "natural"


@cache
def known_documents() -> Mapping[str, Document]:
    """Every document by name, in the order of the manifest."""
    manifest = read_object(MANIFEST, "the list of documents")
    archives = {name: Archive(name, **facts) for name, facts in manifest["archives"].items()}
    return {
        name: Document(name, **{**facts, "archive": archives[facts["archive"]]})
        for name, facts in manifest["documents"].items()
    }


def missing_documents(names: Iterable[str]) -> list[Document]:
    """Those of some documents that the cache does not have."""
    return [document for document in map(known_documents().__getitem__, names) if not document.path.is_file()]


def fetch(documents: Iterable[Document], progress: Callable[[int], None] = lambda done: None) -> None:
    """Build documents into the cache, each in one piece; every archive is downloaded once and not kept. FetchError as
    `fetch_members`; ConfigError for another document than was pinned. What was built before stays."""
    groups: dict[Archive, list[Document]] = {}
    for document in documents:
        groups.setdefault(document.archive, []).append(document)
    for archive, wanted in groups.items():
        steps = ByteProgress(progress, archive.size)
        members = fetch_members(archive, [document.member for document in wanted], steps.reach)
        for document, member in zip(wanted, members, strict=True):
            write_atomic(document.path, document.build(member))
        steps.reach(archive.size)


def read_document(document: Document) -> str:
    """Text of a document from the cache. ConfigError if it is not there, or not whole."""
    try:
        raw = document.path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"document {document.name} is not in {documents_folder()}; add --fetch to get it") from None
    except OSError as error:
        raise ConfigError(f"cannot read {document.path}: {error.strerror}") from None
    if not document.is_whole(raw):
        raise ConfigError(f"{document.path} was changed; delete it and add --fetch to get it again")
    return raw.decode()


HARD = 0.34  # largest overlap of a question that counts as hard
WORD = re.compile(r"[a-z0-9]+")
_STOP = (
    "a about after again all also an and any are as at be because been before being between both but by can cannot "
    "could did do does doing down during each even ever few for from further get had has have having he her here hers "
    "him his how i if in into is it its itself just let like made make many may me might more most much must my no "
    "nor not now of off on once one only or other our out over own rather s same shall she should so some still such "
    "t than that the their them then there these they this those through to too under until up upon us use used using "
    "very was we were what when where which while who whom whose why will with would yes yet you your"
)
STOP_WORDS = frozenset(_STOP.split())
PLURALS = (("ies", "y"), ("ss", "ss"), ("s", ""))
ENDINGS = (("ied", "y"), ("ingly", ""), ("edly", ""), ("ing", ""), ("ed", ""), ("ly", ""))
SILENT = (("e", ""),)
STEM = 3  # fewest letters that are left of a word whose suffix is taken off


def content_words(text: str) -> frozenset[str]:
    """Words of a text in lower case, stop words left out, common suffixes taken off."""
    return frozenset(stem(word) for word in WORD.findall(text.lower()) if word not in STOP_WORDS)


def stem(word: str) -> str:
    """A word without its plural, common endings and a silent e; of each group the first that fits is taken off.

    >>> [stem(word) for word in ("copies", "copied", "copying", "settings", "setting", "used", "class", "is")]
    ['copy', 'copy', 'copy', 'sett', 'sett', 'used', 'class', 'is']
    """
    for group in (PLURALS, ENDINGS, SILENT):
        for suffix, instead in group:
            left = word.removesuffix(suffix) + instead
            if word.endswith(suffix) and len(left) >= STEM:
                word = left
                break
    return word


def overlap(question: str, evidence: str) -> float:
    """Share of the content words of a question that its evidence has too; 0 for a question without any."""
    asked = content_words(question)
    return len(asked & content_words(evidence)) / len(asked) if asked else 0.0


QUESTIONS = Path(__file__).with_name("questions.jsonl")
MATCH = "any_words"  # how answers are judged where a question does not say
MOST = 32  # answers, places and alternatives of a question
LONGEST_ANSWER = 48  # tokens
Places = tuple[tuple[int, int], ...]  # byte ranges ``[start, end)`` of a document that are needed together


@dataclass(frozen=True)
class Question:
    """A question with known evidence. `evidence`: of that, and what else would answer the question, one must be kept
    whole; `document`, `text`: name, and all of it; `text_kind`, `kind`: of document (manual, ...) and question (why,
    ...)."""

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
    """Questions of a user's file, about documents whose paths are relative to it. ConfigError: the file or a document
    cannot be read, or a question is not as `read_questions` has it; all are checked."""
    texts: dict[str, str] = {}

    def text(name: str) -> str:
        if name not in texts:
            texts[name] = (path.parent / name).read_bytes().decode()
        return texts[name]

    return list(read_questions(path, text, lambda name: Path(name).suffix.removeprefix(".")))


def read_questions(path: Path, text: Callable[[str], str], kind: Callable[[str], str]) -> Iterator[Question]:
    """Questions of a file, one an object of JSON lines. Fields: ``document``, ``question``, ``answers`` (a text or a
    list of them), ``evidence`` (a list of places that are all needed, each a pair ``[start, end]`` of bytes or a text
    that stands in the document once), and if they like ``alternatives`` (a list of such lists), ``quotes`` (what stands
    at the places of ``evidence``), ``id``, ``kind`` and ``match``. `text`, `kind`: text and kind of a document by its
    name. ConfigError: what is wrong, and in which line."""
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
    is_pair = isinstance(given, Sequence) and len(given) == 2 and all(type(edge) is int for edge in given)
    if not is_pair or not 0 <= given[0] < given[1] <= len(raw):
        raise ConfigError(f"{where} must be a text, or a pair [start, end] of bytes from 0 to {len(raw)}")
    start, end = given
    if any(edge < len(raw) and raw[edge] & 0xC0 == 0x80 for edge in (start, end)):
        raise ConfigError(f"{where} begins or ends inside a character")
    return start, end


BYTES = 4  # a token, on average, before any vocabulary is asked


@register_task("natural")
@dataclass(frozen=True)
class NaturalTask(Task):
    """Questions by hand about real documents, each as long as it is; see `sp eval natural`.

    Parameters
    ----------
    questions : str
        File of own questions, as `sp.evals.natural.questions.own_questions` reads it; those that ship if left out,
        whose documents must be in the cache.
    answers : bool
        In a sweep, also let the target answer, in full and in every cell.
    """

    questions: str = ""
    answers: bool = False

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")

    @cached_property
    def asked(self) -> list[Question]:
        """All questions; ConfigError for the first that is damaged, or without their documents."""
        return own_questions(Path(self.questions)) if self.questions else known_questions()

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; the document is as long as it is."""
        if index >= len(self.asked):
            raise ConfigError(f"example {index} is asked for, and task natural has {len(self.asked)} questions")
        return self.asked[index].example()

    def length(self, first: int, count: int) -> int:
        """About how many tokens the documents of some questions have, on average, to tell times by."""
        sizes = [len(one.raw) for one in self.asked[first : first + count]]
        return max(1, sum(sizes) // max(1, BYTES * len(sizes)))

    def digest(self, first: int, count: int) -> str:
        """Changes with whatever results of these questions depend on, their documents included."""
        return sha256("".join(one.digest for one in self.asked[first : first + count]).encode()).hexdigest()
