"""Errors that users can fix: each message says what is wrong, where, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 80  # characters of an untrusted text in a message
LISTED = 200
"""Characters of a wrong name and the known ones in a message, so that a whole message has at most 300."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters of terminals, but line feed and tab


class SpError(Exception):
    """Base of all errors that the command line prints as one line before it exits with status 2."""


class SpWarning(UserWarning):
    """A remark on work that continues; the command line prints it as one line on stderr."""


class GGUFError(SpError):
    """A GGUF file is truncated, malicious, or uses something that `sp` does not support."""


class ChangedError(GGUFError):
    """A file was modified while its weights were in use."""


class FetchError(SpError):
    """A model could not be fetched by name: no network, a damaged download, or a folder that cannot be written."""


class ModelError(SpError):
    """A file is valid GGUF but does not describe a model that `sp` can run."""


class ConfigError(SpError):
    """An option, a YAML key or a name is wrong."""


class KeywordError(ConfigError, TypeError):
    """A function or class has no such keyword; also a TypeError, as for any Python function."""


class UsageError(ConfigError):
    """A command line names no command, or options that the command does not have."""


class PromptError(SpError):
    """The prompt cannot be used: it is empty or too long for the context, or its protected spans do not fit."""


class TooLongError(PromptError):
    """A prompt and its answer exceed the context. `room`: tokens that remain for an answer; None if unknown."""

    def __init__(self, message: str, room: int | None = None) -> None:
        super().__init__(message)
        self.room = room


class DeviceError(SpError):
    """The GPU, its driver or its compiler lacks a feature, or a kernel was launched incorrectly."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """Build the error for a name that is not registered, with the nearest names offered.

    `kind`: what the name stands for, e.g. ``"scorer"``.

    >>> print(unknown_name("scorer", "tial", ["tail", "lookahead"]))
    unknown scorer 'tial'; did you mean 'tail'? Known: lookahead, tail
    """
    return ConfigError(f"unknown {kind} {short(name)!r}{known_names(name, known)}")


def known_names(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about a wrong name: the nearest known names, and all if they are few.

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
    return f"{hint} Known: {join_names(names, LISTED - len(short(name)) - len(hint))}"


def join_names(names: Iterable[str], most: int = LISTED // 2) -> str:
    """Join names with commas, as many as fit into `most` characters; if some are missing, say how many there are."""
    names = [short(name) for name in names]
    first = names[:]
    while len(first) > 1 and len(", ".join(first)) > most:
        first.pop()
    return ", ".join(first) + (f", ... ({len(names)} in all)" if len(first) < len(names) else "")


def plain(text: str, limit: int = 200) -> str:
    r"""Make a text safe for one line of a terminal: a file must not send escape sequences there.

    >>> plain("a\x1b[2Jb\nc")
    'a�[2Jb c'
    """
    text = " ".join(text.split())
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def printable(text: str) -> str:
    r"""Make a text of a document or a model safe for a terminal; line ends and tabs stay.

    Other control characters of ASCII, including escape, and those from U+007F to U+009F are written as ``\x1b``.
    """
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text.replace("\r\n", "\n"))


def short(text: object, most: int = SHOWN) -> str:
    """Shorten an untrusted text for a message: `plain` of its beginning, at a cost independent of its length."""
    return plain(str(text)[: 4 * most], most)
