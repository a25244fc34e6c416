"""Strategies on the command line: names with their options, `--set GROUP.NAME=VALUE`, and lists of shares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sp.config import from_mapping
from sp.errors import ConfigError, short, unknown_name
from sp.named import read_name, read_strategy
from sp.plain_yaml import read_value

GROUPS = ("scorer", "selector", "target", "decode")


def read_settings(scorer: str, selector: str, decode: str, settings: Sequence[str]) -> dict[str, Any]:
    """Strategies of a run, each as ``name`` or ``name[option=value]``, with `--set` options, as fields of `RunOptions`.

    A scorer's attention is left to device and prompt length unless it was set.

    Examples
    --------
    >>> read_settings("recency", "top_chunks[tail=2]", "greedy", ["selector.sink=4"])["selector"].sink
    4
    """
    from sp.decode import DECODERS
    from sp.ops.sparse.flashprefill import FlashPrefill
    from sp.scoring import SCORERS
    from sp.scoring.reading import by_length
    from sp.selection import SELECTORS

    scoring, selecting, sparse, decoding = (overrides(settings, group) for group in GROUPS)
    name, own = read_name(scorer, SCORERS, "--scorer")
    given = getattr(SCORERS.class_of(name), "renamed", dict)(own | scoring)
    chosen = SCORERS.build(name, given)
    return {
        "scorer": chosen if "sparse" in given else by_length(chosen),
        "selector": read_strategy(selector, SELECTORS, "--selector", selecting),
        "target_sparse": from_mapping(FlashPrefill, sparse, "target") if sparse else None,
        "decode": read_strategy(decode, DECODERS, "--decode", decoding),
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
        if equals and dot and owner not in GROUPS:
            raise unknown_name("group of --set", owner, GROUPS)
        if not (equals and dot and name):
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
