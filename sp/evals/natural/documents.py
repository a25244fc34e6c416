"""Documents that the questions are about: built from pinned archives into the cache, checked whenever they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from sp.errors import ConfigError
from sp.folders import cache_folder
from sp.hub.fetch import Steps, download, take_member
from sp.json_lines import read_object
from sp.trace import write_atomic

LARGEST = 1 << 26
"""Bytes of a member of an archive."""


@dataclass(frozen=True)
class Archive:
    """A wheel or a source distribution.

    `name`: of its file; `requirement`: package and version, as in ``"click==8.5.1"``; `size`: bytes of the download.
    """

    name: str
    requirement: str
    sha256: str
    size: int

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel; else a source distribution."""
        return self.name.endswith(".whl")


def fetch_members(archive: Archive, members: Sequence[str], watch: Callable[[int], None]) -> list[bytes]:
    """Download an archive, read some of its files, and leave nothing on disk.

    `watch` is called as by `sp.hub.fetch.download`; FetchError as there, and as by `sp.hub.fetch.take_member`.
    """
    with TemporaryDirectory(prefix="sp-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        path = download(archive.requirement, folder, watch, sha256=archive.sha256, source=not archive.is_wheel)
        place, found = folder / "member", []
        for member in members:
            take_member(path, member, place, LARGEST)
            found.append(place.read_bytes())
        return found


MANIFEST = Path(__file__).with_name("documents.json")


@dataclass(frozen=True)
class Document:
    """A file of an archive, line ends made ``\\n``, from its beginning to a line's end.

    `kind`: manual, specification, legal, narrative, code, changelog or table; `member`: path inside the archive; of a
    source distribution inside the package's folder; `sha256`: of the document, in UTF-8; `size`: bytes of the document;
    `limit`: cut behind the last line that ends within so many bytes; 0 for nowhere.
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
    """A text up to the last line that ends within `limit` bytes; all of it where that is 0 or the text is shorter.

    Examples
    --------
    >>> cut(b"one\\ntwo\\nthree\\n", 9)
    b'one\\ntwo\\n'
    """
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
    """Build documents into the cache, each in one piece; every archive is downloaded once and not kept.

    `progress`: called with bytes that came since the last call; they add up to the sizes of the archives.

    Raises
    ------
    FetchError
        As `fetch_members`.
    ConfigError
        A document is another than was pinned. What was built before stays.
    """
    groups: dict[Archive, list[Document]] = {}
    for document in documents:
        groups.setdefault(document.archive, []).append(document)
    for archive, wanted in groups.items():
        steps = Steps(progress, archive.size)
        members = fetch_members(archive, [document.member for document in wanted], steps.reach)
        for document, member in zip(wanted, members, strict=True):
            write_atomic(document.path, document.build(member))
        steps.reach(archive.size)


def read_document(document: Document) -> str:
    """Text of a document from the cache.

    Raises
    ------
    ConfigError
        If it is not there, or not whole.
    """
    try:
        raw = document.path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"document {document.name} is not in {documents_folder()}; add --fetch to get it") from None
    except OSError as error:
        raise ConfigError(f"cannot read {document.path}: {error.strerror}") from None
    if not document.is_whole(raw):
        raise ConfigError(f"{document.path} was changed; delete it and add --fetch to get it again")
    return raw.decode()
