"""Names of options: former ones are understood and named once on stderr, unknown ones are refused with the nearest."""

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
"""Present name of every option that was renamed, by its former one. Command line, sweep files, other YAML and keywords
of Python take both; help and documents have the present one."""

RECORDED: Mapping[str, str] = {now: former for former, now in RENAMED.items()} | {"precisions": "maths"}
"""Key that records, traces and JSON outputs have for a name: its former one, so that old and new ones compare."""

T = TypeVar("T")
Named = TypeVar("Named", bound=Callable[..., Any])


def present_name(name: str, known: Collection[str], shown: Callable[[str], str] = str, stacklevel: int = 2) -> str:
    """Return the present name of an option, with an `SpWarning` if `name` is its former one.

    `known`: names that are taken here; a former name that is among them still means something else. `shown`: how a name
    is written here, for the warning.

    >>> present_name("math", ["math"]), present_name("precision", ["precision"])
    ('math', 'precision')
    """
    now = RENAMED.get(name, name)
    if name in known or now not in known:
        return name
    warnings.warn(f"{shown(name)} is now {shown(now)}; the old name still works", SpWarning, stacklevel + 1)
    return now


def present_names(values: Mapping[str, T], known: Collection[str], stacklevel: int = 2) -> dict[str, T]:
    """Return options by their present names; ConfigError for one that is set by both of its names.

    >>> present_names({"precision": "int8", "device": "cpu"}, ["precision", "device"])
    {'precision': 'int8', 'device': 'cpu'}
    """
    present: dict[str, T] = {}
    for name, value in values.items():
        now = present_name(name, known, stacklevel=stacklevel + 1)
        if now in present:
            raise ConfigError(f"{name} and {now} are one option; set one of them")
        present[now] = value
    return present


def recorded(values: Mapping[str, T]) -> dict[str, T]:
    """Return values by the keys that records and JSON outputs have for their names; see `RECORDED`.

    >>> recorded({"gpus": 2, "tokens": 512})
    {'cards': 2, 'tokens': 512}
    """
    return {RECORDED.get(name, name): value for name, value in values.items()}


def names_keywords(function: Named, options: Iterable[str] = ()) -> Named:
    """Let a function, or a dataclass, take former names of its keywords and answer unknown ones with the nearest.

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
    def checked(*args: Any, **keywords: Any) -> Any:
        if not keywords.keys() <= names:  # the usual call pays for this comparison alone
            keywords = present_names(keywords, names, stacklevel=3)
            check_keywords(what, keywords, known, options)
        return function(*args, **keywords)

    return checked  # type: ignore[return-value]


def check_keywords(what: str, names: Iterable[str], known: Iterable[str], options: Iterable[str] = ()) -> None:
    """Raise KeywordError for the first name that is no keyword of `what`; `options` as in `names_keywords`."""
    known = [*known]
    for name in names:
        if name not in known:
            error = unknown_name(f"keyword of {what}", name, known)
            inside = f"{what} takes no {name}; it is one of sp.RunOptions: options=sp.RunOptions({name}=...)"
            raise KeywordError(inside if name in options else str(error))
