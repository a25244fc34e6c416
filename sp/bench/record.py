"""Measurements on disk: one JSON object a line in ``results/<gpu>/<bench>.jsonl``.

A measurement appends a line; of each key the newest is committed (`experiments/record_all.py --prune`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sp.json_lines import read_jsonl as read
from sp.kernels.hashing import kernel_hash
from sp.kernels.host_code import forget_host_code
from sp.kernels.launch import launched_sources
from sp.kernels.machine import cpu_facts, machine_slug
from sp.kernels.machine import gpu_facts as environment
from sp.models.network.arithmetic import AUTO, Arithmetic
from sp.quant import Math

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
    """One measurement with everything needed to judge it later.

    Parameters
    ----------
    bench : str
        Name of the measurement, which is also the file's.
    config, metrics : mapping
        What was measured, and the numbers.
    samples : sequence
        Raw samples behind the metrics.
    sources : iterable of str, optional
        KernelSpec sources it rests on; those launched so far in this process if left out.
    device : {"cuda", "cpu"}
        Where it was measured.
    """
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


def running(path: str, made_in: Arithmetic | None = None, cards: int = 1) -> dict[str, Any]:
    """How a model's work runs, as the keys of records have it.

    `math` is what products of a prompt are made in, or attention alone: `products` is then what they are in. Where
    `auto` chose that, `asked_math` says so, for it may have chosen it for some of the weights only. `kept_bytes` is
    there where weights are kept rounded, and is what they take.

    Examples
    --------
    >>> running("sm_90a")
    {'path': 'sm_90a', 'math': 'bf16', 'cards': 1}
    """
    math, more = MATH[path], dict[str, Any]()
    if made_in is not None and made_in.kind != Math.BF16:
        math = str(made_in.attention if made_in.math is Math.BF16 else made_in.math)
        more = {"products": str(made_in.math)} if made_in.math is Math.BF16 else {}
        more |= {"asked_math": AUTO} if made_in.asked == AUTO else {}
        more |= {"kept_bytes": made_in.kept} if made_in.kept else {}
    return {"path": path, "math": math, "cards": cards, **more}


def hashed_anew(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record, of the kernels as they are now: a table that it gave rise to is part of how they are launched."""
    forget_host_code()
    return {**record, "kernel_hash": kernel_hash(record["kernels"])}


def key_of(record: Mapping[str, Any]) -> str:
    """What a measurement is known by: its benchmark and configuration, equal for equal ones."""
    return json.dumps([record.get("bench"), record.get("config")], sort_keys=True)


def append(record: Mapping[str, Any], folder: Path = Path("results")) -> Path:
    """Add a record to ``folder/<machine>/<bench>.jsonl`` and return that path.

    The line is written in one call, so that a killed process leaves it whole or not there.
    """
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
    """Commit of the checkout this file lies in, ``+`` appended if sources differ from it.

    A copy without its git folder names the commit in ``SP_COMMIT``; without that it is None.
    """

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
