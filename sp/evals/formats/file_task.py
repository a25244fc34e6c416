"""A task that reads its examples from a file, and the registry of the formats such files may have."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

from sp.config import Registry, Tokens, check_fields
from sp.errors import ConfigError
from sp.evals.base import Task, register_task
from sp.evals.formats.records import Records

LOOKED_AT = 100
"""Records of a file by which its format is known."""
EVERY_NAME = ("validation", "test", "train", "data")
"""Files called so are named by their folder."""

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

    Raises
    ------
    ConfigError
        If the file has no record, or its first ones are of no format.
    """
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
