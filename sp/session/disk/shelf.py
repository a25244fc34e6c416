"""Shelf: a folder of conversations that outlive the process, written behind the answers and within a bound."""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sp.arrays import Ints
from sp.errors import ConfigError, SpError, plain
from sp.prompt.spans import same_start
from sp.session.device_memory import format_bytes
from sp.session.disk.records import Array, DamagedError, Record, append, records
from sp.session.disk.written import Pieces, Written

ENDING, PART = ".sp-session", ".part"
NAME = 16  # bytes of the name of a file, at random
SLACK = 64 << 20  # bytes of a file that may count no more, whatever it holds; of more a file has half at most
MOST_RECORDS = 64  # of a file before it is written anew


class TooLargeError(SpError):
    """A conversation takes more than all files may."""


@dataclass(eq=False)
class Book:
    """A conversation on the shelf, as it was last written. `key`: of the models and options that it is of; `whole`:
    tokens of its last prompt up to the end of the last message; `gone`: its file is no more.
    """

    path: Path
    key: str = ""
    pair: str = ""
    whole: int = 0
    transcript: Ints | None = None
    last: Record | None = None
    size: int = 0
    counts: int = 0  # bytes of the file that are not written over by later ones
    stamp: float = 0.0
    gone: bool = False


class Shelf:
    """A folder of conversations, for one process at a time.

    A conversation is a file to which each turn adds what is new. It is written by a thread of its own, and one that was
    killed meanwhile leaves the turn before. Files of other models stay; what cannot be read is removed, and told.

    Parameters
    ----------
    folder : path
        Made if it is not there, for its owner alone.
    most : int
        Bytes of all files; those written longest ago go first.
    pair : str
        What the models are, see `sp.session.store.lasting`.
    tell : callable
        Is given a line for what should be known; threads of their own call it.

    Raises
    ------
    ConfigError
        Another process uses the folder, or it cannot be written to.
    """

    def __init__(self, folder: str | Path, most: int, pair: str, tell: Callable[[str], None]) -> None:
        self.folder, self.most, self.pair, self._tell = Path(folder), most, pair, tell
        self.on_idle: Callable[[], None] | None = None
        """Called by the thread that writes, whenever it has nothing left to do."""
        self._books: list[Book] = []
        self._changed, self._waiting = threading.Lock(), list[tuple[Book, Future[None]]]()
        self._told = ""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{plain(str(folder))}: {error.strerror}; name a folder that can be written to") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            used = "keeps the sessions of another server; name another folder, or end that"
            raise ConfigError(f"{plain(str(folder))} {used}") from None
        self._find()
        self._writer = ThreadPoolExecutor(1, "sp-sessions")

    def __len__(self) -> int:
        """Files."""
        with self._changed:
            return len(self._books)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        with self._changed:
            return sum(each.size for each in self._books)

    @property
    def busy(self) -> bool:
        """Whether something is still to be written."""
        return any(not work.done() for _, work in self._waiting)

    def best(self, key: str, ids: Ints, used: Container[Book]) -> tuple[Book | None, int]:
        """The conversation of a key, but none of those in use, that shares most first tokens with a prompt, and how
        many these are; one at least is left to be read.
        """
        with self._changed:
            found = [(each, each.transcript) for each in self._books if each.key == key and each not in used]
        shared = [(each, same_start(known, ids)) for each, known in found if known is not None]
        book, count = max(shared, key=lambda one: one[1], default=(None, 0))
        return book, min(count, len(ids) - 1)

    def put(self, book: Book | None, written: Written, key: str, whole: int) -> Book:
        """Have something written: behind what its book has, or without a book as a new file; returns at once."""
        known, anew = book or Book(self.folder / f"{secrets.token_hex(NAME)}{ENDING}"), book is None
        facts = {**written.facts, "pair": self.pair, "key": key, "whole": whole}
        work = self._writer.submit(self._write, known, Written(facts, written.arrays), anew)
        self._waiting = [*(each for each in self._waiting if not each[1].done()), (known, work)]
        work.add_done_callback(self._rest)
        return known

    def read(self, book: Book) -> tuple[Mapping[str, Any], dict[str, Array]] | None:
        """Facts and arrays of all that a conversation held. Where its last turns are damaged, of that before; None if
        nothing can be read, or was since thrown away.
        """
        self.drain(book)
        lost = 0
        try:
            with _opened(book.path, os.O_RDWR) as file:
                found = list(records(file))
                while found:
                    with suppress(DamagedError):
                        pieces = Pieces(found)
                        arrays = pieces.read(file)
                        break
                    found, lost = found[:-1], lost + 1
                else:
                    self._remove(book, "is damaged")
                    return None
                if lost:
                    self._tell(
                        f"{plain(book.path.name)} is damaged; it goes on before the last {lost} that were written"
                    )
                file.truncate(found[-1].end)
                os.utime(file.fileno())
                self._note(book, found, file)
        except OSError as error:
            self._remove(book, f"cannot be read ({error.strerror})")
            return None
        return pieces.facts, arrays

    def remove(self, book: Book, why: str) -> None:
        """Throw a file away, and tell why."""
        self.drain(book)
        self._remove(book, why)

    def drain(self, book: Book | None = None) -> None:
        """Wait until everything is written, or all of a conversation."""
        for each, work in self._waiting:
            if book is None or each is book:
                work.result()

    def close(self) -> None:
        """Wait until everything is written, and let others have the folder."""
        self._writer.shutdown(wait=True)
        os.close(self._lock)

    def _rest(self, _: Future[None]) -> None:
        if self.on_idle is not None:
            self.on_idle()

    def _find(self) -> None:
        """What is there."""
        for left in self.folder.glob(f"*{ENDING}{PART}"):
            left.unlink(missing_ok=True)
        for path in sorted(self.folder.glob(f"*{ENDING}")):
            book = Book(path)
            try:
                with _opened(path, os.O_RDONLY) as file:
                    self._note(book, list(records(file)), file)
                    if book.size < os.fstat(file.fileno()).st_size:
                        self._tell(f"{plain(path.name)} ends within a turn, as if killed; it goes on before that")
            except DamagedError:
                self._remove(book, "is damaged, or of another version")
            except OSError as error:
                self._tell(f"{plain(path.name)}: {error.strerror}; it is left alone")
        self._make_room(Book(self.folder), 0)  # the bound may be another one than before
        own = [each for each in self._books if each.pair == self.pair]
        if self._books:
            size = sum(each.size for each in self._books) / 1e9
            said = f"sessions of these models: {len(own)}, of others: {len(self._books) - len(own)}, {size:.2f} GB"
            self._tell(f"{plain(str(self.folder))}: {said}")

    def _note(self, book: Book, found: list[Record], file: BinaryIO) -> None:
        """What a file now has. DamagedError: nothing sound."""
        if not found:
            raise DamagedError("no record")
        pieces, facts, status = Pieces(found), found[-1].facts, os.fstat(file.fileno())
        transcript = pieces.transcript.read(file)
        known = facts.get("key"), facts.get("pair"), facts.get("whole")
        key, pair, whole = known
        if not (isinstance(key, str) and isinstance(pair, str) and type(whole) is int):
            raise DamagedError("facts")
        if transcript.dtype != "int64" or transcript.ndim != 1:
            raise DamagedError("transcript")
        with self._changed:
            book.key, book.pair, book.whole, book.transcript, book.last = key, pair, whole, transcript, found[-1]
            book.size, book.counts, book.stamp = found[-1].end, pieces.nbytes, status.st_mtime
            if book not in self._books:
                self._books.append(book)

    def _write(self, book: Book, written: Written, anew: bool) -> None:
        try:
            if not anew and (book.gone or book.last is None):
                return  # of its file that is no more: the conversation is written anew
            tidy = self._make_room(book, written.nbytes)
            if anew:
                self._write_anew(book, written)
                return
            with _opened(book.path, os.O_RDWR) as file:
                append(file, book.last, written.facts, written.arrays)
                found = list(records(file))
                self._note(book, found, file)
                if tidy or book.size > 2 * book.counts + SLACK or len(found) > MOST_RECORDS:
                    pieces = Pieces(found)
                    self._write_anew(book, Written(pieces.facts, pieces.read(file, threads=1)))
        except TooLargeError as error:
            self._remove(book, str(error))
        except (OSError, DamagedError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            self._remove(book, f"cannot be written ({said})")

    def _write_anew(self, book: Book, written: Written) -> None:
        """A file, whole or not at all, in place of what there was."""
        part = book.path.with_name(f"{book.path.name}{PART}")
        try:
            with _opened(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file:
                append(file, None, written.facts, written.arrays)
                part.replace(book.path)
                self._note(book, list(records(file)), file)
        finally:
            part.unlink(missing_ok=True)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _make_room(self, book: Book, more: int) -> bool:
        """Let those written longest ago go, until there is room for so many bytes more; whether the file has to be
        written anew for that, without what counts no more. TooLargeError: there is none.
        """
        with self._changed:
            others = sorted((each for each in self._books if each is not book), key=lambda each: each.stamp)
            spare = book.size - book.counts
        tidy = self.nbytes + more > self.most and spare > 0
        over = self.nbytes + more - self.most - (spare if tidy else 0)
        for each in others:
            if over <= 0:
                break
            over -= each.size
            self._remove(each, "")
        if over > 0:
            raise TooLargeError(f"would take more than all files may ({format_bytes(self.most)})")
        return tidy

    def _remove(self, book: Book, why: str) -> None:
        """Throw a file away; the same line is told once."""
        book.gone, book.stamp = True, time.time()
        with self._changed:
            self._books = [each for each in self._books if each is not book]
        with suppress(OSError):
            book.path.unlink(missing_ok=True)
        line = f"{plain(str(self.folder / book.path.name))} {why}"
        if why and why != self._told:
            self._told = why
            self._tell(f"{line}; it is removed")


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[BinaryIO]:
    """A file for its owner alone, and no link to another."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "rb" if flags == os.O_RDONLY else "r+b", buffering=0) as file:
        yield file
