"""Measurements on disk: one JSON object a line in ``results/<gpu>/<bench>.jsonl``.

A measurement appends a line; of each key the newest is committed (`experiments/record_all.py --prune`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import isclose
from pathlib import Path
from typing import Any

from sp import values
from sp.errors import ConfigError, SpError
from sp.gguf import GGUFFile
from sp.json_lines import read_jsonl as read
from sp.kernels.hashing import kernel_hash
from sp.kernels.host_code import forget_host_code
from sp.kernels.launch import launched_sources
from sp.kernels.machine import cpu_facts, machine_slug
from sp.kernels.machine import gpu_facts as environment
from sp.models import ModelConfig
from sp.models.families.base import read_config
from sp.models.file.file_type import FILE_TYPES
from sp.models.network.arithmetic import AUTO, Arithmetic
from sp.models.synthetic.shapes import find_shape, list_shapes
from sp.quant import Math
from sp.trace import write_atomic

MATH = {"sm_90a": "bf16", "portable": "bf16", "numpy": "f32"}
"""What matrix products multiply if nothing else is asked for, by the path of a model's kernels."""
FIELDS = ("bench", "config", "metrics", "samples", "gpu", "driver", "nvrtc", "cupy", "commit", "kernel_hash", "date")


def make_record(
    bench: str,
    config: Mapping[str, Any],
    metrics: Mapping[str, Any],
    samples: Sequence[Any],
    sources: Iterable[str] | None = None,
    *,
    device: str = "cuda",
) -> dict[str, Any]:
    """One measurement with everything needed to judge it later: `samples` are raw, `bench` is the file's name too, and
    `sources` are the kernels it rests on, those launched so far in this process if left out."""
    sources = sorted(set(launched_sources() if sources is None else sources))
    return {
        "bench": bench,
        "config": dict(config),
        "metrics": dict(metrics),
        "samples": list(samples),
        **(environment() if device == "cuda" else cpu_facts()),
        "commit": commit(),
        "kernels": sources,
        "kernel_hash": kernel_hash(sources),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def running(path: str, made_in: Arithmetic | None = None, gpus: int = 1) -> dict[str, Any]:
    """How a model's work runs, as keys have it. `math` is what products of a prompt are made in, or attention alone:
    `products` is then what they are in. Where `auto` chose it, `asked_math` says so; `kept_bytes` is what weights kept
    rounded take."""
    precision, more = MATH[path], dict[str, Any]()
    if made_in is not None and made_in.kind != Math.BF16:
        precision = str(made_in.attention if made_in.precision is Math.BF16 else made_in.precision)
        more = {"products": str(made_in.precision)} if made_in.precision is Math.BF16 else {}
        more |= {"asked_math": AUTO} if made_in.asked == AUTO else {}
        more |= {"kept_bytes": made_in.kept} if made_in.kept else {}
    return {"path": path, "math": precision, "cards": gpus, **more}


def hashed_anew(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record, of the kernels as they are now: a table that it gave rise to is part of how they are launched."""
    forget_host_code()
    return {**record, "kernel_hash": kernel_hash(record["kernels"])}


def key_of(record: Mapping[str, Any]) -> str:
    """What a measurement is known by: its benchmark and configuration, equal for equal ones."""
    return json.dumps([record.get("bench"), record.get("config")], sort_keys=True)


def append(record: Mapping[str, Any], folder: Path = Path("results")) -> Path:
    """Add a record to ``folder/<machine>/<bench>.jsonl`` and return that path. The line is written in one call, so that
    a killed process leaves it whole or not there."""
    path = folder / machine_slug(record) / f"{record['bench']}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
    return path


def newest(path: Path, key: Callable[[Mapping[str, Any]], str] = key_of) -> list[dict[str, Any]]:
    """The last record of every configuration in a file, or of all that have one `key`."""
    return list({key(record): record for record in read(path)}.values())


def is_current(record: Mapping[str, Any]) -> bool:
    """Whether a record was measured with the kernels as they are today."""
    try:
        return bool(kernel_hash(record["kernels"]) == record["kernel_hash"])
    except FileNotFoundError:
        return False


def commit() -> str | None:
    """Commit of the checkout this file lies in, ``+`` appended if sources differ from it. A copy without its git folder
    names the commit in ``SP_COMMIT``; without that it is None."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if "SP_COMMIT" in os.environ:
        return os.environ["SP_COMMIT"]
    head = git("rev-parse", "--short=12", "HEAD")
    return f"{head}{'+' if git('status', '--porcelain', '--', '.') else ''}" if head else None


FREE = ("context", "scaling", "magnitude", "retrieval")  # numbers of a configuration that change no speed


def model_facts(name: str, config: ModelConfig | None, file_type: str | None) -> dict[str, Any]:
    """Name, shape and type, as keys have them."""
    return {"model": name, "shape": None if config is None else shape_name(config), "type": file_type}


def shape_name(config: ModelConfig) -> str | None:
    """The named shape a model has, whatever its context and the scaling of its RoPE; None for others."""
    return next((name for name in list_shapes() if _same(asdict(find_shape(name).config), asdict(config))), None)


def _same(one: Any, other: Any) -> bool:
    """Equal but for what costs nothing, numbers as near as a file keeps them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one if k not in FREE)
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def file_type_name(file: GGUFFile) -> str | None:
    """Name of the file type that a file says it has; None for those without a name here."""
    number = values.whole(file.metadata.get("general.file_type"))
    return next((name for name, known in FILE_TYPES.items() if known == number), None)


def file_facts(path: Path) -> dict[str, Any]:
    """`model_facts` of a GGUF file, also of one that another engine can read and this one cannot."""
    try:
        file = GGUFFile.open(path)
    except SpError:
        return model_facts(path.name, None, None)
    try:
        config = read_config(file)
    except SpError:
        config = None
    return model_facts(path.name, config, file_type_name(file))


BUDGET = "OLD.json"
GPU_TESTS = "gpu_tests"


def measured_files(results: Path) -> list[Path]:
    """Files of records that name their kernels, below a folder; logs and rows of studies do not."""
    return [path for path in sorted(results.rglob("*.jsonl")) if "kernel_hash" in first_line(path)]


def first_line(path: Path) -> dict[str, Any]:
    """The first object of a file; empty if it has none."""
    with path.open(encoding="utf-8") as file:
        found = json.loads(file.readline() or "{}")
    return found if isinstance(found, dict) else {}


def superseded(path: Path) -> int:
    """How many records of a file have a newer one of the same key behind them."""
    keys = [key_of(json.loads(line)) for line in path.read_bytes().splitlines()]
    return len(keys) - len(set(keys))


def prune(results: Path) -> dict[Path, int]:
    """Leave of each key the newest record, since git keeps the others; how many went, by file."""
    taken = {path: count for path in measured_files(results) if (count := superseded(path))}
    for path in taken:
        last = {key_of(json.loads(line)): line for line in path.read_bytes().splitlines()}  # in the order of `newest`
        write_atomic(path, b"\n".join(last.values()) + b"\n")
    return taken


def old_keys(path: Path, tests: Path) -> list[str]:
    """Configurations of a file whose newest record is of other kernels than today's. Of GPU tests, that is every file
    of `tests` whose newest record is old or missing; one that is gone counts no more."""
    if path.stem != GPU_TESTS:
        return [json.dumps(record["config"]) for record in newest(path) if not is_current(record)]
    last = {file: record for record in (newest(path) if path.exists() else ()) for file in record["config"]["tests"]}
    files = sorted(file.relative_to(tests).as_posix() for file in tests.rglob("test_*.py"))
    return [file for file in files if file not in last or not is_current(last[file])]


def failed_tests(path: Path) -> list[str]:
    """Files of GPU tests whose newest record has failures; of other benchmarks' records none."""
    if path.stem != GPU_TESTS:
        return []
    return [file for record in newest(path) if record["metrics"]["failed"] for file in record["config"]["tests"]]


def read_budget(results: Path) -> dict[str, dict[str, Any]]:
    """By file below `results`: ``old``, how many records may and must be old, ``why``, and ``failed``. The latter, of
    GPU tests alone, says for each file whose newest record has failures what they were."""
    found: dict[str, dict[str, Any]] = json.loads((results / BUDGET).read_text(encoding="utf-8"))
    return found


def check_budget(results: Path, path: Path, tests: Path) -> None:
    """A file holds exactly as many old records as `read_budget` states, so that what is stated stays true. ConfigError:
    it holds more, or fewer."""
    stated = read_budget(results).get(path.relative_to(results).as_posix(), {"old": 0})["old"]
    found = old_keys(path, tests)
    if len(found) != stated:
        raise ConfigError(
            f"{path.name}: {len(found)} records are of kernels that have changed since, {BUDGET} states {stated}; "
            f"measure anew (experiments/record_all.py), or state the count and why: {', '.join(found)[:300]}"
        )


def restate(results: Path, tests: Path, why: str) -> Mapping[str, dict[str, Any]]:
    """Write the counts as they are; `why` stands where there was no reason yet."""
    before = read_budget(results) if (results / BUDGET).exists() else {}
    stated = {}
    for path in measured_files(results):
        name = path.relative_to(results).as_posix()
        known, failed = before.get(name, {}), failed_tests(path)
        if count := len(old_keys(path, tests)):
            stated[name] = {"old": count, "why": known.get("why", why)}
            if failed:
                stated[name]["failed"] = {file: known.get("failed", {}).get(file, why) for file in failed}
    write_atomic(results / BUDGET, (json.dumps(stated, indent=1) + "\n").encode())
    return stated
