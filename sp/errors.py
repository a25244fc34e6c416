"""Errors a user can mend: each message says what is wrong, where, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

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
