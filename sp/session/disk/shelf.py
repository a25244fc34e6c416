"""Shelf: a folder of conversations that outlive the process, written in the background within a size limit."""

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
from sp.session.disk.contents import RecordData, RecordIndex
from sp.session.disk.records import Array, DamagedError, DiskRecord, append, records

ENDING, PART = ".sp-session", ".part"
NAME = 16  # random bytes in the name of a file
SLACK = 64 << 20  # obsolete bytes that any file may have; beyond that at most half of a file is obsolete
MOST_RECORDS = 64  # records of a file before it is rewritten


class TooLargeError(SpError):
    """A conversation is larger than the limit of all files."""


@dataclass(eq=False)
class Book:
    """A conversation on the shelf, as it was last written.

    `key`: hash of its models and options; `pair`: hash of the models; `whole`: tokens of its last prompt up to the end
    of the last message; `last`: its last record; `gone`: its file was removed.
    """

    path: Path
    key: str = ""
    pair: str = ""
    whole: int = 0
    transcript: Ints | None = None
    last: DiskRecord | None = None
    size: int = 0
    live: int = 0  # bytes of the file that no later record replaces
    stamp: float = 0.0
    gone: bool = False


class Shelf:
    """A folder of conversations, for one process at a time.

    A conversation is a file to which each turn appends what is new. A thread writes it; if the process is killed
    meanwhile, the file holds the turn before. Files of other models stay; unreadable ones are removed and reported.

    Parameters
    ----------
    folder : path
        Created if missing, accessible to its owner only.
    most : int
        Limit of the size of all files in bytes; those written longest ago are removed first.
    pair : str
        Hash of the models, see `sp.session.store.lasting`.
    notify : callable
        Called with a line about each event worth knowing, from any thread.

    Raises
    ------
    ConfigError
        If another process uses the folder, or it is not writable.
    """

    def __init__(self, folder: str | Path, most: int, pair: str, notify: Callable[[str], None]) -> None:
        self.folder, self.most, self.pair, self._notify = Path(folder), most, pair, notify
        self.on_idle: Callable[[], None] | None = None
        """Called by the writing thread whenever its queue is empty."""
        self._books: list[Book] = []
        self._changed, self._waiting = threading.Lock(), list[tuple[Book, Future[None]]]()
        self._reported = ""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{plain(str(folder))}: {error.strerror}; use a writable folder") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the kernel if the process dies
        except OSError:
            os.close(self._lock)
            used = "is in use by another server; use another folder, or stop that server"
            raise ConfigError(f"{plain(str(folder))} {used}") from None
        self._find()
        # A single thread, so that records of a file are appended in order.
        self._writer = ThreadPoolExecutor(1, "sp-sessions")

    def __len__(self) -> int:
        """Number of files."""
        with self._changed:
            return len(self._books)

    @property
    def nbytes(self) -> int:
        """Size of all files in bytes."""
        with self._changed:
            return sum(book.size for book in self._books)

    @property
    def busy(self) -> bool:
        """True if something is still to be written."""
        return any(not work.done() for _, work in self._waiting)

    def best(self, key: str, ids: Ints, used: Container[Book]) -> tuple[Book | None, int]:
        """Return the unused conversation of a key with the longest common prefix with a prompt, and its length.

        At least one token of the prompt is left to be read.
        """
        with self._changed:
            books = [(book, book.transcript) for book in self._books if book.key == key and book not in used]
        shared = [(book, same_start(known, ids)) for book, known in books if known is not None]
        best, count = max(shared, key=lambda candidate: candidate[1], default=(None, 0))
        return best, min(count, len(ids) - 1)

    def put(self, book: Book | None, data: RecordData, key: str, whole: int) -> Book:
        """Queue data to be appended to the file of `book`, or without a book to a new file; returns at once."""
        known, is_new = book or Book(self.folder / f"{secrets.token_hex(NAME)}{ENDING}"), book is None
        facts = {**data.facts, "pair": self.pair, "key": key, "whole": whole}
        work = self._writer.submit(self._write, known, RecordData(facts, data.arrays), is_new)
        self._waiting = [*(entry for entry in self._waiting if not entry[1].done()), (known, work)]
        work.add_done_callback(self._rest)
        return known

    def load(self, book: Book) -> tuple[Mapping[str, Any], dict[str, Array]] | None:
        """Return facts and arrays of a conversation, without its last turns if these are damaged.

        None if nothing can be read, or the file was removed meanwhile.
        """
        self.drain(book)
        lost = 0
        try:
            with _opened(book.path, os.O_RDWR) as file:
                turns = list(records(file))
                while turns:
                    with suppress(DamagedError):
                        index = RecordIndex(turns)
                        arrays = index.load(file)
                        break
                    turns, lost = turns[:-1], lost + 1
                else:
                    self._remove(book, "is damaged")
                    return None
                if lost:
                    self._notify(f"{plain(book.path.name)} is damaged; its last {lost} turns are dropped")
                file.truncate(turns[-1].end)
                os.utime(file.fileno())  # a conversation that was read counts as recently used
                self._note(book, turns, file)
        except OSError as error:
            self._remove(book, f"cannot be read ({error.strerror})")
            return None
        return index.facts, arrays

    def remove(self, book: Book, why: str) -> None:
        """Remove a file and report why."""
        self.drain(book)
        self._remove(book, why)

    def drain(self, book: Book | None = None) -> None:
        """Wait until all data is written, or all data of one conversation."""
        for queued, work in self._waiting:
            if book is None or queued is book:
                work.result()

    def close(self) -> None:
        """Wait until all data is written, and release the folder."""
        self._writer.shutdown(wait=True)
        os.close(self._lock)

    def _rest(self, _: Future[None]) -> None:
        if self.on_idle is not None:
            self.on_idle()

    def _find(self) -> None:
        """Read the records of all files in the folder, and remove leftovers."""
        for leftover in self.folder.glob(f"*{ENDING}{PART}"):
            leftover.unlink(missing_ok=True)
        for path in sorted(self.folder.glob(f"*{ENDING}")):  # sorted, so that remarks are reproducible
            book = Book(path)
            try:
                with _opened(path, os.O_RDONLY) as file:
                    self._note(book, list(records(file)), file)
                    if book.size < os.fstat(file.fileno()).st_size:
                        self._notify(f"{plain(path.name)} ends within a turn, as after a crash; that turn is dropped")
            except DamagedError:
                self._remove(book, "is damaged, or of another version")
            except OSError as error:
                self._notify(f"{plain(path.name)}: {error.strerror}; it is skipped")
        self._make_room(Book(self.folder), 0)  # the limit may be lower than last time
        own = [book for book in self._books if book.pair == self.pair]
        if self._books:
            size = sum(book.size for book in self._books) / 1e9
            counts = f"sessions of these models: {len(own)}, of others: {len(self._books) - len(own)}, {size:.2f} GB"
            self._notify(f"{plain(str(self.folder))}: {counts}")

    def _note(self, book: Book, turns: list[DiskRecord], file: BinaryIO) -> None:
        """Update a book from the records of its file; DamagedError if none is valid."""
        if not turns:
            raise DamagedError("no record")
        index, facts, status = RecordIndex(turns), turns[-1].facts, os.fstat(file.fileno())
        transcript = index.transcript.load(file)
        key, pair, whole = facts.get("key"), facts.get("pair"), facts.get("whole")
        if not (isinstance(key, str) and isinstance(pair, str) and type(whole) is int):
            raise DamagedError("facts")
        if transcript.dtype != "int64" or transcript.ndim != 1:
            raise DamagedError("transcript")
        with self._changed:
            book.key, book.pair, book.whole, book.transcript, book.last = key, pair, whole, transcript, turns[-1]
            book.size, book.live, book.stamp = turns[-1].end, index.nbytes, status.st_mtime
            if book not in self._books:
                self._books.append(book)

    def _write(self, book: Book, data: RecordData, is_new: bool) -> None:
        try:
            if not is_new and (book.gone or book.last is None):
                return  # its file was removed: `Conversations._save` will write the conversation to a new one
            tidy = self._make_room(book, data.nbytes)
            if is_new:
                self._rewrite(book, data)
                return
            with _opened(book.path, os.O_RDWR) as file:
                append(file, book.last, data.facts, data.arrays)
                turns = list(records(file))
                self._note(book, turns, file)
                if tidy or book.size > 2 * book.live + SLACK or len(turns) > MOST_RECORDS:
                    index = RecordIndex(turns)
                    self._rewrite(book, RecordData(index.facts, index.load(file, threads=1)))
        except TooLargeError as error:
            self._remove(book, str(error))
        except (OSError, DamagedError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._remove(book, f"cannot be written ({reason})")

    def _rewrite(self, book: Book, data: RecordData) -> None:
        """Replace a file atomically by one record."""
        part = book.path.with_name(f"{book.path.name}{PART}")
        try:
            with _opened(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file:
                append(file, None, data.facts, data.arrays)
                part.replace(book.path)  # atomic on POSIX
                self._note(book, list(records(file)), file)
        finally:
            part.unlink(missing_ok=True)
        folder = os.open(self.folder, os.O_RDONLY)  # the new name is durable once its folder is synced
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _make_room(self, book: Book, more: int) -> bool:
        """Remove the files written longest ago until there is room for `more` bytes.

        Returns True if the file of `book` has to be rewritten for that, without its obsolete bytes. TooLargeError if
        even that leaves no room.
        """
        with self._changed:
            others = sorted((other for other in self._books if other is not book), key=lambda other: other.stamp)
            spare = book.size - book.live  # bytes that a rewrite of the file frees
        tidy = self.nbytes + more > self.most and spare > 0
        over = self.nbytes + more - self.most - (spare if tidy else 0)
        for other in others:
            if over <= 0:
                break
            over -= other.size
            self._remove(other, "")
        if over > 0:
            raise TooLargeError(f"would exceed the limit of all files ({format_bytes(self.most)})")
        return tidy

    def _remove(self, book: Book, why: str) -> None:
        """Remove a file; the same reason is reported once."""
        book.gone, book.stamp = True, time.time()  # conversations in memory notice this and write a new file
        with self._changed:
            self._books = [other for other in self._books if other is not book]
        with suppress(OSError):
            book.path.unlink(missing_ok=True)
        line = f"{plain(str(self.folder / book.path.name))} {why}"
        if why and why != self._reported:
            self._reported = why
            self._notify(f"{line}; it is removed")


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[BinaryIO]:
    """Open a file for its owner only, and no symbolic link."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "rb" if flags == os.O_RDONLY else "r+b", buffering=0) as file:
        yield file
