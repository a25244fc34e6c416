"""Time to first token of whole requests, from text to the first token, by stage and beside the full prefill."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import mean, median
from typing import Any

from sp.bench.memory import thinned, watched
from sp.bench.prompts import PromptMaker
from sp.bench.record import make_record
from sp.bench.request import Request, measure, pair_config
from sp.bench.timing import HostTime
from sp.errors import SpError
from sp.folders import cache_folder
from sp.kernels.device import device_errors
from sp.kernels.launch import launched_sources, reset_launched
from sp.models.shards.shards import SharedModel
from sp.session import Pipeline, RunOptions

PROCESS = f"{datetime.now(UTC).isoformat(timespec='seconds')} {os.getpid()}"
"""Tells whether two records are of one process, and so of one pair on one card."""
WARM_TOKENS = 16384  # every kernel of a long full prefill has run once by then


@dataclass(frozen=True)
class Cell:
    """What is timed: requests of one length with the same options; `compress="off"` is the full prefill.

    `vram` is the budget in bytes, None for all memory there is.
    """

    tokens: int
    options: RunOptions
    vram: int | None = None

    @property
    def full(self) -> bool:
        """Whether the target reads everything."""
        return self.options.compress == "off"


@dataclass(frozen=True)
class CellTiming:
    """Requests of one cell.

    Attributes
    ----------
    cell : Cell
    requests : tuple of Request
        Those that count; none when the cell failed.
    first : Request or None
        The one before them, which may wait for memory; before a full prefill a shorter one.
    cold : Cold or None
        The first request of the process, if it was of this cell.
    peak_bytes : int
        Of the requests that count.
    watched : Request or None
        A request whose memory was watched, if that was asked for.
    full : tuple of Request
        The full prefill of the same length.
    error : str or None
        Why there are no requests.
    sources : tuple of str
        Kernels that were launched.
    host : dict of str to float
        Of `HostTime`.
    """

    cell: Cell
    requests: tuple[Request, ...] = ()
    first: Request | None = None
    cold: Cold | None = None
    peak_bytes: int = 0
    watched: Request | None = None
    full: tuple[Request, ...] = ()
    error: str | None = None
    sources: tuple[str, ...] = ()
    host: dict[str, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, Any]:
        """Medians over the requests, and what they have in common."""
        done, full = self.requests, [request.ttft_s for request in self.full]
        known = {"full_ttft_s": median(full) if full else None, "full_runs": len(full), "error": self.error}
        if not done:
            return {"ttft_s": None, "stages": {}} | known
        rates = [request.decode_tok_s for request in done if request.decode_tok_s is not None]
        densities = [request.density for request in done if request.density is not None]
        names = dict.fromkeys(name for request in done for name in request.stages)
        return known | {
            "ttft_s": median(request.ttft_s for request in done),
            "first_ttft_s": self.first.ttft_s if self.first and not self.cell.full else None,
            "cold_ttft_s": self.cold.request.ttft_s if self.cold else None,
            "cold_compiled": self.cold.compiled if self.cold else None,
            "stages": {name: median(request.stages.get(name, 0.0) for request in done) for name in names},
            "prompt_tokens": done[-1].prompt_tokens,
            "kept_tokens": done[-1].kept_tokens,
            "density": mean(densities) if densities else None,
            "decode_tok_s": median(rates) if rates else None,
            "peak_bytes": self.peak_bytes,
            "process": PROCESS,
            **self.host,
        }


@dataclass(frozen=True)
class Cold:
    """The first request of a process, and how many kernels it had to compile: none if they were in the cache."""

    request: Request
    compiled: int


@dataclass(frozen=True)
class Bench:
    """Times requests of one pair.

    Parameters
    ----------
    pipeline : Pipeline
        Its target best `without_ends`.
    maker : PromptMaker
    repeats, full_repeats : int
        Requests that count, compressed and of the full prefill, after one that does not; without full prefills 0.
    full_seconds : float
        No further full prefill of a length once those that count have taken so long together.
    timelines : bool
        Keep the memory of the last compressed request of every cell; on the CPU one more is made for that.
    progress : callable
        Told of every request that counts.
    """

    pipeline: Pipeline
    maker: PromptMaker
    repeats: int = 5
    full_repeats: int = 1
    full_seconds: float = 60.0
    timelines: bool = False
    progress: Callable[[], None] = lambda: None

    def run(
        self,
        lengths: Sequence[int],
        settings: Sequence[RunOptions],
        budgets: Sequence[int | None] = (None,),
        known: Callable[[Cell], tuple[Request, ...] | None] = lambda cell: None,
        fresh: bool = True,
    ) -> Iterator[CellTiming]:
        """Time every length within every budget; first of a length its full prefill, within the first budget.

        Parameters
        ----------
        lengths : sequence of int
            Tokens, ascending, so that a longer full prefill finds its kernels warm.
        settings : sequence of RunOptions
            Those of compressed requests; `compress` is taken as "always".
        budgets : sequence of int or None
            Bytes of device memory, see `Pipeline.within`; None for all there is.
        known : callable
            Requests of a cell that was timed before and is left out now.
        fresh : bool
            Whether the process has served no request yet, so that the first one is told apart as cold.

        Yields
        ------
        CellTiming
            A cell that cannot run, for want of memory for example, has an error in place of requests.
        """
        for tokens in lengths:
            self.maker.make(tokens)  # one that cannot be made is found before anything is timed
        cold, wholes = None, dict[int, tuple[Request, ...]]()
        for number, vram in enumerate(budgets):
            pipeline = self.pipeline.within(vram)
            for tokens in lengths:
                cells = [Cell(tokens, replace(options, compress="always"), vram) for options in settings]
                cells = [cell for cell in cells if known(cell) is None]
                if fresh and cells:
                    cold, fresh = self._cold(pipeline, cells[0]), False
                wholes.setdefault(tokens, ())
                if number == 0 and self.full_repeats:
                    whole = Cell(tokens, replace(settings[0], keep_ratio=1.0, compress="off"), vram)
                    if (full := known(whole)) is None:
                        warm = 0 if any(wholes.values()) else min(tokens, WARM_TOKENS)
                        if isinstance(pipeline.target.model, SharedModel):
                            warm = tokens  # its cards capture graphs behind a cache so long
                        timing = self._timed(pipeline, whole, self.full_repeats, warm)
                        full = timing.requests
                        yield replace(timing, full=full)
                    wholes[tokens] = full
                for cell in cells:
                    timing = self._timed(pipeline, cell, self.repeats, tokens)
                    yield replace(timing, full=wholes[tokens], cold=cold)
                    cold = None

    def _cold(self, pipeline: Pipeline, cell: Cell) -> Cold | None:
        """The first request; None if it fails, for it will fail again and then be told of."""
        before = _compiled()
        try:
            with device_errors():
                return Cold(self._request(pipeline, cell, 0), _compiled() - before)
        except (SpError, MemoryError):
            return None

    def _timed(self, pipeline: Pipeline, cell: Cell, repeats: int, warm: int) -> CellTiming:
        """Requests of one cell after one of `warm` tokens that does not count; 0 for none."""
        first, host = None, HostTime(pipeline.target.model.device, chosen=pipeline.on_cards)
        reset_launched()
        done: list[Request] = []
        try:
            with device_errors():
                if warm:
                    first = self._request(pipeline, replace(cell, tokens=warm), 0)
                for number in range(repeats):
                    if cell.full and sum(request.ttft_s for request in done) > self.full_seconds:
                        break
                    done.append(self._request(pipeline, cell, 1 + number))
                    host.look()
                    self.progress()
                seen = done[-1] if self.timelines and not cell.full else None
                if seen is not None and not seen.timeline:
                    with watched() as timeline:
                        seen = self._request(pipeline, cell, 1 + repeats)
                    seen = replace(seen, timeline=tuple(timeline))
        except (SpError, MemoryError) as error:
            return CellTiming(cell, error=str(error) or "out of memory")
        peak = max(request.peak_bytes for request in done)
        return CellTiming(cell, tuple(done), first, None, peak, seen, sources=launched_sources(), host=host.metrics())

    def _request(self, pipeline: Pipeline, cell: Cell, number: int) -> Request:
        return measure(pipeline, self.maker.make(cell.tokens, number), cell.options)


def config_of(cell: Cell, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """What was timed, as records have it."""
    return {
        **pair_config(pipeline, cell.options, cell.vram, path, not cell.full),
        "prompt_tokens": cell.tokens,
        "keep_ratio": cell.options.keep_ratio,
        "new_tokens": cell.options.max_new_tokens,
    }


def describe(timing: CellTiming, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """Arguments of `make_record` for a timing; samples are seconds to the first token."""
    return {
        "bench": "ttft",
        "config": config_of(timing.cell, pipeline, path),
        "metrics": timing.metrics(),
        "samples": [request.ttft_s for request in timing.requests],
        "sources": timing.sources,
        "device": pipeline.target.model.device,
    }


def records_of(timing: CellTiming, pipeline: Pipeline, path: str) -> list[dict[str, Any]]:
    """The `ttft` record of a timing and, where a request was watched, the `ttft_memory` record."""
    made = [make_record(**describe(timing, pipeline, path))]
    return made + ([make_record(**describe_memory(timing, pipeline, path))] if timing.watched else [])


def describe_memory(timing: CellTiming, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """Arguments of `make_record` for the memory of one request; samples are (seconds, bytes)."""
    assert timing.watched is not None, "no request was watched"
    seen = timing.watched
    metrics = {"ttft_s": seen.ttft_s, "stages": seen.stages, "peak_bytes": seen.peak_bytes, "moves": seen.moves}
    samples = thinned(seen.timeline)
    return describe(timing, pipeline, path) | {"bench": "ttft_memory", "metrics": metrics, "samples": samples}


def requests_of(record: Mapping[str, Any]) -> tuple[Request, ...]:
    """The requests behind a `ttft` record, each with the record's medians but for its own time."""
    metrics = record["metrics"]
    common = (metrics["stages"], metrics["prompt_tokens"], metrics["kept_tokens"])
    more = (metrics["density"], metrics["decode_tok_s"], metrics["peak_bytes"])
    return tuple(Request(seconds, *common, *more) for seconds in record["samples"])


def _compiled() -> int:
    """Kernels in the cache."""
    return sum(1 for _ in (cache_folder() / "kernels").glob("*.cubin"))
