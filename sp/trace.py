"""Record of a run: seconds and tokens of each stage, arrays for plots, and facts; saved as JSON and safetensors."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SHOWN = 6  # stages in the repr of a trace


@dataclass
class Stage:
    """One stage of a run.

    Attributes
    ----------
    name : str
    tokens : int
        Tokens that it processed; may be set while it runs.
    seconds : float
        Its time, without the overlapped part.
    beside : float
        Seconds of its work that overlapped with other stages, which count them.
    """

    name: str
    tokens: int = 0
    seconds: float = 0.0
    beside: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "seconds": self.seconds, "tokens": self.tokens, "beside": self.beside}


@dataclass
class Trace:
    """Record of one run, filled by its stages."""

    stages: list[Stage] = field(default_factory=list)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        stages = [f"{stage.name} {stage.seconds:.3g} s" for stage in self.stages[:SHOWN]]
        stages += [f"{len(self.stages) - SHOWN} more"] if len(self.stages) > SHOWN else []
        return f"Trace({', '.join(stages)}; {len(self.arrays)} arrays, {len(self.facts)} facts)"

    @contextmanager
    def stage(self, name: str, tokens: int = 0) -> Iterator[Stage]:
        """Time the body of a ``with`` statement with a monotonic clock, and append it as a stage."""
        stage, start = Stage(name, tokens), time.perf_counter()
        yield stage
        stage.seconds = time.perf_counter() - start
        self.stages.append(stage)

    @property
    def seconds(self) -> float:
        """Sum of the seconds of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write `trace.json` and `trace.safetensors` into `folder`, each complete or not at all."""
        from safetensors.numpy import save

        facts = {"stages": [stage.as_dict() for stage in self.stages], **self.facts}
        arrays = {name: np.ascontiguousarray(value) for name, value in self.arrays.items()}
        return (
            write_atomic(folder / "trace.json", dump_json(facts)),
            write_atomic(folder / "trace.safetensors", save(arrays)),
        )


def dump_json(value: Mapping[str, Any]) -> bytes:
    """Return JSON bytes with a final newline; NumPy scalars become plain numbers."""

    def plain(item: Any) -> Any:
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, np.ndarray):
            return item.tolist()
        if isinstance(item, Path):
            return str(item)
        raise TypeError(f"{type(item).__name__} does not go into JSON")

    return (json.dumps(value, indent=1, default=plain, ensure_ascii=False) + "\n").encode()


def write_atomic(path: Path, data: bytes) -> Path:
    """Write a file under a temporary name and rename it, so that a killed run leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def peak_bytes() -> int:
    """Return the peak resident memory of this process, in bytes."""
    # On Linux not `ru_maxrss`, which a process inherits across exec from the one that started it.
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    unit = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


Reporter = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""Opens a progress bar: (stage, total) -> context that yields a callback, which takes the units done since its last
call."""


def silent(stage: str, total: int) -> AbstractContextManager[None]:
    """Report nothing; a `Reporter`."""
    return nullcontext()


OnProgress = Callable[[str, int, int], object]
"""Takes (stage, done, total): units of a stage that are done, of `total`."""


def reporting(progress: OnProgress | None, reporter: Reporter = silent) -> Reporter:
    """Return a reporter that calls a function when a stage begins and whenever it advances; `reporter` without one.

    >>> with reporting(print)("scoring", 20) as advance:
    ...     advance(5)
    scoring 0 20
    scoring 5 20
    """
    if progress is None:
        return reporter
    call = progress

    @contextmanager
    def calling(stage: str, total: int) -> Iterator[Callable[[int], None]]:
        done = 0
        with reporter(stage, total) as advance_bar:

            def advance(amount: int) -> None:
                nonlocal done
                done += amount
                if advance_bar is not None:
                    advance_bar(amount)
                call(stage, done, total)

            call(stage, 0, total)
            yield advance

    return calling
