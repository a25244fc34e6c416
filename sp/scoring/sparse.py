"""Sparse: the rule, as a text, by which attention chooses key blocks, and how records and old options spell it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, NamedTuple

from sp.config import from_mapping
from sp.errors import LISTED, ConfigError, SpWarning, short, unknown_name
from sp.ops.skip_softmax import SkipSoftmax
from sp.ops.sparse.block_budget import BlockBudget, ConstantBlocks, EnergyBlocks, SqrtBlocks
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.values import preview

AUTO = "alpha:0.1"  # the rule of `auto` where attention is sparse
DRAFTING = ("scorer", "attention", "alpha", "density", "blocks")
"""Fields of a record's configuration that say how the drafter attended, which decides its cost; see `drafting`."""


Rule = FlashPrefill | TopDensity | BlockBudget | SkipSoftmax


class Form(NamedTuple):
    """How a rule is written: its class, and the names of the numbers behind its own, the first `least` needed."""

    rule: Callable[..., Rule]
    numbers: tuple[str, ...]
    least: int = 1

    @property
    def syntax(self) -> str:
        """The numbers as they are written, such as ``COUNT[:TOKENS]``."""
        needed, more = self.numbers[: self.least], self.numbers[self.least :]
        return ":".join(needed) + "".join(f"[:{name}" for name in more) + "]" * len(more)


FORMS: Mapping[str, Form] = {
    "alpha": Form(FlashPrefill, ("THRESHOLD",)),
    "density": Form(TopDensity, ("SHARE",)),
    "blocks": Form(ConstantBlocks, ("COUNT",)),
    "sqrt": Form(SqrtBlocks, ("COUNT", "TOKENS")),
    "energy": Form(EnergyBlocks, ("SHARE", "LEAST", "MOST")),
    "skip": Form(SkipSoftmax, ("BUDGET",)),
}
WHOLE = ("COUNT", "TOKENS", "LEAST", "MOST")
WRITTEN = ", ".join(["off, auto", *(f"{name}:{form.syntax}" for name, form in FORMS.items())])


def rule_of(text: str, option: str) -> Rule:
    """Parse a rule: its name and its numbers, separated by colons; ConfigError for anything else.

    >>> rule_of("blocks:64", "--sparse").count, rule_of("alpha:0.1", "--sparse").window
    (64, 4)
    >>> rule_of("skip:2", "--sparse")
    Traceback (most recent call last):
    sp.errors.ConfigError: --sparse skip:2: skip is 2.0; it must be at least 0 and below 1
    """
    name, *numbers = _canonical(text, option).split(":")
    form = FORMS[name]
    values = [int(n) if kind in WHOLE else float(n) for kind, n in zip(form.numbers, numbers, strict=False)]
    try:
        return form.rule(*values)
    except ConfigError as error:
        raise as_written(error, f"{option} {short(text)}") from None


def target_rule(options: Mapping[str, object]) -> FlashPrefill | SkipSoftmax:
    """Build the rule of the target's attention from its options; ConfigError for unknown ones and for two rules.

    >>> target_rule({"skip": 0.05}), target_rule({"alpha": 0.1, "window": 2}).window
    (SkipSoftmax(skip=0.05), 2)
    """
    known = [field.name for field in fields(FlashPrefill)]
    for name in options:
        if name not in (*known, "skip"):
            raise unknown_name("option of target", name, [*known, "skip"])
        if name != "skip" and "skip" in options:
            raise ConfigError(f"target.skip and target.{name} belong to different rules; omit one")
    try:
        if "skip" in options:
            return from_mapping(SkipSoftmax, options, "target")
        return from_mapping(FlashPrefill, options, "target")
    except ConfigError as error:
        raise as_written(error, "target") from None


def rule_text(rule: FlashPrefill | SkipSoftmax) -> str:
    """Return a rule of the target's attention for columns and reports: its number, then options that were changed.

    >>> rule_text(SkipSoftmax(0.05)), rule_text(FlashPrefill(0.1, window=2))
    ('skip:0.05', 'alpha:0.1 window=2')
    """
    first, *others = fields(rule)
    changed = [f"{f.name}={value}" for f in others if (value := getattr(rule, f.name)) != f.default]
    return " ".join([f"{first.name}:{number_text(getattr(rule, first.name))}", *changed])


def as_written(error: ConfigError, where: str) -> ConfigError:
    """Return the error of a rule with the place where its number was written, instead of the rule's class."""
    problem = str(error).partition(": ")[2].replace("at is", "TOKENS is")
    return ConfigError(f"{where}: {short(problem, LISTED)}")


def number_text(number: float) -> str:
    """Return the one text of a number.

    >>> number_text(5e-2), number_text(1), number_text(-0.0)
    ('0.05', '1', '0')
    """
    return repr(number + 0.0).removesuffix(".0")


def _canonical(text: str, option: str) -> str:
    """Return a rule as records have it, so that ``skip:5e-2`` and ``skip:0.05`` are one; ConfigError for no rule."""
    name, *numbers = text.split(":")
    name = "blocks" if name == "constant" else name  # as records have it
    form = FORMS.get(name)
    if form is None or not form.least <= len(numbers) <= len(form.numbers):
        raise ConfigError(f"{option} takes {WRITTEN}, as in alpha:0.1, not {text[:40]!r}")
    written = [name]
    for kind, number in zip(form.numbers, numbers, strict=False):
        try:
            written.append(str(int(number)) if kind in WHOLE else number_text(float(number)))
        except ValueError:
            noun = "a whole number" if kind in WHOLE else "a number"
            raise ConfigError(f"{option} {short(text)}: {kind} in {name}:{form.syntax} must be {noun}") from None
    return ":".join(written)


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
        if text in ("off", "auto"):
            return cls(text)
        rule_of(text, option)
        return cls(_canonical(text, option))

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
