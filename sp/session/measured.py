"""Measured break-even: the prompt length from which compression pays, from records of times to first token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isclose, log
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.json_lines import ATOM, LIST, OBJECT, TEXT, FieldType, check, number, read_jsonl, whole
from sp.kernels.machine import machine_facts, machine_slug
from sp.models.network.arithmetic import attention_only_label, prequantized_label
from sp.quant import Math
from sp.scoring import Scorer
from sp.scoring.base import drafting
from sp.scoring.sparse import DRAFTING
from sp.session.device_memory import format_bytes
from sp.session.loaded import Loaded

POSITIVE = number(1e-9)
PLAIN_PRECISIONS = (str(Math.BF16), str(Math.BF16))
TIMED: Mapping[str, FieldType] = {
    "prompt_tokens": whole(1),
    "keep_ratio": number(0, 1),
    **dict.fromkeys((*DRAFTING, "vram"), ATOM.optional),
    **dict.fromkeys(("cards", "target_cards"), whole(1).optional),
}  # required fields in the configuration of a `ttft` record
TIMES: Mapping[str, FieldType] = {
    "ttft_s": POSITIVE.optional,
    "full_ttft_s": POSITIVE.optional,
    "full_runs": whole().optional,
}


def precisions_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the matmul precisions of target and drafter in a record; float32 of the CPU counts as its BF16."""

    def kind(role: str) -> str:
        value = config.get(f"{role}math")
        precision = str(Math.BF16) if value in (None, "f32") else str(value)
        if f"{role}kept_bytes" in config:  # weights were quantized before the run, which changes its times
            return prequantized_label(precision)
        return attention_only_label(precision) if f"{role}products" in config else precision

    return kind(""), kind("drafter_" if config.get("drafter_math") else "")


def target_alone(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration on the target's precision, for rows in which no drafter took part.

    >>> target_alone({"math": "int8", "kept_bytes": 9, "drafter_math": "bf16", "vram": None})
    {'math': 'int8', 'kept_bytes': 9}
    """
    return {name: config[name] for name in ("math", "kept_bytes") if name in config}


def precisions_text(config: Mapping[str, Any]) -> str:
    """Return `precisions_of` as text for reports; empty where all is BF16.

    >>> precisions_text({"math": "int8"}), precisions_text({"math": "bf16", "drafter_math": "int8"})
    ('int8', 'bf16 and int8')
    >>> precisions_text({"math": "bf16"})
    ''
    """
    target, drafter = precisions_of(config)
    return "" if (target, drafter) == PLAIN_PRECISIONS else target if target == drafter else f"{target} and {drafter}"


def gpus_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of GPUs on which the drafter of a record read, and the number that shared the target.

    >>> gpus_of({"cards": 2, "target_cards": 4}), gpus_of({"cards": 2}), gpus_of({})
    ((2, 4), (2, 1), (1, 1))
    """
    return config.get("cards") or 1, config.get("target_cards") or 1


@dataclass(frozen=True)
class BreakEven:
    """The measurements at one keep ratio.

    Attributes
    ----------
    keep_ratio : float
    drafting : mapping
        The values of `DRAFTING`.
    tokens : int or None
        Length in tokens from which compression paid, interpolated between `below` and `above`; None if it did not pay
        at the longest length.
    below, above : int or None
        Measured lengths around it: the last at which compression did not pay, the first from which on it did.
    shortest, longest : int
        Extremes of the measured lengths, in tokens.
    samples : int
        Fewest samples of any time that was used.
    vram : str or None
        Budget of device memory.
    precisions : (str, str)
        See `precisions_of`.
    gpus : (int, int)
        See `gpus_of`.
    """

    keep_ratio: float
    drafting: Mapping[str, Any]
    tokens: int | None
    below: int | None
    above: int | None
    shortest: int
    longest: int
    samples: int
    vram: str | None = None
    precisions: tuple[str, str] = PLAIN_PRECISIONS
    gpus: tuple[int, int] = (1, 1)

    def describe(self) -> str:
        """Return one phrase for reports."""
        n = f"n = {self.samples}"
        if self.tokens is None:
            return f"measured not to pay at any length from {self.shortest} to {self.longest} tokens ({n})"
        if self.below is None:
            return f"measured to pay from the shortest length on, {self.shortest} tokens ({n})"
        return f"measured to pay from {self.tokens} tokens on, between {self.below} and {self.above} ({n})"


def crossing(points: Sequence[tuple[int, float]]) -> tuple[int | None, int | None, int | None]:
    """Return the length from which a speed-up stays above one, and the measured lengths around it, as in `BreakEven`.

    `points` sequence of (tokens, speed-up): by ascending tokens, at least one. Between two lengths log(speed-up) is
    taken as linear in log(tokens).
    """
    losing = [i for i, (_, gain) in enumerate(points) if gain <= 1]  # lengths at which compression does not pay
    if not losing:
        return points[0][0], None, points[0][0]
    if losing[-1] + 1 == len(points):
        return None, points[-1][0], None
    (low, worse), (high, better) = points[losing[-1] : losing[-1] + 2]
    share = -log(worse) / (log(better) - log(worse))  # of the way from `low` to `high`, in logarithms
    return round(exp(log(low) + share * (log(high) - log(low)))), low, high


def measured_break_evens(records: Iterable[Mapping[str, Any]]) -> tuple[BreakEven, ...]:
    """Return the break-even of every budget, precision, number of GPUs, keep ratio below 1 and drafting setup.

    The records are of one pair and machine. The newest record of a length counts. Records without a full prefill of the
    same run are ignored.
    """
    groups: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for record in records:
        config, metrics = record["config"], record["metrics"]
        if config["keep_ratio"] < 1 and metrics.get("ttft_s") and metrics.get("full_ttft_s"):
            conditions = config.get("vram"), precisions_of(config), gpus_of(config)
            key = (*conditions, config["keep_ratio"], *map(config.get, DRAFTING))
            groups[key][config["prompt_tokens"]] = record  # a later record of the same length replaces an earlier one
    break_evens = []
    for (vram, precisions, gpus, keep, *settings), by_length in sorted(groups.items(), key=repr):
        # (tokens, speed-up).
        points = [(n, r["metrics"]["full_ttft_s"] / r["metrics"]["ttft_s"]) for n, r in sorted(by_length.items())]
        samples = min(min(len(r["samples"]), _full_runs(r)) for r in by_length.values())
        drafted = dict(zip(DRAFTING, settings, strict=True))
        even = BreakEven(keep, drafted, *crossing(points), points[0][0], points[-1][0], samples, vram, precisions, gpus)
        break_evens.append(even)
    return tuple(break_evens)


def _full_runs(record: Mapping[str, Any]) -> int:
    count = record["metrics"].get("full_runs")
    return 1 if count is None else int(count)  # older records have one full prefill and no count


def read_break_evens(
    path: Path,
    target: str,
    drafter: str,
    machine: str,
    vram: str | None,
    precisions: tuple[str, str] = PLAIN_PRECISIONS,
    gpus: tuple[int, int] = (1, 1),
) -> tuple[BreakEven, ...]:
    """Return the break-evens of one pair, precision, machine, number of GPUs and budget in a file of `ttft` records.

    ConfigError if the file cannot be read or has other content.
    """
    want = {"target": target, "drafter": drafter, "vram": vram}
    matching = []
    for line, record in enumerate(read_jsonl(path), 1):
        if record.get("bench") == "ttft":
            check_timed(record, f"{path}, line {line}")  # line numbers start at 1
            config = record["config"]
            alike = precisions_of(config) == precisions and gpus_of(config) == gpus
            if alike and all(config.get(name) == value for name, value in want.items()):
                matching.append(record)
    return measured_break_evens(r for r in matching if machine_slug(r) == machine)


def check_timed(record: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError unless a `ttft` record has its configuration, times, samples and machine."""
    check(record, {"config": OBJECT, "metrics": OBJECT, "samples": LIST}, where)
    check_machine(record, where)
    check(record["config"], TIMED, f"{where}: config")
    check(record["metrics"], TIMES, f"{where}: metrics")


def check_machine(record: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError unless a record names its GPU, or else its processor and cores."""
    check(record, {"gpu": TEXT} if record.get("gpu") else {"cpu": TEXT, "cores": whole()}, where)


def known_break_evens(
    records: Path | None, target: Loaded, drafter: Loaded, budget: int | None, gpus: tuple[int, int] = (1, 1)
) -> tuple[BreakEven, ...] | None:
    """Return the measurements of a pair on this machine within a budget; None without a file of records.

    ConfigError if the file cannot be read, or a file named by `records` has none of this pair on this machine.
    """
    machine = machine_slug(machine_facts(target.model.device))
    path = records or Path("results") / machine / "ttft.jsonl"  # where `sp bench ttft --record` writes
    if records is None and not path.exists():
        return None
    limit = format_bytes(budget)
    precisions = target.model.arithmetic.kind, drafter.model.arithmetic.kind
    break_evens = read_break_evens(path, target.path.name, drafter.path.name, machine, limit, precisions, gpus)
    if records is not None and not break_evens:
        conditions = "" if precisions == PLAIN_PRECISIONS else f" in {' and '.join(precisions)}"
        conditions += "" if gpus == (1, 1) else f" with {gpus[0]} GPUs for the drafter and {gpus[1]} for the target"
        raise ConfigError(
            f"{path} has no full and compressed prefill by {target.path.name} and "
            f"{drafter.path.name} on {machine}{f' within {limit}' if limit else ''}{conditions}; record some with "
            "sp bench ttft --record"
        )
    return break_evens


def find_break_even(break_evens: Iterable[BreakEven], keep_ratio: float, scorer: Scorer) -> BreakEven | None:
    """Return the measurement at a keep ratio with the scorer's drafting setup, if there is one."""
    settings = drafting(scorer)
    return next((b for b in break_evens if isclose(b.keep_ratio, keep_ratio) and dict(b.drafting) == settings), None)
