"""What `record_all.py` measures: the items of `records.yaml`, GPU tests without a record, and llama.cpp beside them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sp.bench.record import GPU_TESTS, is_current, newest, old_keys

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "gpu"
TABLE = ROOT / "sp" / "ops" / "matmul" / "dispatch_table.json"
PLAN: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("records.yaml").read_text(encoding="utf-8"))
PROGRAMS = {"sp": ("-m", "sp.cli"), "pytest": ("-m", "pytest", "-q")}
TESTS_A_RUN, TEST_SECONDS = 6, 11


@dataclass(frozen=True)
class Want:
    """Records that an item leaves: so many of a benchmark whose configuration has these values."""

    bench: str
    count: int = 1
    keys: Mapping[str, Any] = field(default_factory=dict)

    def there(self, folder: Path) -> int:
        """How many there are of today's kernels, in the folder of a machine."""
        file = folder / f"{self.bench}.jsonl"
        mine = (
            record
            for record in (newest(file) if file.exists() else ())
            if all(record["config"].get(key) == value for key, value in self.keys.items())
        )
        return sum(map(is_current, mine))


@dataclass(frozen=True)
class Item:
    """One command; {results} and {scratch} in it stand for folders. `alone`: nothing else runs meanwhile."""

    name: str
    command: Sequence[str]
    seconds: float
    wants: Sequence[Want] = ()
    alone: bool = False

    def done(self, folder: Path) -> bool:
        """Whether its records are there, of today's kernels; one that leaves none always runs."""
        return bool(self.wants) and all(want.there(folder) >= want.count for want in self.wants)


def items(part: str, gpus: int = 1) -> list[Item]:
    """Those of a part of the plan."""
    alone = part in ("first", "cards")
    prefix = "cards, " if part == "cards" else ""
    return [
        Item(prefix + row["name"], command(row["run"], gpus), row["seconds"], wants(row, gpus), alone)
        for row in PLAN[part]
    ]


def command(text: str, gpus: int) -> tuple[str, ...]:
    """A line of the plan as this checkout runs it."""
    for word, said in (PLAN["words"] | {"cards": str(gpus)}).items():
        text = text.replace(f"{{{word}}}", said)
    program, *rest = shlex.split(text)
    return (sys.executable, *PROGRAMS.get(program, (program,)), *rest)


def wants(row: Mapping[str, Any], gpus: int) -> tuple[Want, ...]:
    """What an item leaves."""
    return tuple(
        Want(bench, count, {key: gpus if value == "{cards}" else value for key, value in dict(*keys).items()})
        for bench, count, *keys in row.get("leaves", ())
    )


def several(gpus: int) -> list[Item]:
    """Tests and benchmarks of so many GPUs; none of one."""
    return items("cards", gpus) if gpus > 1 else []


def tests(folder: Path) -> list[Item]:
    """Files of GPU tests without a record of today's kernels, a few a run."""
    names = old_keys(folder / f"{GPU_TESTS}.jsonl", TESTS)
    parts = [names[start : start + TESTS_A_RUN] for start in range(0, len(names), TESTS_A_RUN)]
    return [
        Item(
            f"tests {', '.join(name.removeprefix('test_').removesuffix('.py') for name in part)}",
            command(f"pytest {' '.join(f'tests/gpu/{name}' for name in part)} {{record}}", 1),
            TEST_SECONDS * len(part),
            tuple(Want(GPU_TESTS, 1, {"tests": [name]}) for name in part),
        )
        for part in parts
    ]


def peer(program: str, file: str) -> list[Item]:
    """llama.cpp on a file of the 27B shapes, if its program is there."""
    text = "-p 8k,32k -n 64 -b 2048,8192 -ub 512,2048 -r 3 {record}"
    run = command(f"sp bench llama-cpp --llama-bench {program} -m {file} {text}", 1)
    return [Item("llama.cpp", run, 330, (Want("prefill", 8, {"engine": "llama.cpp"}),))] if program else []


def plan(folder: Path, together: Sequence[Item] = ()) -> list[Item]:
    """All items, the most important first; `together` are those of several GPUs."""
    return [*items("first"), *together, *items("models"), *tests(folder), *items("kernels")]
