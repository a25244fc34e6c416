"""Strategies on the command line: lists of names with options in square brackets, and `--set GROUP.NAME=VALUE`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sp.config import Registry, from_mapping
from sp.errors import ConfigError, short
from sp.plain_yaml import read_value

T = TypeVar("T")

GROUPS = ("scorer", "selector", "target", "decode")
ITEM = re.compile(r"(?P<name>[^,\[\]]+?)\s*(?:\[(?P<options>[^\]]*)\])?\s*(?:,|$)")
NEXT_OPTION = re.compile(r",[a-z_]+=")
"""A comma where a space should part options: YAML would read all behind it as one value."""


def read_strategies(text: str, registry: Registry[T], option: str, common: Mapping[str, Any] | None = None) -> list[T]:
    """Strategies such as ``tail,lookahead[queries=4 pool=5]``; values are read as YAML.

    Parameters
    ----------
    text : str
    registry : Registry
        Where the names stand.
    option : str
        What the text was given to, for messages.
    common : mapping, optional
        Options of all that have them and are not given others.

    Raises
    ------
    ConfigError
        For a list that cannot be read, or an unknown name or option.

    Examples
    --------
    >>> from sp.scoring import SCORERS
    >>> [one.queries for one in read_strategies("tail[queries=16 pool=5], lookahead", SCORERS, "--scorer")]
    [16, 8]
    """
    found, at, text = [], 0, text.strip()
    while at < len(text):
        match = ITEM.match(text, at)
        if not match or not match["name"].strip():
            raise ConfigError(
                f"{option} takes names with commas between them, options as in tail[queries=16 pool=5], "
                f"not {short(text)!r}"
            )
        name, given = match["name"].strip(), read_options(match["options"] or "", option)
        own = {field.name for field in dataclasses.fields(registry.class_of(name))}  # type: ignore[arg-type]
        shared = {key: value for key, value in (common or {}).items() if key in own}
        found.append(registry.build(name, shared | given))
        at = match.end()
        while at < len(text) and text[at] == " ":
            at += 1
    if not found:
        raise ConfigError(f"{option} names nothing; known: {', '.join(registry)}")
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


def read_settings(scorer: str, selector: str, decode: str, settings: Sequence[str]) -> dict[str, Any]:
    """Strategies of a run by name, with their `--set` options, as fields of `RunOptions`.

    A scorer's attention is left to device and prompt length unless it was set.

    Examples
    --------
    >>> read_settings("recency", "top_chunks", "greedy", ["selector.sink=4"])["selector"].sink
    4
    """
    from sp.decode import DECODERS
    from sp.ops.sparse.flashprefill import FlashPrefill
    from sp.scoring import SCORERS
    from sp.scoring.reading import by_length
    from sp.selection import SELECTORS

    scoring, selecting, sparse, decoding = (overrides(settings, group) for group in GROUPS)
    chosen = SCORERS.build(scorer, scoring)
    return {
        "scorer": chosen if "attention" in scoring else by_length(chosen),
        "selector": SELECTORS.build(selector, selecting),
        "sparse": from_mapping(FlashPrefill, sparse, "target") if sparse else None,
        "decode": DECODERS.build(decode, decoding),
    }


def overrides(settings: Sequence[str], group: str) -> dict[str, object]:
    """Options of `group` among `group.name=value` settings; values are read as YAML.

    Examples
    --------
    >>> overrides(["decode.budget=4", "scorer.queries=16"], "decode")
    {'budget': 4}
    """
    options = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        owner, dot, name = key.partition(".")
        if not (equals and dot and name) or owner not in GROUPS:
            raise ConfigError(
                "--set takes scorer.NAME=VALUE, selector.NAME=VALUE, target.NAME=VALUE or decode.NAME=VALUE, "
                f"not {short(setting)!r}"
            )
        if owner == group:
            options[name] = read_value(value, f"--set {short(key)}")
    return options


def read_shares(text: str, option: str) -> list[float]:
    """Numbers from 0 to 1: a list ``0,0.5,1``, or ``0..1/11`` for so many from one to the other.

    Examples
    --------
    >>> read_shares("0..1/5", "--depths"), read_shares("0.05,0.1", "--keep-ratio")
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.05, 0.1])
    """
    wanted = f"{option} takes numbers from 0 to 1 such as 0.05,0.1, or 0..1/11 for eleven of them, not {short(text)!r}"
    spread = re.fullmatch(r"\s*([\d.]+?)\.\.([\d.]+)/(\d+)\s*", text)
    try:
        if spread:
            low, high, amount = float(spread[1]), float(spread[2]), int(spread[3])
            found = [low + (high - low) * i / max(1, amount - 1) for i in range(amount)]
        else:
            found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(wanted) from None
    if not found or not all(0 <= one <= 1 for one in found):
        raise ConfigError(wanted)
    return found
