"""Strategies by name, options in square brackets behind it: ``tail[queries=24]``, on the command line and in Python."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from sp.config import Registry
from sp.errors import ConfigError, listed, short
from sp.plain_yaml import read_value

T = TypeVar("T")

ITEM = re.compile(r"(?P<name>[^,\[\]]+?)\s*(?:\[(?P<options>[^\]]*)\])?\s*(?:,|$)")
NEXT_OPTION = re.compile(r",[a-z_]+=")
"""A comma where a space should part options: YAML would read all behind it as one value."""


def read_strategies(text: str, registry: Registry[T], option: str, common: Mapping[str, Any] | None = None) -> list[T]:
    """Strategies such as ``tail,lookahead[queries=4 pool=5]``; values are read as YAML.

    `option`: what the text was given to, for messages; `common`: options of all that have them and are not given
    others; ConfigError for a list that cannot be read, or an unknown name or option.
    """
    found = []
    for name, given in read_names(text, option):
        own = {field.name for field in dataclasses.fields(registry.class_of(name))}  # type: ignore[arg-type]
        shared = {key: value for key, value in (common or {}).items() if key in own}
        found.append(registry.build(name, shared | given))
    if not found:
        raise _nothing(registry, option)
    return found


def read_strategy(text: str, registry: Registry[T], option: str, settings: Mapping[str, Any] | None = None) -> T:
    """One strategy such as ``tail[queries=24]``, with `settings` in place of options of the same names.

    Parameters and errors as for `read_strategies`; more than one is an error too.
    """
    name, given = read_name(text, registry, option)
    return registry.build(name, given | dict(settings or {}))


def read_name(text: str, registry: Registry[T], option: str) -> tuple[str, dict[str, Any]]:
    """Name and options of one strategy, neither of them looked up; errors as for `read_strategy`."""
    found = read_names(text, option)
    if not found:
        raise _nothing(registry, option)
    if len(found) > 1:
        raise ConfigError(f"{option} takes one {registry.kind} here, not {short(text)!r}")
    return found[0]


def read_names(text: str, option: str) -> list[tuple[str, dict[str, Any]]]:
    """Names with their options, as they stand in a list.

    >>> read_names("tail[queries=16 pool=5], lookahead", "--scorer")
    [('tail', {'queries': 16, 'pool': 5}), ('lookahead', {})]
    """
    found, at, text = [], 0, text.strip()
    while at < len(text):
        match = ITEM.match(text, at)
        if not match or not match["name"].strip():
            wanted = "takes names with commas between them, options as in tail[queries=16 pool=5]"
            raise ConfigError(f"{option} {wanted}, not {short(text)!r}")
        found.append((match["name"].strip(), read_options(match["options"] or "", option)))
        at = match.end()
        while at < len(text) and text[at] == " ":
            at += 1
    return found


def read_options(text: str, option: str) -> dict[str, Any]:
    """Options such as ``queries=16 pool=5``."""
    found = {}
    for setting in text.split():
        name, equals, value = setting.partition("=")
        if not (equals and name and value) or NEXT_OPTION.search(value):
            raise ConfigError(f"{option}: options are NAME=VALUE with spaces between them, not {short(setting)!r}")
        found[name] = read_value(value, f"{option}: {short(name)}")
    return found


def _nothing(registry: Registry[Any], option: str) -> ConfigError:
    return ConfigError(f"{option} names nothing; known: {listed(registry)}")
