"""Measurements on disk: one JSON object per line in ``results/<gpu>/<bench>.jsonl``.

A measurement appends a line; only the newest line of each key is committed (`experiments/record_all.py --prune`).
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
"""Default precision of matrix products, by the path of a model's kernels."""
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
    """Make a record of a measurement with everything needed to judge it later. `bench` is also the name of its file,
    `samples` are raw, and `sources` are the kernels that it depends on, by default those launched so far in this
    process."""
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
    """Describe how a model runs with the keys of records.

    ``math`` is the precision of a prompt's matrix products; if attention alone has another one, ``math`` is that one
    and ``products`` that of the matrix products. ``asked_math`` is there if ``auto`` chose the precision,
    ``kept_bytes`` are the bytes of prequantized weights."""
    precision, more = MATH[path], dict[str, Any]()
    if made_in is not None and made_in.kind != Math.BF16:
        precision = str(made_in.attention if made_in.precision is Math.BF16 else made_in.precision)
        more = {"products": str(made_in.precision)} if made_in.precision is Math.BF16 else {}
        more |= {"asked_math": AUTO} if made_in.asked == AUTO else {}
        more |= {"kept_bytes": made_in.kept} if made_in.kept else {}
    return {"path": path, "math": precision, "cards": gpus, **more}


def hashed_anew(record: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a record with the hash of the present kernels, for a record whose own table is a part of that hash."""
    forget_host_code()
    return {**record, "kernel_hash": kernel_hash(record["kernels"])}


def reads_all(config: Mapping[str, Any]) -> bool:
    """Return True if attention of a record's prefill read everything: its configuration has no rule.

    >>> reads_all({"prompt_tokens": 512}), reads_all({"asked_density": 0.05}), reads_all({"asked_sparse": "skip:0.05"})
    (True, False, False)
    """
    return config.get("asked_density") is None and config.get("asked_sparse") is None


def key_of(record: Mapping[str, Any]) -> str:
    """Return the key of a measurement, a text of its benchmark and configuration."""
    return json.dumps([record.get("bench"), record.get("config")], sort_keys=True)


def append(record: Mapping[str, Any], folder: Path = Path("results")) -> Path:
    """Append a record to ``folder/<machine>/<bench>.jsonl`` and return that path. The line is written in one call, so
    that a killed process leaves all of it or nothing."""
    path = folder / machine_slug(record) / f"{record['bench']}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
    return path


def newest(path: Path, key: Callable[[Mapping[str, Any]], str] = key_of) -> list[dict[str, Any]]:
    """Return the last record of each `key` in a file."""
    return list({key(record): record for record in read(path)}.values())


def is_current(record: Mapping[str, Any]) -> bool:
    """Return True if a record was measured with the present kernels."""
    try:
        return bool(kernel_hash(record["kernels"]) == record["kernel_hash"])
    except FileNotFoundError:
        return False


def commit() -> str | None:
    """Return the commit of the checkout of this file, with ``+`` appended if its sources were changed. A copy without a
    git folder takes it from the environment variable ``SP_COMMIT``; None without either."""

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


SPEED_NEUTRAL = ("context", "scaling", "magnitude", "retrieval")  # numbers of a configuration that change no speed


def model_facts(name: str, config: ModelConfig | None, file_type: str | None) -> dict[str, Any]:
    """Describe a model with the keys of records: name, shape and file type."""
    return {"model": name, "shape": None if config is None else shape_name(config), "type": file_type}


def shape_name(config: ModelConfig) -> str | None:
    """Return the name of a model's shape, whatever its context and RoPE scaling; None for other shapes."""
    return next((name for name in list_shapes() if _same(asdict(find_shape(name).config), asdict(config))), None)


def _same(first: Any, second: Any) -> bool:
    """Compare without `SPEED_NEUTRAL` keys, and numbers up to the rounding of a file."""
    if isinstance(first, dict) and isinstance(second, dict):
        names = first.keys() - set(SPEED_NEUTRAL)
        return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in names)
    if isinstance(first, float) and isinstance(second, float):
        return isclose(first, second, rel_tol=1e-6)
    return bool(first == second)


def file_type_name(file: GGUFFile) -> str | None:
    """Return the name of the file type in a file's metadata; None if it is missing or unknown."""
    number = values.whole(file.metadata.get("general.file_type"))
    return next((name for name, known in FILE_TYPES.items() if known == number), None)


def file_facts(path: Path) -> dict[str, Any]:
    """Return `model_facts` of a GGUF file, also of one that only another engine can read."""
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
    """List the files below a folder whose records name their kernels, unlike logs and rows of studies."""
    return [path for path in sorted(results.rglob("*.jsonl")) if "kernel_hash" in first_line(path)]


def first_line(path: Path) -> dict[str, Any]:
    """Return the first object of a file; empty if it has none."""
    with path.open(encoding="utf-8") as file:
        record = json.loads(file.readline() or "{}")
    return record if isinstance(record, dict) else {}


def superseded(path: Path) -> int:
    """Count the records of a file that a newer one of the same key supersedes."""
    keys = [key_of(json.loads(line)) for line in path.read_bytes().splitlines()]
    return len(keys) - len(set(keys))


def prune(results: Path) -> dict[Path, int]:
    """Delete all but the newest record of each key, since git has the others; return the deleted counts by file."""
    counts = {path: count for path in measured_files(results) if (count := superseded(path))}
    for path in counts:
        last = {key_of(json.loads(line)): line for line in path.read_bytes().splitlines()}  # in the order of `newest`
        write_atomic(path, b"\n".join(last.values()) + b"\n")
    return counts


def old_keys(path: Path, tests: Path) -> list[str]:
    """List the configurations of a file whose newest record was measured with other kernels than the present ones. For
    GPU tests, these are the files of `tests` whose newest record is old or missing; deleted files do not count."""
    if path.stem != GPU_TESTS:
        return [json.dumps(record["config"]) for record in newest(path) if not is_current(record)]
    last = {file: record for record in (newest(path) if path.exists() else ()) for file in record["config"]["tests"]}
    files = sorted(file.relative_to(tests).as_posix() for file in tests.rglob("test_*.py"))
    return [file for file in files if file not in last or not is_current(last[file])]


def failed_tests(path: Path) -> list[str]:
    """List the files of GPU tests whose newest record has failures; empty for other benchmarks."""
    if path.stem != GPU_TESTS:
        return []
    return [file for record in newest(path) if record["metrics"]["failed"] for file in record["config"]["tests"]]


def read_budget(results: Path) -> dict[str, dict[str, Any]]:
    """Read the budget of old records, by file below `results`: ``old``, the exact number of old records; ``why``; and
    for GPU tests ``failed``, which explains the failures by test file."""
    budget: dict[str, dict[str, Any]] = json.loads((results / BUDGET).read_text(encoding="utf-8"))
    return budget


def check_budget(results: Path, path: Path, tests: Path) -> None:
    """Check that a file has exactly as many old records as `read_budget` states, so that the statement stays true.
    ConfigError: it has more, or fewer."""
    stated = read_budget(results).get(path.relative_to(results).as_posix(), {"old": 0})["old"]
    outdated = old_keys(path, tests)
    if len(outdated) != stated:
        raise ConfigError(
            f"{path.name}: {len(outdated)} records are of kernels that have changed since, {BUDGET} states {stated}; "
            f"measure again (experiments/record_all.py), or state the count and why: {', '.join(outdated)[:300]}"
        )


def restate(results: Path, tests: Path, why: str) -> Mapping[str, dict[str, Any]]:
    """Write the present counts of old records; `why` is the reason where none was stated yet."""
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
