"""Sparse: the rule, as a text, by which attention chooses key blocks, and how records and old options spell it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sp.errors import ConfigError, SpWarning
from sp.ops.skip_softmax import SkipSoftmax
from sp.ops.sparse.block_budget import RULES, BlockBudget, read_rule
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.values import preview

AUTO = "alpha:0.1"  # the rule of `auto` where attention is sparse
DRAFTING = ("scorer", "attention", "alpha", "density", "blocks")
"""Fields of a record's configuration that say how the drafter attended, which decides its cost; see `drafting`."""


Rule = FlashPrefill | TopDensity | BlockBudget | SkipSoftmax
BY_NUMBER: Mapping[str, Callable[[float], Rule]] = {"alpha": FlashPrefill, "density": TopDensity, "skip": SkipSoftmax}
WRITTEN = (
    "off, auto, alpha:THRESHOLD, density:SHARE, blocks:COUNT, sqrt:COUNT[:TOKENS], energy:SHARE[:LEAST[:MOST]] "
    "or skip:BUDGET"
)


def rule_of(text: str, option: str) -> Rule:
    """Parse a rule: its name and its numbers, separated by colons; ConfigError for anything else.

    >>> rule_of("blocks:64", "--sparse").count, rule_of("alpha:0.1", "--sparse").window
    (64, 4)
    """
    name, _, number = text.partition(":")
    try:
        if name in BY_NUMBER:
            return BY_NUMBER[name](float(number))
        if name.replace("blocks", "constant") in RULES and number.replace(":", "").replace(".", "").isdigit():
            return read_rule(text.replace("blocks:", "constant:", 1), option)
    except ValueError:
        pass
    raise ConfigError(f"{option} takes {WRITTEN}, as in alpha:0.1, not {text[:40]!r}")


def predicted_density(rule: Rule, tokens: int) -> float:
    """Return the share of the causal blocks that a prompt of so many tokens is predicted to read: 1 for
    `SkipSoftmax`, since what it leaves out depends on the text.

    >>> predicted_density(SkipSoftmax(0.05), 131072), round(predicted_density(FlashPrefill(0.1), 131072), 2)
    (1.0, 0.05)
    """
    return 1.0 if isinstance(rule, SkipSoftmax) else expected_density(rule, tokens)


class Sparse(str):
    """Rule by which attention chooses key blocks: ``off`` (all of them), ``auto``, or as in `rule_of`."""

    @classmethod
    def parse(cls, text: str, option: str) -> Sparse:
        """Parse a value; ConfigError, which names the option, for anything else."""
        if text not in ("off", "auto"):
            rule_of(text, option)
        return cls(text.replace("constant:", "blocks:", 1))

    @cached_property
    def rule(self) -> Rule | None:
        """The rule that selects blocks; None for all blocks, and for `auto` that is not resolved."""
        return None if self in ("off", "auto") else rule_of(self, "sparse")

    def recorded(self) -> dict[str, Any]:
        """Return the fields of a record, which have the names from before there was one option.

        >>> Sparse("blocks:64").recorded()
        {'attention': 'flashprefill', 'alpha': None, 'density': None, 'blocks': 'constant:64'}
        """
        name, _, number = self.partition(":")
        record: dict[str, Any] = dict.fromkeys(DRAFTING[1:])
        record["attention"] = {"off": "dense", "auto": "auto", "skip": "skip_softmax"}.get(name, "flashprefill")
        if name in record:
            record[name] = f"constant:{number}" if name == "blocks" else float(number)
        elif number:
            record["blocks"] = str(self)
        return record


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a scorer with old names of `sparse` replaced by it; a warning names them."""
    rest = {name: value for name, value in values.items() if name not in DRAFTING[1:]}
    old = {name: value for name, value in values.items() if name not in rest and value is not None}
    if not old:
        return rest
    attention = old.get("attention", "flashprefill")
    if attention not in ("dense", "flashprefill", "auto"):
        raise ConfigError(f"attention must be dense, flashprefill or auto, not {preview(attention)}; try sparse={AUTO}")
    number = next((name for name in ("density", "alpha") if name in old), None)
    rule = (
        old["blocks"].replace("constant", "blocks")
        if "blocks" in old
        else f"{number}:{old[number]:g}"
        if number
        else AUTO
    )
    sparse = {"dense": "off", "auto": "auto" if number is None else rule}.get(attention, rule)
    if sparse == "off" and old.keys() & {"density", "blocks"}:
        raise ConfigError("attention dense reads all blocks; omit it, or omit density and blocks")
    warnings.warn(f"{' and '.join(old)} of a scorer: an old spelling; write sparse={sparse}", SpWarning, stacklevel=2)
    return rest | {"sparse": sparse}
