"""Names of options: former names work with a warning; unknown ones are errors that offer the nearest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

from sp.errors import ConfigError, KeywordError, SpWarning, unknown_name

RENAMED: Mapping[str, str] = {
    "math": "precision",
    "drafter_math": "drafter_precision",
    "card": "gpu",
    "cards": "gpus",
    "target_cards": "target_gpus",
    "draft": "speculator",
    "draft_type": "speculator_type",
}
"""Present name of every renamed option, by its former one. Command line, sweep files, other YAML and keywords of Python
accept both; help and documents have the present one."""

RECORDED: Mapping[str, str] = {now: former for former, now in RENAMED.items()} | {"precisions": "maths"}
"""Keys in records, traces and JSON outputs, by present name: they keep the former ones, so that records compare."""

T = TypeVar("T")
Named = TypeVar("Named", bound=Callable[..., Any])


def present_name(name: str, known: Collection[str], format: Callable[[str], str] = str, stacklevel: int = 2) -> str:
    """Return the present name of an option, with an `SpWarning` if `name` is its former one.

    `known`: names of the options here; a former name among them is an option of its own. `format`: writes a name for
    the warning, such as ``--name``.

    >>> present_name("math", ["math"]), present_name("precision", ["precision"])
    ('math', 'precision')
    """
    now = RENAMED.get(name, name)
    if name in known or now not in known:
        return name
    warnings.warn(f"{format(name)} is now {format(now)}; the old name still works", SpWarning, stacklevel + 1)
    return now


def present_names(values: Mapping[str, T], known: Collection[str], stacklevel: int = 2) -> dict[str, T]:
    """Return options by their present names; ConfigError if one is set by both of its names.

    >>> present_names({"precision": "int8", "device": "cpu"}, ["precision", "device"])
    {'precision': 'int8', 'device': 'cpu'}
    """
    present: dict[str, T] = {}
    for name, value in values.items():
        now = present_name(name, known, stacklevel=stacklevel + 1)
        if now in present:
            raise ConfigError(f"{name} and {now} are names of the same option; set one of them")
        present[now] = value
    return present


def recorded(values: Mapping[str, T]) -> dict[str, T]:
    """Return values by the keys of records and JSON outputs; see `RECORDED`.

    >>> recorded({"gpus": 2, "tokens": 512})
    {'cards': 2, 'tokens': 512}
    """
    return {RECORDED.get(name, name): value for name, value in values.items()}


def names_keywords(function: Named, options: Iterable[str] = ()) -> Named:
    """Wrap a function or a dataclass so that former keywords work and an unknown one raises KeywordError.

    `options`: fields of `sp.RunOptions`, which the function takes as one argument; for the message.

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
    callee, names = function.__qualname__.removesuffix(".__init__").rpartition(".")[2], frozenset(known)

    @wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        if not keywords.keys() <= names:  # calls with present names cost only this comparison
            keywords = present_names(keywords, names, stacklevel=3)
            check_keywords(callee, keywords, known, options)
        return function(*args, **keywords)

    return checked  # type: ignore[return-value]


def check_keywords(callee: str, names: Iterable[str], known: Iterable[str], options: Iterable[str] = ()) -> None:
    """Raise KeywordError for the first name that is no keyword of `callee`; `options` as in `names_keywords`."""
    known = [*known]
    for name in names:
        if name not in known:
            error = unknown_name(f"keyword of {callee}", name, known)
            hint = (
                f"{callee} takes no {name}, which is a field of sp.RunOptions; pass options=sp.RunOptions({name}=...)"
            )
            raise KeywordError(hint if name in options else str(error))
