"""Questions about real documents, with answers and the bytes of their evidence: those that ship, and users' own."""

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
from sp.evals.formats.records import FileRecord, Records
from sp.evals.matches import MATCHES
from sp.folders import cache_folder
from sp.hub.fetch import ByteProgress, download, take_member
from sp.json_lines import read_object
from sp.trace import write_atomic

LARGEST = 1 << 26  # largest member of an archive in bytes


@dataclass(frozen=True)
class Archive:
    """A wheel or a source distribution.

    Attributes
    ----------
    name : str
        File name.
    requirement : str
        Package and version, as in ``"click==8.5.1"``.
    sha256 : str
        Hash of the file.
    size : int
        Bytes of the download.
    """

    name: str
    requirement: str
    sha256: str
    size: int


def fetch_members(archive: Archive, members: Sequence[str], watch: Callable[[int], None]) -> list[bytes]:
    """Download an archive to a temporary folder and return the contents of some of its files.

    `watch` is called as by `sp.hub.fetch.download`. FetchError: see `sp.hub.fetch.download` and `take_member`.
    """
    with TemporaryDirectory(prefix="sp-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        path = download(
            archive.requirement, folder, watch, sha256=archive.sha256, source=not archive.name.endswith(".whl")
        )
        place, contents = folder / "member", []
        for member in members:
            take_member(path, member, place, LARGEST)
            contents.append(place.read_bytes())
        return contents


MANIFEST = Path(__file__).with_name("documents.json")


@dataclass(frozen=True)
class NaturalDocument:
    """A file of an archive with LF as line end, truncated after the last line within `limit` bytes; 0 for no limit.

    Attributes
    ----------
    kind : str
        Kind of text: manual, specification, legal, narrative, code, changelog or table.
    member : str
        Path inside the archive; in a source distribution, inside its folder.
    sha256, size : str, int
        Hash and number of bytes of the document in UTF-8.
    """

    name: str
    kind: str
    archive: Archive
    member: str
    sha256: str
    size: int
    limit: int = 0

    @property
    def path(self) -> Path:
        """Path in the cache."""
        return documents_folder() / f"{self.name}.txt"

    def build(self, member: bytes) -> bytes:
        """Return the document from an archive's member; ConfigError if its hash is not the pinned one."""
        text = truncate(member.replace(b"\r\n", b"\n"), self.limit)
        if not self.is_whole(text):
            raise ConfigError(f"document {self.name} of {self.archive.name} does not have the pinned SHA-256")
        return text

    def is_whole(self, text: bytes) -> bool:
        """Return True if these are the bytes of the document."""
        return sha256(text).hexdigest() == self.sha256


def truncate(text: bytes, limit: int) -> bytes:
    """Return a text up to the last line that ends within `limit` bytes; all of it if 0 or if the text is shorter."""
    return text if not limit or len(text) <= limit else text[: text.rfind(b"\n", 0, limit) + 1]


def documents_folder() -> Path:
    """Return the folder ``natural`` in ``SP_CACHE_DIR``, or in ``sp`` in the user's cache folder."""
    return cache_folder() / "natural"


@cache
def known_documents() -> Mapping[str, NaturalDocument]:
    """Return every document by name, in the order of the manifest."""
    manifest = read_object(MANIFEST, "the list of documents")
    archives = {name: Archive(name, **facts) for name, facts in manifest["archives"].items()}
    return {
        name: NaturalDocument(name, **{**facts, "archive": archives[facts["archive"]]})
        for name, facts in manifest["documents"].items()
    }


def missing_documents(names: Iterable[str]) -> list[NaturalDocument]:
    """Return the documents of some names that are not in the cache."""
    return [document for document in map(known_documents().__getitem__, names) if not document.path.is_file()]


def fetch(documents: Iterable[NaturalDocument], progress: Callable[[int], None] = lambda done: None) -> None:
    """Download documents into the cache, each atomically; every archive is downloaded once and then deleted.

    FetchError: see `fetch_members`. ConfigError: a document does not have the pinned hash. Documents before it stay.
    """
    groups: dict[Archive, list[NaturalDocument]] = {}
    for document in documents:
        groups.setdefault(document.archive, []).append(document)
    for archive, needed in groups.items():
        steps = ByteProgress(progress, archive.size)
        members = fetch_members(archive, [document.member for document in needed], steps.reach)
        for document, member in zip(needed, members, strict=True):
            write_atomic(document.path, document.build(member))
        steps.reach(archive.size)


def read_document(document: NaturalDocument) -> str:
    """Return the text of a document from the cache; ConfigError if it is missing or was changed."""
    try:
        raw = document.path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"document {document.name} is not in {documents_folder()}; add --fetch to get it") from None
    except OSError as error:
        raise ConfigError(f"cannot read {document.path}: {error.strerror}") from None
    if not document.is_whole(raw):
        raise ConfigError(f"{document.path} was changed; delete it and add --fetch to get it again")
    return raw.decode()


HARD = 0.34  # largest overlap of hard questions
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
STEM = 3  # fewest letters of a word after its suffix is removed


def content_words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, without stop words and common suffixes."""
    return frozenset(stem(word) for word in WORD.findall(text.lower()) if word not in STOP_WORDS)


def stem(word: str) -> str:
    """Return a word without its plural, common endings and a silent e, the first that applies of each group.

    >>> [stem(word) for word in ("copies", "copied", "copying", "settings", "setting", "used", "class", "is")]
    ['copy', 'copy', 'copy', 'sett', 'sett', 'used', 'class', 'is']
    """
    for group in (PLURALS, ENDINGS, SILENT):
        for suffix, instead in group:
            shortened = word.removesuffix(suffix) + instead
            if word.endswith(suffix) and len(shortened) >= STEM:
                word = shortened
                break
    return word


def overlap(question: str, evidence: str) -> float:
    """Return the share of a question's content words that are in its evidence; 0 for a question without any."""
    words = content_words(question)
    return len(words & content_words(evidence)) / len(words) if words else 0.0


QUESTIONS = Path(__file__).with_name("questions.jsonl")
MATCH = "any_words"  # default method of scoring answers
MOST = 32  # answers, places and alternatives of a question
LONGEST_ANSWER = 48  # tokens
Places = tuple[tuple[int, int], ...]  # byte ranges ``[start, end)`` of a document that are needed together


@dataclass(frozen=True)
class NaturalQuestion:
    """A question with known evidence.

    Attributes
    ----------
    evidence : tuple of places
        The evidence and alternatives to it, one of which must be selected whole.
    document, text : str
        Name and text of the document.
    text_kind, kind : str
        Kind of the document (manual, ...) and of the question (why, ...).
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
        """Share of the question's content words in its evidence; the largest over the alternatives."""
        return max(overlap(self.question, " ".join(self.quotes(places))) for places in self.evidence)

    @property
    def hard(self) -> bool:
        """True if few words of the question are in its evidence."""
        return self.overlap <= HARD

    @property
    def depth(self) -> float:
        """Start of the evidence's first place in the document, from 0 to 1."""
        return self.evidence[0][0][0] / len(self.raw)

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a result depends on."""
        facts = repr((self.question, self.answers, self.match, self.evidence)).encode()
        return sha256(facts + sha256(self.raw).digest()).hexdigest()[:12]

    def quotes(self, places: Places) -> list[str]:
        """Return the text of each place."""
        return [self.raw[start:end].decode() for start, end in places]

    def example(self) -> Example:
        """Return the question as an example, with its first evidence as needles."""
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


def known_questions() -> list[NaturalQuestion]:
    """Return the questions that ship; ConfigError unless all documents are in the cache, unchanged."""
    documents = known_documents()
    if missing := missing_documents(documents):
        size = sum({document.archive: document.archive.size for document in missing}.values())
        raise ConfigError(
            f"{len(missing)} of {len(documents)} documents are not in {missing[0].path.parent}; run sp eval natural "
            f"--fetch to get them (downloads of {size / 1e6:.0f} MB through pip)"
        )
    texts = {name: read_document(document) for name, document in documents.items()}
    kinds = {name: document.kind for name, document in documents.items()}
    return list(read_questions(QUESTIONS, texts.__getitem__, kinds.__getitem__))


def own_questions(path: Path) -> list[NaturalQuestion]:
    """Return all questions of a user's file, about documents whose paths are relative to it.

    ConfigError: the file or a document cannot be read, or a question is not in the format of `read_questions`.
    """
    texts: dict[str, str] = {}

    def text(name: str) -> str:
        if name not in texts:
            texts[name] = (path.parent / name).read_bytes().decode()
        return texts[name]

    return list(read_questions(path, text, lambda name: Path(name).suffix.removeprefix(".")))


def read_questions(path: Path, text: Callable[[str], str], kind: Callable[[str], str]) -> Iterator[NaturalQuestion]:
    """Yield the questions of a file, one object of JSON lines each.

    Fields are ``document``, ``question``, ``answers`` (a text or a list of texts), ``evidence`` (a list of places that
    are all needed, each a pair ``[start, end]`` of bytes or a text that occurs in the document once), and optionally
    ``alternatives`` (a list of such lists), ``quotes`` (the texts at the places of ``evidence``), ``id``, ``kind`` and
    ``match``. `text` and `kind` return text and kind of a document by its name. ConfigError, with the line: a question
    is wrong.
    """
    records = Records(path)
    seen: set[str] = set()
    for index in range(records.known(sys.maxsize)):
        record = records[index]
        question = _question(record, index, text, kind)
        if question.id in seen:
            raise ConfigError(f"{record.where}: two questions have the id {question.id!r}; rename one")
        seen.add(question.id)
        yield question


def _question(
    record: FileRecord, index: int, text: Callable[[str], str], kind: Callable[[str], str]
) -> NaturalQuestion:
    name = record.text("document")
    try:
        document = text(name)
    except OSError as error:
        raise ConfigError(f"{record.where}: cannot read document {name}: {error.strerror}") from None
    except KeyError:
        raise ConfigError(f"{record.where}: there is no document {name}") from None
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
    question = NaturalQuestion(
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
    if quotes is not None and quotes != question.quotes(evidence):
        raise ConfigError(f"{record.where}: quotes differ from the texts at the places of the evidence")
    return question


def _places(value: Any, raw: bytes, where: str) -> Places:
    """Return byte ranges of places; ConfigError unless all are in the document and at character boundaries."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST:
        raise ConfigError(f"{where} must be a list of 1 to {MOST} places")
    return tuple(_place(place, raw, f"{where}[{number}]") for number, place in enumerate(value))


def _place(value: Any, raw: bytes, where: str) -> tuple[int, int]:
    if isinstance(value, str) and value.strip():
        quote = value.encode(errors="surrogatepass")
        start = raw.find(quote)
        if start < 0 or raw.find(quote, start + 1) >= 0:
            raise ConfigError(f"{where} must occur in the document exactly once; otherwise write [start, end]")
        return start, start + len(quote)
    is_pair = isinstance(value, Sequence) and len(value) == 2 and all(type(edge) is int for edge in value)
    if not is_pair or not 0 <= value[0] < value[1] <= len(raw):
        raise ConfigError(f"{where} must be a text, or a pair [start, end] of bytes from 0 to {len(raw)}")
    start, end = value
    if any(edge < len(raw) and raw[edge] & 0xC0 == 0x80 for edge in (start, end)):  # a continuation byte of UTF-8
        raise ConfigError(f"{where} begins or ends inside a character")
    return start, end


BYTES = 4  # bytes of a token on average, an estimate for any vocabulary


@register_task("natural")
@dataclass(frozen=True)
class NaturalTask(Task):
    """Hand-written questions about whole real documents; see `sp eval natural`.

    Parameters
    ----------
    questions : str
        File of questions in the format of `sp.evals.natural.questions.read_questions`; by default the questions that
        ship, whose documents must be in the cache.
    answers : bool
        In a sweep, also let the target answer, after a full prefill and in every cell.
    """

    questions: str = ""
    answers: bool = False

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")

    @cached_property
    def all_questions(self) -> list[NaturalQuestion]:
        """All questions; ConfigError for the first that is wrong, or if documents are missing."""
        return own_questions(Path(self.questions)) if self.questions else known_questions()

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Return a question's example; `tokens` is ignored, because documents are whole."""
        if index >= len(self.all_questions):
            raise ConfigError(f"task natural has {len(self.all_questions)} questions, so there is no example {index}")
        return self.all_questions[index].example()

    def length(self, first: int, count: int) -> int:
        """Estimate the mean number of tokens of some questions' documents, to predict times."""
        sizes = [len(question.raw) for question in self.all_questions[first : first + count]]
        return max(1, sum(sizes) // max(1, BYTES * len(sizes)))

    def digest(self, first: int, count: int) -> str:
        """Return a hash of everything that results of some questions depend on, their documents included."""
        return sha256(
            "".join(question.digest for question in self.all_questions[first : first + count]).encode()
        ).hexdigest()
