"""What records of benchmarks must have before tables and pictures of a report may use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sp.bench.record import newest
from sp.bench.simulate import SIMULATED
from sp.json_lines import ATOM, LIST, OBJECT, TEXT, Wanted, check, check_each, number, whole
from sp.session.measured import check_machine, check_timed

Record = dict[str, Any]

TTFT_CONFIG: Mapping[str, Wanted] = {
    "target": TEXT,
    "kv": TEXT,
    **dict.fromkeys(("drafter", "scorer", "attention", "vram", "path", "engine", "selector", "blocks"), TEXT.optional),
    **{name: number().optional for name in ("alpha", "density")},
    "new_tokens": whole().optional,
}
TTFT: Mapping[str, Wanted] = {
    "stages": OBJECT,
    "error": TEXT.optional,
    **{name: number(0).optional for name in ("first_ttft_s", "cold_ttft_s", "density", "decode_tok_s", "speedup")},
    **{name: whole().optional for name in ("cold_compiled", "kept_tokens", "peak_bytes", "full_runs")},
    "process": ATOM.optional,
}
PAIR: Mapping[str, Wanted] = {"model": TEXT, "draft": TEXT, "context": whole(), "kv": TEXT, "path": TEXT}
DECODE_CONFIG: Mapping[str, Wanted] = {**PAIR, "method": TEXT, "budget": whole(), "mode": TEXT}
LENGTHS = ("acceptance_length", "acceptance_low", "acceptance_high")
DECODE: Mapping[str, Wanted] = {
    **dict.fromkeys((*LENGTHS, "tok_s", "tok_s_low", "tok_s_high", "speedup", "pass_ms", "greedy_tok_s"), number(0)),
    "passes": whole(),
}
REAL: Mapping[str, Wanted] = {"equal": whole(), "answers": whole(), "by_task": OBJECT}
"""Of answers that were compared, task by task; simulated acceptance has none."""
BY_TASK: Mapping[str, Wanted] = {**dict.fromkeys(LENGTHS, number(0)), "answers": whole()}
VERIFY_CONFIG: Mapping[str, Wanted] = {**PAIR, "pass": TEXT, "nodes": whole()}
VERIFY: Mapping[str, Wanted] = dict.fromkeys(
    ("ms", "ratio_to_decode", "decode_ms", "draft_ms", "keep_ms", "propose_ms"), number(0)
)


def newest_checked(path: Path) -> list[Record]:
    """The last record of every configuration in a file, those that a report shows with all it needs of them.

    Raises
    ------
    ConfigError
        The file cannot be read, or a record of `CHECKS` lacks something; it is named by its place among these.
    """
    return [checked(record, f"{path}, record {n}") for n, record in enumerate(newest(path), 1)]


def checked(record: Record, where: str) -> Record:
    """A record that tables can use: fields of its configuration that may be missing are null."""
    check(record, {"bench": TEXT}, where)
    make = CHECKS.get(record["bench"])
    if make is None:
        return record
    check(record, {"config": OBJECT, "metrics": OBJECT, "samples": LIST}, where)
    check_machine(record, where)
    return make(record, where)


def _ttft(record: Record, where: str) -> Record:
    check_timed(record, where)
    config, metrics = record["config"], record["metrics"]
    check(config, TTFT_CONFIG, f"{where}: config")
    if config["keep_ratio"] < 1:
        check(config, {"scorer": TEXT}, f"{where}: config")
    check(metrics, TTFT, f"{where}: metrics")
    check_each(metrics["stages"], number(0), f"{where}: stages")
    return {**record, "config": {**dict.fromkeys(TTFT_CONFIG), **config}, "metrics": {"ttft_s": None, **metrics}}


def _decode(record: Record, where: str) -> Record:
    config, metrics = record["config"], record["metrics"]
    if "mode" not in config:
        return record
    check(config, {**DECODE_CONFIG, **({"acceptance": TEXT} if "acceptance" in config else {})}, f"{where}: config")
    check(metrics, DECODE, f"{where}: metrics")
    if config["mode"] != SIMULATED:
        check(metrics, REAL, f"{where}: metrics")
    by_task = metrics.get("by_task", {})
    check({"by_task": by_task}, {"by_task": OBJECT}, f"{where}: metrics")
    check_each(by_task, OBJECT, f"{where}: by_task")
    for measured in by_task.values():
        check(measured, BY_TASK, f"{where}: by_task")
    return record


def _verify(record: Record, where: str) -> Record:
    check(record["config"], VERIFY_CONFIG, f"{where}: config")
    check(record["metrics"], VERIFY, f"{where}: metrics")
    return record


CHECKS: Mapping[str, Callable[[Record, str], Record]] = {"ttft": _ttft, "decode": _decode, "verify": _verify}
"""By benchmark, of those that a report shows."""
