"""The committed record of what kernels need, by compiler version, and what counts as worse than it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from sp.errors import ConfigError
from sp.kernels import nvrtc
from sp.kernels.tools.resources import Resources

BASELINE = Path(__file__).parents[3] / "tests" / "data" / "kernel_resources.json"
GROWTH = 1.1
Rows = dict[str, Resources]


class Baseline(NamedTuple):
    """What a file records for one compiler. `compiled`: by the same names a hash of what was compiled, of those that
    nothing was wrong with."""

    rows: Rows
    compiled: dict[str, str]


def compare(rows: Rows, known: Rows | None) -> tuple[list[str], list[str]]:
    """Problems and remarks of needs against a baseline; without one only spills are problems. A stack frame beyond the
    spills holds an array whose places the compiler does not know, in local memory."""
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
    """The compiler's version, under which a baseline is kept: other versions give other registers."""
    return ".".join(map(str, nvrtc.version()))


def read_baseline(path: Path) -> Baseline | None:
    """Needs recorded for this compiler; None if there are none."""
    recorded, needs = _read(path).get(compiler()), len(fields(Resources))
    if recorded is None:
        return None
    try:
        rows = {name: Resources(*row[:needs]) for name, row in recorded.items()}
        return Baseline(rows, {name: str(row[needs]) for name, row in recorded.items() if len(row) > needs})
    except (AttributeError, TypeError):
        raise ConfigError(f"{path} is not a baseline of kernel resources; write a new one with --update") from None


def write_baseline(path: Path, found: Baseline) -> None:
    """Record needs for this compiler, one row a line; those for other compilers stay."""
    mine = {name: [*asdict(need).values(), *_hash(found, name)] for name, need in sorted(found.rows.items())}
    recorded = {**_read(path), compiler(): mine}
    blocks = []
    for version, known in sorted(recorded.items()):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in known.items())
        blocks.append(f" {json.dumps(version)}: {{\n{lines}\n }}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def _hash(found: Baseline, name: str) -> tuple[str, ...]:
    return (found.compiled[name],) if name in found.compiled else ()


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
