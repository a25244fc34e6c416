"""Folders of `sp run` with damaged traces: a report is drawn of each, or refuses it in one short line.

A share runs as `test_hostile_inputs.py`; many more with `gguf/fuzz_inputs.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_texts import changed_bytes, changed_json
from outcomes import Outcomes
from safetensors.numpy import save

from sp.studies.plots.maps import SavedRun, importance_map

TOKENS, CHUNKS = 320, 10
FACTS = {
    "spans": [
        {"kind": "needle", "start_byte": 128, "end_byte": 192}, {"kind": "question", "start_byte": 601, "end_byte": 640}
    ],
    "options": {"scorer": "tail"},
}  # fmt: skip
KINDS = ("float16", "float32", "float64", "int8", "uint64", "int64", "bool")


def arrays() -> dict[str, Any]:
    """Maps of three layers of four heads; every token covers two bytes."""
    starts, heads = 2 * np.arange(TOKENS), np.random.default_rng(0).random((3, 4, CHUNKS)).astype(np.float32)
    return {"drafter_bytes": np.stack([starts, starts + 2], axis=1), "by_head": heads, "by_layer": heads.max(axis=1)}


def changed(found: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One or two of the arrays gone, of another kind or shape, or with odd numbers."""
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(list(found) or ["by_head"])
        array, how = found.get(name, np.zeros(1)), rng.randrange(7)
        if how == 0:
            found.pop(name, None)
        elif how == 1:
            found[name] = array.astype(rng.choice(KINDS))
        elif how == 2:
            found[name] = array.reshape(rng.choice(((-1,), (1, *array.shape), (-1, 1), (*array.shape, 1), (1, 1, -1))))
        elif how == 3:
            found[name] = array[: rng.choice((0, 1, 2))]
        elif how == 4:
            odd = array.astype(np.float64)
            odd.flat[: rng.choice((1, 5))] = rng.choice((np.nan, np.inf, -np.inf, -1.0, 1e300, 0.0))
            with np.errstate(over="ignore"):
                found[name] = odd.astype(array.dtype) if array.dtype.kind == "f" else odd
        elif how == 5:
            shape = rng.choice(((5000, 3, 2), (1, 70_000, 1), (3, 1, 50_000), (90_000, 2), (2, 90_000)))
            found[name] = np.ones(shape, array.dtype)
        else:
            found[name] = np.iinfo(np.int64).max - np.ones(array.shape, np.int64)
    return found


def mutate(rng: random.Random, folder: Path) -> str:
    """Write a damaged run; what was done."""
    text = changed_json(FACTS, rng) if rng.random() < 0.4 else ""
    found = arrays() if text else changed(arrays(), rng)
    data = save({name: np.ascontiguousarray(one) for name, one in found.items()})
    told = text or str({name: (one.dtype, one.shape) for name, one in found.items()})
    if rng.random() < 0.15:
        head = 8 + int.from_bytes(data[:8], "little")
        data = changed_bytes(data[:head], rng) + data[head:]
        told += f" {data[:400]!r}"
    (folder / "trace.json").write_bytes((text or json.dumps(FACTS)).encode("utf-8", "surrogatepass"))
    (folder / "trace.safetensors").write_bytes(data)
    return told


def read(folder: Path) -> None:
    """What `sp report` makes of it."""
    run = SavedRun.load(folder)
    if run.has_maps:
        importance_map(run)


def try_many(count: int, seed: int) -> Outcomes:
    """So many damaged runs, written below where one stands; what became of them."""
    rng, outcomes, folder = random.Random(seed), Outcomes(), Path("run")
    folder.mkdir(exist_ok=True)
    for _ in range(count):
        told = mutate(rng, folder)
        outcomes.meet([lambda: read(folder)], lambda told=told: told)
    return outcomes
