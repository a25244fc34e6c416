"""Errors a user can mend: each message says what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
    return ConfigError(f"unknown {kind} {name!r}{known_names(name, known)}")


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
    near = get_close_matches(name, names, n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else "."
    return f"{hint} Known: {', '.join(names)}"
