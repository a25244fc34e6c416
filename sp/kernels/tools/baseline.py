"""The committed record of the resources that kernels need, by compiler version, and the comparison with it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from sp.errors import ConfigError
from sp.kernels import nvrtc
from sp.kernels.tools.resources import Resources

BASELINE = Path(__file__).parents[3] / "tests" / "data" / "kernel_resources.json"
GROWTH = 1.1  # registers may grow by this factor
Rows = dict[str, Resources]


class Baseline(NamedTuple):
    """The record of one compiler. `rows`: resources by row name; `compiled`: by the same names a hash of the compiled
    text and options, for rows without problems."""

    rows: Rows
    compiled: dict[str, str]


def compare(rows: Rows, known: Rows | None) -> tuple[list[str], list[str]]:
    """Compare resources with a baseline and return problems and remarks; without a baseline only spills are problems. A
    stack frame larger than the spills holds an array in local memory that is indexed at run time."""
    problems, remarks = [], []
    for name, need in rows.items():
        was = (known or {}).get(name)
        if need.spill > (was.spill if was else 0):
            problems.append(f"{name}: {need.spill} bytes of spills, {was.spill if was else 0} before")
        if known is not None and need.stack > (most := was.stack if was else need.spill):
            problems.append(f"{name}: {need.stack} bytes of stack frame, of arrays or tables, {most} expected")
        if was and need.registers > was.registers * GROWTH:
            problems.append(f"{name}: {need.registers} registers, {was.registers} before")
        if known is not None and was is None:
            remarks.append(f"{name}: not in the baseline; add it with --update")
    return problems, remarks


def compiler() -> str:
    """Return the compiler's version, the key of a baseline: other versions allocate other registers."""
    return ".".join(map(str, nvrtc.version()))


def read_baseline(path: Path) -> Baseline | None:
    """Return the resources recorded for this compiler; None if there are none."""
    recorded, needs = _read(path).get(compiler()), len(fields(Resources))
    if recorded is None:
        return None
    try:
        rows = {name: Resources(*row[:needs]) for name, row in recorded.items()}
        return Baseline(rows, {name: str(row[needs]) for name, row in recorded.items() if len(row) > needs})
    except (AttributeError, TypeError):
        raise ConfigError(f"{path} is not a baseline of kernel resources; write a new one with --update") from None


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Record resources for this compiler, one row per line; those for other compilers are preserved."""
    rows = {name: [*asdict(need).values(), *_hash(baseline, name)] for name, need in sorted(baseline.rows.items())}
    recorded = {**_read(path), compiler(): rows}
    blocks = []
    for version, known in sorted(recorded.items()):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in known.items())
        blocks.append(f" {json.dumps(version)}: {{\n{lines}\n }}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def _hash(baseline: Baseline, name: str) -> tuple[str, ...]:
    return (baseline.compiled[name],) if name in baseline.compiled else ()


def _read(path: Path) -> dict[str, Any]:
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the baseline {path}: {error}") from None
    if not isinstance(recorded, dict):
        raise ConfigError(f"{path} is not a baseline of kernel resources")
    return recorded
