"""Errors a user can mend: each message says what is wrong, where, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

SHOWN = 80  # characters of a stranger's text in a message
LISTED = 200
"""Characters of a wrong name and a list of those that exist in a message, which with all else has 300 at most."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters that steer a terminal, line breaks and tabs aside


class SpError(Exception):
    """Base of every error the command line prints as one line before it exits with status 2."""


class SpWarning(UserWarning):
    """What a user should know of work that goes on; the command line prints it as one line on stderr."""


class GGUFError(SpError):
    """A GGUF file is truncated, hostile or uses something `sp` does not support."""


class ChangedError(GGUFError):
    """A file was written to while its weights were in use."""


class FetchError(SpError):
    """What is known by name could not be fetched: no network, a damaged download, a folder that cannot be written."""


class ModelError(SpError):
    """A file is valid GGUF but does not describe a model `sp` can run."""


class ConfigError(SpError):
    """An option, a YAML key or a name is wrong."""


class KeywordError(ConfigError, TypeError):
    """A keyword that a function or a class does not take; for Python a TypeError like any other."""


class UsageError(ConfigError):
    """A command line says no command, or options that it has not."""


class PromptError(SpError):
    """The prompt cannot be used: empty, too long for the context, or its protected spans do not fit."""


class TooLongError(PromptError):
    """A prompt and its answer do not fit together. `room`: tokens of an answer that would; None if not known."""

    def __init__(self, message: str, room: int | None = None) -> None:
        super().__init__(message)
        self.room = room


class DeviceError(SpError):
    """The GPU, its driver or its compiler cannot do what was asked, or a kernel was launched wrongly."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """Build the error for a name that is not registered, with the nearest names offered.

    `kind`: what the name stands for, e.g. ``"scorer"``.

    >>> print(unknown_name("scorer", "tial", ["tail", "lookahead"]))
    unknown scorer 'tial'; did you mean 'tail'? Known: lookahead, tail
    """
    return ConfigError(f"unknown {kind} {short(name)!r}{known_names(name, known)}")


def known_names(name: str, known: Iterable[str]) -> str:
    """The end of a message about a wrong name: the nearest ones, and all of them if they are few.

    >>> known_names("men", ["max", "mean"])
    "; did you mean 'mean'? Known: max, mean"
    >>> known_names("men", [])
    '; there are none'
    """
    names = sorted(known)
    if not names:
        return "; there are none"
    near = get_close_matches(name[:SHOWN], names, n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else "."
    return f"{hint} Known: {listed(names, LISTED - len(short(name)) - len(hint))}"


Named = TypeVar("Named", bound=Callable[..., Any])


def names_keywords(function: Named, options: Iterable[str] = ()) -> Named:
    """Have a function, or a dataclass, answer a keyword that it does not take with the nearest of those it takes.

    `options`: names of fields of `sp.RunOptions`, which the function takes as one.

    >>> @names_keywords
    ... def bake(*, minutes: int = 30) -> None: ...
    >>> bake(minuts=20)
    Traceback (most recent call last):
    sp.errors.KeywordError: unknown keyword of bake 'minuts'; did you mean 'minutes'? Known: minutes
    """
    if isinstance(function, type):
        setattr(function, "__init__", names_keywords(getattr(function, "__init__")))  # noqa: B009, B010  for mypy
        return function
    code = function.__code__
    known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]
    what, names = function.__qualname__.removesuffix(".__init__").rpartition(".")[2], frozenset(known)

    @wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        if not keywords.keys() <= names:
            check_keywords(what, keywords, known, options)
        return function(*args, **keywords)

    return called  # type: ignore[return-value]


def check_keywords(what: str, given: Iterable[str], known: Iterable[str], options: Iterable[str] = ()) -> None:
    """KeywordError for the first name that is none of the keywords of `what`; `options` as in `names_keywords`."""
    known = [*known]
    for name in given:
        if name not in known:
            error = unknown_name(f"keyword of {what}", name, known)
            inside = f"{what} takes no {name}; it is one of sp.RunOptions: options=sp.RunOptions({name}=...)"
            raise KeywordError(inside if name in options else str(error))


def listed(names: Iterable[str], most: int = LISTED // 2) -> str:
    """Names with commas between them, as many as `most` characters hold; of more than that how many there are."""
    names = [short(name) for name in names]
    told = names[:]
    while len(told) > 1 and len(", ".join(told)) > most:
        told.pop()
    return ", ".join(told) + (f", ... ({len(names)} in all)" if len(told) < len(names) else "")


def plain(text: str, limit: int = 200) -> str:
    r"""`text` fit for one line of a terminal: a file must not get its escape sequences there.

    >>> plain("a\x1b[2Jb\nc")
    'a�[2Jb c'
    """
    text = " ".join(text.split())
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else "\ufffd" for c in cut)


def printable(text: str) -> str:
    r"""`text` of a document or a model for a terminal: what would steer that is spelled out, lines and tabs stay.
    Spelled out are the other control characters of ASCII, escape among them, and those from U+007F to U+009F.
    """
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))


def short(text: object, most: int = SHOWN) -> str:
    """A stranger's text for a message: `plain` of its beginning, so that its length costs nothing."""
    return plain(str(text)[: 4 * most], most)
