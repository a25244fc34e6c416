"""The committed record of what kernels need, by compiler version, and what counts as worse than it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.kernels import nvrtc
from sp.kernels.tools.resources import Resources

BASELINE = Path(__file__).parents[3] / "tests" / "data" / "kernel_resources.json"
GROWTH = 1.1
Rows = dict[str, Resources]


def compare(rows: Rows, known: Rows | None) -> tuple[list[str], list[str]]:
    """Problems and remarks of needs against a baseline; without one only spills are problems."""
    problems, remarks = [], []
    for name, need in rows.items():
        was = (known or {}).get(name)
        if need.spill > (was.spill if was else 0):
            problems.append(f"{name}: {need.spill} bytes of spills, {was.spill if was else 0} before")
        if was and need.registers > was.registers * GROWTH:
            problems.append(f"{name}: {need.registers} registers, {was.registers} before")
        if known is not None and was is None:
            remarks.append(f"{name}: not in the baseline; add it with --update")
    return problems, remarks


def compiler() -> str:
    """The compiler's version, under which a baseline is kept: other versions give other registers."""
    return ".".join(map(str, nvrtc.version()))


def read_baseline(path: Path) -> Rows | None:
    """Needs recorded for this compiler; None if there are none."""
    recorded = _read(path).get(compiler())
    try:
        return {name: Resources(*row) for name, row in recorded.items()} if recorded is not None else None
    except (AttributeError, TypeError):
        raise ConfigError(f"{path} is not a baseline of kernel resources; write a new one with --update") from None


def write_baseline(path: Path, rows: Mapping[str, Resources]) -> None:
    """Record needs for this compiler, one row a line; those for other compilers stay."""
    recorded = {**_read(path), compiler(): {name: list(asdict(need).values()) for name, need in sorted(rows.items())}}
    blocks = []
    for version, known in sorted(recorded.items()):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in known.items())
        blocks.append(f" {json.dumps(version)}: {{\n{lines}\n }}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


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
