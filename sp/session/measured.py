"""BreakEven: the prompt length from which on compression was measured to pay, from records of times to first token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isclose, log
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.json_lines import ATOM, LIST, OBJECT, TEXT, Wanted, check, number, read_jsonl, whole
from sp.kernels.machine import machine_facts, machine_slug
from sp.models.network.arithmetic import attention_only_label, prequantized_label
from sp.quant import Math
from sp.scoring import Scorer
from sp.scoring.base import DRAFTING, drafting
from sp.session.device_memory import format_bytes
from sp.session.loaded import Loaded

POSITIVE = number(1e-9)
PLAIN_PRECISIONS = (str(Math.BF16), str(Math.BF16))
TIMED: Mapping[str, Wanted] = {
    "prompt_tokens": whole(1),
    "keep_ratio": number(0, 1),
    **dict.fromkeys((*DRAFTING, "vram"), ATOM.optional),
    **dict.fromkeys(("cards", "target_cards"), whole(1).optional),
}  # what the configuration of a `ttft` record must have
TIMES: Mapping[str, Wanted] = {
    "ttft_s": POSITIVE.optional,
    "full_ttft_s": POSITIVE.optional,
    "full_runs": whole().optional,
}


def precisions_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """What target and drafter of a record multiplied; float32 of the CPU is its BF16."""

    def kind(role: str) -> str:
        precision = config.get(f"{role}math")
        found = str(Math.BF16) if precision in (None, "f32") else str(precision)
        if f"{role}kept_bytes" in config:
            return prequantized_label(found)
        return attention_only_label(found) if f"{role}products" in config else found

    return kind(""), kind("drafter_" if config.get("drafter_math") else "")


def target_alone(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration tells what the target multiplied, for rows that no drafter has a part in.

    >>> target_alone({"math": "int8", "kept_bytes": 9, "drafter_math": "bf16", "vram": None})
    {'math': 'int8', 'kept_bytes': 9}
    """
    return {name: config[name] for name in ("math", "kept_bytes") if name in config}


def precisions_text(config: Mapping[str, Any]) -> str:
    """`precisions_of` for people; empty where all is BF16.

    >>> precisions_text({"math": "int8"}), precisions_text({"math": "bf16", "drafter_math": "int8"})
    ('int8', 'bf16 and int8')
    >>> precisions_text({"math": "bf16"})
    ''
    """
    target, drafter = precisions_of(config)
    return "" if (target, drafter) == PLAIN_PRECISIONS else target if target == drafter else f"{target} and {drafter}"


def gpus_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """On how many GPUs the drafter of a record read, and how many shared the target.

    >>> gpus_of({"cards": 2, "target_cards": 4}), gpus_of({"cards": 2}), gpus_of({})
    ((2, 4), (2, 1), (1, 1))
    """
    return config.get("cards") or 1, config.get("target_cards") or 1


@dataclass(frozen=True)
class BreakEven:
    """What was measured at one keep ratio. `tokens`: compression paid from this length on, interpolated between `below`
    and `above`; None if it did not pay at the longest length; `below`, `above`: measured lengths round it: the last at
    which compression did not pay, the first from which on it did; `shortest`, `longest`: measured lengths, in tokens.
    """

    keep_ratio: float
    drafting: Mapping[str, Any]  # the values of `DRAFTING`
    tokens: int | None
    below: int | None
    above: int | None
    shortest: int
    longest: int
    samples: int  # fewest samples behind a time that was used
    vram: str | None = None  # the budget of device memory
    precisions: tuple[str, str] = PLAIN_PRECISIONS  # what target and drafter multiplied, see `precisions_of`
    gpus: tuple[int, int] = (1, 1)  # see `gpus_of`

    def describe(self) -> str:
        """One phrase for reports."""
        n = f"n = {self.samples}"
        if self.tokens is None:
            return f"measured not to pay at any length from {self.shortest} to {self.longest} tokens ({n})"
        if self.below is None:
            return f"measured to pay from the shortest length on, {self.shortest} tokens ({n})"
        return f"measured to pay from {self.tokens} tokens on, between {self.below} and {self.above} ({n})"


def crossing(points: Sequence[tuple[int, float]]) -> tuple[int | None, int | None, int | None]:
    """Length at which a speed-up passes one for good, and the lengths round it. `points` sequence of (tokens,
    speed-up): by ascending tokens; at least one; Returns tokens, below, above: as in `BreakEven`; between two lengths
    log(speed-up) is taken as linear in log(tokens).
    """
    losing = [i for i, (_, gain) in enumerate(points) if gain <= 1]
    if not losing:
        return points[0][0], None, points[0][0]
    if losing[-1] + 1 == len(points):
        return None, points[-1][0], None
    (low, worse), (high, better) = points[losing[-1] : losing[-1] + 2]
    share = -log(worse) / (log(better) - log(worse))
    return round(exp(log(low) + share * (log(high) - log(low)))), low, high


def measured_break_evens(records: Iterable[Mapping[str, Any]]) -> tuple[BreakEven, ...]:
    """Break-even of every budget, arithmetic, number of GPUs, keep ratio below 1 and way of drafting in records. They
    are of one pair and machine. The newest record of a length counts. Records without a full prefill of the same run
    are of no use here.
    """
    groups: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for record in records:
        config, metrics = record["config"], record["metrics"]
        if config["keep_ratio"] < 1 and metrics.get("ttft_s") and metrics.get("full_ttft_s"):
            made = config.get("vram"), precisions_of(config), gpus_of(config)
            key = (*made, config["keep_ratio"], *map(config.get, DRAFTING))
            groups[key][config["prompt_tokens"]] = record
    found = []
    for (vram, precisions, gpus, keep, *how), by_length in sorted(groups.items(), key=repr):
        points = [(n, r["metrics"]["full_ttft_s"] / r["metrics"]["ttft_s"]) for n, r in sorted(by_length.items())]
        samples = min(min(len(r["samples"]), _full_runs(r)) for r in by_length.values())
        drafted = dict(zip(DRAFTING, how, strict=True))
        even = BreakEven(keep, drafted, *crossing(points), points[0][0], points[-1][0], samples, vram, precisions, gpus)
        found.append(even)
    return tuple(found)


def _full_runs(record: Mapping[str, Any]) -> int:
    told = record["metrics"].get("full_runs")
    return 1 if told is None else int(told)


def read_break_evens(
    path: Path,
    target: str,
    drafter: str,
    machine: str,
    vram: str | None,
    precisions: tuple[str, str] = PLAIN_PRECISIONS,
    gpus: tuple[int, int] = (1, 1),
) -> tuple[BreakEven, ...]:
    """Break-evens of one pair, arithmetic, machine, number of GPUs and memory limit in a file of `ttft` records.
    ConfigError: the file cannot be read or is no file of records.
    """
    want = {"target": target, "drafter": drafter, "vram": vram}
    mine = []
    for line, record in enumerate(read_jsonl(path), 1):
        if record.get("bench") == "ttft":
            check_timed(record, f"{path}, line {line}")
            config = record["config"]
            alike = precisions_of(config) == precisions and gpus_of(config) == gpus
            if alike and all(config.get(name) == value for name, value in want.items()):
                mine.append(record)
    return measured_break_evens(r for r in mine if machine_slug(r) == machine)


def check_timed(record: Mapping[str, Any], where: str) -> None:
    """ConfigError unless a `ttft` record tells of what it timed, how long, and where."""
    check(record, {"config": OBJECT, "metrics": OBJECT, "samples": LIST}, where)
    check_machine(record, where)
    check(record["config"], TIMED, f"{where}: config")
    check(record["metrics"], TIMES, f"{where}: metrics")


def check_machine(record: Mapping[str, Any], where: str) -> None:
    """ConfigError unless a record names its GPU, or else its processor and cores."""
    check(record, {"gpu": TEXT} if record.get("gpu") else {"cpu": TEXT, "cores": whole()}, where)


def known_break_evens(
    records: Path | None, target: Loaded, drafter: Loaded, budget: int | None, gpus: tuple[int, int] = (1, 1)
) -> tuple[BreakEven, ...] | None:
    """What was measured of a pair on this machine within a budget of device memory; None without a file of records.
    ConfigError: the file cannot be read, or one was named that tells nothing of this pair on this machine.
    """
    machine = machine_slug(machine_facts(target.model.device))
    path = records or Path("results") / machine / "ttft.jsonl"
    if records is None and not path.exists():
        return None
    limit = format_bytes(budget)
    precisions = target.model.arithmetic.kind, drafter.model.arithmetic.kind
    found = read_break_evens(path, target.path.name, drafter.path.name, machine, limit, precisions, gpus)
    if records is not None and not found:
        told = "" if precisions == PLAIN_PRECISIONS else f" in {' and '.join(precisions)}"
        told += "" if gpus == (1, 1) else f" with {gpus[0]} GPUs that draft and {gpus[1]} that share the target"
        raise ConfigError(
            f"{path} tells of no full and compressed prefill by {target.path.name} and "
            f"{drafter.path.name} on {machine}{f' within {limit}' if limit else ''}{told}; make some with "
            "sp bench ttft --record"
        )
    return found


def find_break_even(found: Iterable[BreakEven], keep_ratio: float, scorer: Scorer) -> BreakEven | None:
    """The one measured at a keep ratio with this way of drafting, if there is one."""
    how = drafting(scorer)
    return next((b for b in found if isclose(b.keep_ratio, keep_ratio) and dict(b.drafting) == how), None)
