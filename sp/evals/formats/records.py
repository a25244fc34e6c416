"""Files of examples: their records, the base classes of tasks for them, and the registry of formats."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

from sp.config import Registry, Tokens, check_fields
from sp.errors import ConfigError, PromptError, short
from sp.evals.base import MARKUP, Count, Example, Task, answer_room, register_task
from sp.json_lines import LONGEST_LINE, decoded, is_number, parse_json


@dataclass(frozen=True)
class FileRecord:
    """The fields of one record, and its position in the file for messages."""

    fields: Mapping[str, Any]
    where: str

    def text(self, name: str) -> str:
        """Return a field that must be a text that is not empty; ConfigError otherwise."""
        return checked_text(self.fields.get(name), f"{self.where}: {name}")

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """Return a field that must be a text or a list of 1 to `most` texts; ConfigError otherwise."""
        value = self.fields.get(name)
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not 1 <= len(texts) <= most:
            raise ConfigError(f"{self.where}: {name} must be a text or a list of 1 to {most} of them")
        return tuple(checked_text(text, f"{self.where}: {name}[{number}]") for number, text in enumerate(texts))

    def facts(self, *names: str) -> dict[str, Any]:
        """Return the named fields that are short texts or numbers, for columns of rows."""
        values = {name: self.fields.get(name) for name in names}
        return {name: value for name, value in values.items() if _is_fact(value)}


def _is_fact(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= 256 and value.isprintable()
    return isinstance(value, bool) or is_number(value)


def checked_text(value: object, where: str) -> str:
    """Return a value that must be a text that is not empty and valid in UTF-8; ConfigError with its place otherwise.

    >>> checked_text(7, "data.jsonl, line 3: question")
    Traceback (most recent call last):
    sp.errors.ConfigError: data.jsonl, line 3: question must be a text that is not empty, not a number
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where} must be a text that is not empty, not {type_name(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where} has half a surrogate pair at character {error.start}; write whole pairs") from None
    return value


def type_name(value: object) -> str:
    """Return the kind of a value for a message, never the value itself, which may be long."""
    kinds = {str: "an empty one", bool: "true or false", list: "a list", dict: "an object", type(None): "missing"}
    return kinds.get(type(value), "a number")


class Records:
    """Records of a file by index, parsed when they are used.

    ConfigError: the file cannot be read, is empty, or has a line that is not a record, which the message names.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise ConfigError(f"cannot read {path}: not a file; pass a file of examples")
        try:
            with path.open("rb") as file:
                begins = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]  # without a byte order mark
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; pass a file of examples") from None
        self._csv = path.suffix.lower() == ".csv"
        self._list = begins == b"[" and not self._csv
        self._starts: list[tuple[int, int]] = []  # byte and line at which each record found so far begins
        self._at, self._line = 0, 1

    def known(self, most: int) -> int:
        """Return the number of records, counted up to `most`."""
        if self._list:
            return min(most, len(self._all))
        if len(self._starts) < most:
            with self.path.open("rb") as file:
                self._scan(file, most)
        return min(most, len(self._starts))

    def __getitem__(self, index: int) -> FileRecord:
        if not 0 <= index < self.known(index + 1):
            if not (total := self.known(index + 1)):
                raise ConfigError(f"{self.path} has no examples; write one per line")
            raise ConfigError(f"{self.path} has {total} examples, so there is no number {index}")
        if self._list:
            return self._record(self._all[index], f"{self.path}, record {index + 1}")
        start, line = self._starts[index]
        with self.path.open("rb") as file:
            file.seek(start)
            raw = self._one(file, line)
        where = f"{self.path}, line {line}"
        if not self._csv:
            return self._record(parse_json(raw, where), where)
        cells = split_csv(decoded(raw, where).rstrip("\r\n"), where)
        if len(cells) != len(self._columns):
            raise ConfigError(f"{where}: {len(cells)} cells under {len(self._columns)} headings")
        return FileRecord(dict(zip(self._columns, cells, strict=True)), where)

    def _record(self, value: object, where: str) -> FileRecord:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: not a JSON object")
        return FileRecord(value, where)

    @cached_property
    def _all(self) -> list[Any]:
        value = parse_json(self.path.read_bytes(), str(self.path))
        if not isinstance(value, list):
            raise ConfigError(f"{self.path}: not a list of records")
        return value

    @cached_property
    def _columns(self) -> list[str]:
        where = f"{self.path}, line 1"
        with self.path.open("rb") as file:
            return split_csv(decoded(self._one(file, 1), where).rstrip("\r\n"), where)

    def _scan(self, file: BinaryIO, most: int) -> None:
        """Find the starts of records, up to `most`; blank lines and the headings of CSV are not records."""
        file.seek(self._at)
        while len(self._starts) < most and (raw := self._one(file, self._line)):
            if raw.strip() and not (self._csv and self._at == 0):
                self._starts.append((self._at, self._line))
            self._at += len(raw)
            self._line += raw.count(b"\n")

    def _one(self, file: BinaryIO, line: int) -> bytes:
        """Return the bytes of the next record: a line, or in CSV as many lines as needed to close every quote."""
        parts, size, quotes = [], 0, 0
        while raw := file.readline(LONGEST_LINE + 1):
            parts.append(raw)
            size, quotes = size + len(raw), quotes + raw.count(b'"')
            if size > LONGEST_LINE:
                raise ConfigError(
                    f"{self.path}, line {line}: longer than {LONGEST_LINE >> 20} MiB; shorten the example"
                )
            if not (self._csv and quotes % 2):  # an odd number of quotes: the record continues on the next line
                break
        if self._csv and quotes % 2:
            raise ConfigError(f"{self.path}, line {line}: a quote is never closed")
        return b"".join(parts)


NAMED = 3  # damaged records that a message describes


def check_each(path: str, total: int, check_record: Callable[[int], object]) -> None:
    """Check records 0 to `total`; one ConfigError counts the damaged ones and describes the first few.

    >>> def read(index: int) -> None:
    ...     if index % 2:
    ...         raise ConfigError(f"data.jsonl, line {index + 1}: not a JSON object")
    >>> check_each("data.jsonl", 4, read)
    Traceback (most recent call last):
    sp.errors.ConfigError: data.jsonl: 2 of 4 records are damaged: line 2: not a JSON object; line 4: not a JSON object
    """
    damaged, first = 0, list[Exception]()
    for index in range(total):
        try:
            check_record(index)
        except (ConfigError, PromptError) as error:
            damaged += 1
            first += [error] if len(first) < NAMED else []
    if damaged == 1:
        raise first[0]
    if first:
        reasons = "; ".join(short(str(error).removeprefix(f"{path}, ")) for error in first)
        more = "; ..." if damaged > len(first) else ""
        raise ConfigError(f"{path}: {damaged:,} of {total:,} records are damaged: {reasons}{more}")


def split_csv(text: str, where: str) -> list[str]:
    """Return the cells of one record of CSV (RFC 4180); ConfigError for text after a closing quote.

    The module `csv` is not used because its limit of a cell's length applies to the whole process.

    >>> split_csv('a,"b, c",', "data.csv, line 2")
    ['a', 'b, c', '']
    """
    cells, offset = [], 0
    while True:
        if text.startswith('"', offset):
            end = text.find('"', offset + 1)
            while end >= 0 and text.startswith('"', end + 1):  # two quotes are one of the cell's text
                end = text.find('"', end + 2)
            if end < 0:
                raise ConfigError(f"{where}: a quote is never closed")
            cells.append(text[offset + 1 : end].replace('""', '"'))
            offset = end + 1
        else:
            end = text.find(",", offset)
            cells.append(text[offset : end if end >= 0 else len(text)])
            offset += len(cells[-1])
        if offset == len(text):
            return cells
        if text[offset] != ",":
            raise ConfigError(f'{where}: text after a closing quote; write "" for a quote')
        offset += 1


SAMPLED = 100  # first records of a file that may identify its format
EVERY_NAME = ("validation", "test", "train", "data")  # tasks of files with these names are named after their folder

FORMATS: Registry[FileTask] = Registry("format")


@dataclass(frozen=True)
class FileTask(Task):
    """Base of all formats of files.

    `RecordTask` is the base of formats in which every record is an example.

    Parameters
    ----------
    max_new_tokens : int
        Longest answer in tokens; 0 means the format's default, which has room for the longest of the answers.

    Attributes
    ----------
    keys : tuple of str
        Fields that identify a record of the format.
    licence : str
        Restriction on the use of the data; empty for none.
    """

    path: str
    max_new_tokens: Tokens = 0

    keys: ClassVar[tuple[str, ...]]
    licence: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if self.max_new_tokens < 0:
            raise ConfigError(f"max_new_tokens must be at least 0, not {self.max_new_tokens}")

    @cached_property
    def records(self) -> Records:
        """Records of the file."""
        return Records(Path(self.path))

    @property
    def title(self) -> str:
        """Name of the task in rows: that of the file, or of its folder if the file's name is a generic one."""
        path = Path(self.path)
        return path.resolve().parent.name if path.stem in EVERY_NAME else path.stem

    @abstractmethod
    def known(self, most: int) -> int:
        """Return the number of examples in the file, counted up to `most`."""

    def __len__(self) -> int:
        return self.known(sys.maxsize)

    @abstractmethod
    def check(self, most: int) -> None:
        """Check up to `most` examples; one error describes all damaged ones, see `check_each`."""


T = TypeVar("T", bound=FileTask)


def register_format(name: str, *keys: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that registers a format with the fields that identify it, and the task ``NAME_file``."""

    def add(cls: type[T]) -> type[T]:
        cls.keys = keys
        FORMATS.register(name)(cls)
        return register_task(f"{name}_file")(cls)  # type: ignore[return-value]

    return add


def recognise(path: Path) -> str:
    """Return the format of a file, by the fields of its first record that has those of any format.

    If several formats match, the one with most fields is returned. ConfigError: the file has no record, or its first
    records are of no format.
    """
    records, known = Records(path), {name: FORMATS.class_of(name).keys for name in FORMATS}
    for index in range(max(records.known(SAMPLED), 1)):
        try:
            fields = set(records[index].fields)
        except ConfigError:
            continue  # `check` reports it, with all other damaged records
        matching = [name for name, keys in known.items() if fields.issuperset(keys)]
        if matching:
            break
    else:
        fields = set(records[0].fields)
        own_first = sorted(known, key=lambda name: name != "own")  # of equally near formats, the one for users' files
        near = max(own_first, key=lambda name: len(fields & set(known[name])) / len(known[name]))
        lacks = ", ".join(key for key in known[near] if key not in fields)
        raise ConfigError(
            f"{path} is of no known format ({', '.join(known)}); the nearest is {near}, and the first record lacks "
            f"{lacks}"
        )
    return max(matching, key=lambda name: len(known[name]))


class LongPromptError(PromptError):
    """A prompt of a file has more tokens than requested."""


@dataclass(frozen=True)
class RecordTask(FileTask):
    """Base of formats in which example i is record i; a format writes `parse`."""

    def known(self, most: int) -> int:
        """Return the number of records, counted up to `most`."""
        return self.records.known(most)

    def check(self, most: int) -> None:
        """Check up to `most` records."""
        check_each(self.path, self.known(most), lambda index: self.parse(self.records[index], index))

    @abstractmethod
    def parse(self, record: FileRecord, index: int) -> Example:
        """Return the example of a record, of any length; its `max_new_tokens` are a lower bound of the longest answer.

        ConfigError, PromptError, with the record's place: the record is wrong.
        """

    def replies(self, example: Example) -> tuple[str, ...]:
        """Return texts of right answers to an example, from which the longest answer is derived."""
        return example.answers

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Return the example of a record; LongPromptError if it has more than `tokens` tokens, unless that is 0."""
        record = self.records[index]
        example = self.parse(record, index)
        parts = (example.document, example.question, example.answer_prefix, *(turn.content for turn in example.turns))
        used = sum(map(count, parts)) + MARKUP if tokens else 0
        if used > tokens:
            raise LongPromptError(
                f"{record.where}: the prompt has about {used} tokens, more than the requested {tokens}"
            )
        room = self.max_new_tokens or max(
            answer_room(example.max_new_tokens, [reply], count) for reply in self.replies(example)
        )
        return replace(example, tokens=tokens, max_new_tokens=room)
