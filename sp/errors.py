"""Errors a user can mend: each message says what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 80
"""Characters of a stranger's text in a message."""


class SpError(Exception):
    """Base of every error the command line prints as one line before it exits with status 2."""


class GGUFError(SpError):
    """A GGUF file is truncated, hostile or uses something `sp` does not support."""


class ModelError(SpError):
    """A file is valid GGUF but does not describe a model `sp` can run."""


class ConfigError(SpError):
    """An option, a YAML key or a name is wrong."""


class PromptError(SpError):
    """The prompt cannot be used: empty, too long for the context, or its protected spans do not fit."""


class DeviceError(SpError):
    """The GPU, its driver or its compiler cannot do what was asked, or a kernel was launched wrongly."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """Build the error for a name that is not registered, with the nearest names offered.

    Parameters
    ----------
    kind : str
        What the name stands for, e.g. ``"scorer"``.
    name : str
        The name that was given.
    known : iterable of str
        The names that exist.

    Examples
    --------
    >>> print(unknown_name("scorer", "tial", ["tail", "lookahead"]))
    unknown scorer 'tial'; did you mean 'tail'? Known: lookahead, tail
    """
    return ConfigError(f"unknown {kind} {short(name)!r}{known_names(name, known)}")


def known_names(name: str, known: Iterable[str]) -> str:
    """The end of a message about a wrong name: the nearest ones and all of them.

    Examples
    --------
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
    return f"{hint} Known: {', '.join(names)}"


def short(text: object, most: int = SHOWN) -> str:
    """A stranger's text for a message: one line, cut, without what a terminal would obey.

    Examples
    --------
    >>> short("two\\nlines, " + "9" * 6000, 20)
    'two lines, 999999...'
    """
    said = " ".join(str(text)[: 4 * most].split())
    said = "".join(letter if letter.isprintable() else "?" for letter in said)
    return said if len(said) <= most else f"{said[: most - 3]}..."
