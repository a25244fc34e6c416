"""Files of examples: their records, the task that reads them, and the registry of the formats they may have."""

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
class Record:
    """The fields of one record, and where it stands."""

    fields: Mapping[str, Any]
    where: str

    def text(self, name: str) -> str:
        """A field that must be text with something in it; ConfigError if it is not."""
        return checked_text(self.fields.get(name), f"{self.where}: {name}")

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A field that must be a text or a list of up to `most` of them, and not be empty."""
        given = self.fields.get(name)
        listed = [given] if isinstance(given, str) else given
        if not isinstance(listed, list) or not 1 <= len(listed) <= most:
            raise ConfigError(f"{self.where}: {name} must be a text or a list of 1 to {most} of them")
        return tuple(checked_text(one, f"{self.where}: {name}[{number}]") for number, one in enumerate(listed))

    def facts(self, *names: str) -> dict[str, Any]:
        """Fields that say what sort of example it is, where they are short texts or numbers."""
        given = {name: self.fields.get(name) for name in names}
        return {name: value for name, value in given.items() if _is_fact(value)}


def _is_fact(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= 256 and value.isprintable()
    return isinstance(value, bool) or is_number(value)


def checked_text(value: object, where: str) -> str:
    """A text with something in it that UTF-8 can write; ConfigError names the place if it is not.

    >>> checked_text(7, "data.jsonl, line 3: question")
    Traceback (most recent call last):
    sp.errors.ConfigError: data.jsonl, line 3: question must be a text that is not empty, not a number
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where} must be a text that is not empty, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where} has half a surrogate pair at character {error.start}; write whole ones") from None
    return value


def shown(value: object) -> str:
    """What a value is, for an error; never the value, which may be long."""
    kinds = {str: "an empty one", bool: "true or false", list: "a list", dict: "an object", type(None): "missing"}
    return kinds.get(type(value), "a number")


class Records:
    """The records of a file by index. ConfigError: the file cannot be read, is empty, or has a line that is no record:
    when it is met, by its line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise ConfigError(f"cannot read {path}: not a file; name a file of examples")
        try:
            with path.open("rb") as file:
                begins = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; name a file of examples") from None
        self._csv = path.suffix.lower() == ".csv"
        self._list = begins == b"[" and not self._csv
        self._starts: list[tuple[int, int]] = []  # where each record begins that was met so far, and in which line
        self._at, self._line = 0, 1

    def known(self, most: int) -> int:
        """How many records there are, counted up to `most`."""
        if self._list:
            return min(most, len(self._all))
        if len(self._starts) < most:
            with self.path.open("rb") as file:
                self._scan(file, most)
        return min(most, len(self._starts))

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < self.known(index + 1):
            if not (found := self.known(index + 1)):
                raise ConfigError(f"{self.path} has no examples; write one a line")
            raise ConfigError(f"{self.path} has {found} examples, so there is no number {index}")
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
        return Record(dict(zip(self._columns, cells, strict=True)), where)

    def _record(self, value: object, where: str) -> Record:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: not a JSON object")
        return Record(value, where)

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
        """Go on until so many starts are known; blank lines between records are none, nor are the headings of CSV."""
        file.seek(self._at)
        while len(self._starts) < most and (raw := self._one(file, self._line)):
            if raw.strip() and not (self._csv and self._at == 0):
                self._starts.append((self._at, self._line))
            self._at += len(raw)
            self._line += raw.count(b"\n")

    def _one(self, file: BinaryIO, line: int) -> bytes:
        """The bytes of the record that begins here: a line, or of CSV so many that every quote is closed."""
        parts, size, quotes = [], 0, 0
        while raw := file.readline(LONGEST_LINE + 1):
            parts.append(raw)
            size, quotes = size + len(raw), quotes + raw.count(b'"')
            if size > LONGEST_LINE:
                raise ConfigError(f"{self.path}, line {line}: longer than {LONGEST_LINE >> 20} MiB; this is no example")
            if not (self._csv and quotes % 2):
                break
        if self._csv and quotes % 2:
            raise ConfigError(f"{self.path}, line {line}: a quote is never closed")
        return b"".join(parts)


NAMED = 3  # damaged records that an error names


def check_each(path: str, total: int, read: Callable[[int], object]) -> None:
    """Read records 0 to `total`; one ConfigError tells how many are damaged, and of the first few where and why.

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
            read(index)
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
    """Cells of one record of CSV (RFC 4180); ConfigError for text behind a closing quote. `csv` would cut cells off at
    a limit that holds for the whole process.

    >>> split_csv('a,"b, c",', "data.csv, line 2")
    ['a', 'b, c', '']
    """
    cells, at = [], 0
    while True:
        if text.startswith('"', at):
            end = text.find('"', at + 1)
            while end >= 0 and text.startswith('"', end + 1):
                end = text.find('"', end + 2)
            if end < 0:
                raise ConfigError(f"{where}: a quote is never closed")
            cells.append(text[at + 1 : end].replace('""', '"'))
            at = end + 1
        else:
            end = text.find(",", at)
            cells.append(text[at : end if end >= 0 else len(text)])
            at += len(cells[-1])
        if at == len(text):
            return cells
        if text[at] != ",":
            raise ConfigError(f'{where}: text behind a closing quote; write "" for a quote')
        at += 1


LOOKED_AT = 100  # records of a file by which its format is known
EVERY_NAME = ("validation", "test", "train", "data")  # files called so are named by their folder

FORMATS: Registry[FileTask] = Registry("format")


@dataclass(frozen=True)
class FileTask(Task):
    """Base of formats: what all files have in common, whatever a record of theirs holds.

    Where every record is an example, `RecordTask` has the rest.

    Parameters
    ----------
    max_new_tokens : int
        Longest answer; 0 takes the format's, which has room for the longest of the answers.

    Attributes
    ----------
    keys : tuple of str
        Fields by which a record of the format is known.
    licence : str
        What the data may not be used for; empty for nothing.
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
        """What the file holds."""
        return Records(Path(self.path))

    @property
    def title(self) -> str:
        """What rows call the task: the file, or its folder where files have all the same name."""
        path = Path(self.path)
        return path.resolve().parent.name if path.stem in EVERY_NAME else path.stem

    @abstractmethod
    def known(self, most: int) -> int:
        """Examples in the file, counted up to `most`."""

    def __len__(self) -> int:
        return self.known(sys.maxsize)

    @abstractmethod
    def check(self, most: int) -> None:
        """Read so many examples; what is damaged is told in one error, see `check_each`."""


T = TypeVar("T", bound=FileTask)


def register_format(name: str, *keys: str) -> Callable[[type[T]], type[T]]:
    """Class decorator that files a format by its name and the fields it is known by, and as the task ``NAME_file``."""

    def add(cls: type[T]) -> type[T]:
        cls.keys = keys
        FORMATS.register(name)(cls)
        return register_task(f"{name}_file")(cls)  # type: ignore[return-value]

    return add


def recognise(path: Path) -> str:
    """The format of a file, by the fields of its first record that is of any; of several the one that asks for most.
    ConfigError if the file has no record, or its first ones are of no format."""
    records, known = Records(path), {name: FORMATS.class_of(name).keys for name in FORMATS}
    for index in range(max(records.known(LOOKED_AT), 1)):
        try:
            fields = set(records[index].fields)
        except ConfigError:
            continue  # `check` tells of it, beside all others
        found = [name for name, keys in known.items() if fields.issuperset(keys)]
        if found:
            break
    else:
        fields = set(records[0].fields)
        own_first = sorted(known, key=lambda name: name != "own")  # what files of one's own are written in
        near = max(own_first, key=lambda name: len(fields & set(known[name])) / len(known[name]))
        lacks = ", ".join(key for key in known[near] if key not in fields)
        raise ConfigError(
            f"{path} is of no known format ({', '.join(known)}); the nearest is {near}, of which its first record "
            f"lacks {lacks}"
        )
    return max(found, key=lambda name: len(known[name]))


class LongPromptError(PromptError):
    """A prompt of a file has more tokens than were asked for."""


@dataclass(frozen=True)
class RecordTask(FileTask):
    """Base of formats in which example i is record i: a format says how a record is read."""

    def known(self, most: int) -> int:
        """See `FileTask.known`."""
        return self.records.known(most)

    def check(self, most: int) -> None:
        """See `FileTask.check`."""
        check_each(self.path, self.known(most), lambda index: self.read(self.records[index], index))

    @abstractmethod
    def read(self, record: Record, index: int) -> Example:
        """The example of a record, whatever its length; its `max_new_tokens` are the fewest that an answer may have.
        ConfigError, PromptError: what is wrong with the record, and where it stands."""

    def replies(self, made: Example) -> tuple[str, ...]:
        """What right answers to an example look like."""
        return made.answers

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; `tokens` 0 takes any length, otherwise longer prompts are refused."""
        record = self.records[index]
        made = self.read(record, index)
        parts = (made.document, made.question, made.answer_prefix, *(turn.content for turn in made.turns))
        used = sum(map(count, parts)) + MARKUP if tokens else 0
        if used > tokens:
            raise LongPromptError(
                f"{record.where}: the prompt has about {used} tokens, more than the {tokens} asked for"
            )
        room = self.max_new_tokens or max(answer_room(made.max_new_tokens, [one], count) for one in self.replies(made))
        return replace(made, tokens=tokens, max_new_tokens=room)
