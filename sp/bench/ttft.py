"""Time to first token of whole requests, from text to the first token, by stage and beside the full prefill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from sp.bench.memory import free_unused, peak_since_free, thinned, watched
from sp.bench.prompts import PromptMaker
from sp.bench.request import Request, measure
from sp.errors import SpError
from sp.kernels.device import cache_folder, device_errors
from sp.kernels.launch import launched_sources, reset_launched
from sp.pipeline import Pipeline, RunOptions
from sp.pipeline.break_even import DRAFTING, drafting
from sp.selection import SELECTORS

WARM_TOKENS = 16384  # every kernel of a long full prefill has run once by then


@dataclass(frozen=True)
class Cell:
    """What is timed: requests of one length with the same options; `compress="off"` is the full prefill."""

    tokens: int
    options: RunOptions

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
        See `peak_since_free`.
    watched : Request or None
        One more request, if asked for, during which memory was watched.
    timeline : tuple of (seconds, bytes)
        Memory in use during it.
    full : tuple of Request
        The full prefill of the same length.
    error : str or None
        Why there are no requests.
    sources : tuple of str
        Kernels that were launched.
    """

    cell: Cell
    requests: tuple[Request, ...] = ()
    first: Request | None = None
    cold: Cold | None = None
    peak_bytes: int = 0
    watched: Request | None = None
    timeline: tuple[tuple[float, int], ...] = ()
    full: tuple[Request, ...] = ()
    error: str | None = None
    sources: tuple[str, ...] = ()

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
        Requests that count, compressed and of the full prefill, after one that does not.
    timelines : bool
        Watch the memory of one more compressed request of every cell.
    progress : callable
        Told of every request that counts.
    """

    pipeline: Pipeline
    maker: PromptMaker
    repeats: int = 5
    full_repeats: int = 1
    timelines: bool = False
    progress: Callable[[], None] = lambda: None

    def run(
        self,
        lengths: Sequence[int],
        settings: Sequence[RunOptions],
        known: Callable[[Cell], tuple[Request, ...] | None] = lambda cell: None,
    ) -> Iterator[CellTiming]:
        """Time every length: first the full prefill, then every setting.

        Parameters
        ----------
        lengths : sequence of int
            Tokens, ascending, so that a longer full prefill finds its kernels warm.
        settings : sequence of RunOptions
            Those of compressed requests; `compress` is taken as "always".
        known : callable
            Requests of a cell that was timed before and is left out now.

        Yields
        ------
        CellTiming
            A cell that cannot run, for want of memory for example, has an error in place of requests.
        """
        for tokens in lengths:
            self.maker.make(tokens)  # one that cannot be made is found before anything is timed
        cold: Cold | None = None
        for number, tokens in enumerate(lengths):
            cells = [Cell(tokens, replace(options, compress="always")) for options in settings]
            cells = [cell for cell in cells if known(cell) is None]
            whole = Cell(tokens, replace(settings[0], keep_ratio=1.0, compress="off"))
            full = known(whole)
            if number == 0 and cells:
                cold = self._cold(cells[0])
            if full is None:
                timing = self._timed(whole, self.full_repeats)
                full = timing.requests
                yield replace(timing, full=full)
            for cell in cells:
                yield replace(self._timed(cell, self.repeats), full=full, cold=cold)
                cold = None

    def _cold(self, cell: Cell) -> Cold | None:
        """The first request; None if it fails, for it will fail again and then be told of."""
        before = _compiled()
        try:
            with device_errors():
                return Cold(self._request(cell, 0), _compiled() - before)
        except (SpError, MemoryError):
            return None

    def _timed(self, cell: Cell, repeats: int) -> CellTiming:
        device = self.pipeline.target.model.device
        reset_launched()
        done = []
        try:
            with device_errors():
                first = self._request(replace(cell, tokens=min(cell.tokens, WARM_TOKENS)) if cell.full else cell, 0)
                free_unused(device)
                for number in range(repeats):
                    done.append(self._request(cell, 1 + number))
                    self.progress()
                peak = peak_since_free(device)
                seen, timeline = None, []
                if self.timelines and not cell.full:
                    with watched(device) as timeline:
                        seen = self._request(cell, 1 + repeats)
        except (SpError, MemoryError) as error:
            free_unused(device)
            return CellTiming(cell, error=str(error) or "out of memory")
        points = tuple(thinned(timeline))
        return CellTiming(cell, tuple(done), first, None, peak, seen, points, sources=launched_sources())

    def _request(self, cell: Cell, number: int) -> Request:
        return measure(self.pipeline, self.maker.make(cell.tokens, number), cell.options)


def config_of(cell: Cell, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """What was timed, as records have it."""
    options, drafter = cell.options, pipeline.drafter
    how = dict.fromkeys(DRAFTING) if cell.full else drafting(options.scorer)
    return {
        "target": pipeline.target.path.name,
        "drafter": drafter.path.name if drafter and not cell.full else None,
        "prompt_tokens": cell.tokens,
        "keep_ratio": options.keep_ratio,
        **how,
        "selector": None if cell.full else SELECTORS.name_of(options.selector),
        "vram": None,
        "kv": options.kv + (" rotated" if options.rotate else ""),
        "new_tokens": options.max_new_tokens,
        "path": path,
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


def describe_memory(timing: CellTiming, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """Arguments of `make_record` for the memory of one request; samples are (seconds, bytes)."""
    assert timing.watched is not None, "no request was watched"
    seen = timing.watched
    metrics = {"ttft_s": seen.ttft_s, "stages": seen.stages, "peak_bytes": timing.peak_bytes}
    return describe(timing, pipeline, path) | {"bench": "ttft_memory", "metrics": metrics, "samples": timing.timeline}


def requests_of(record: Mapping[str, Any]) -> tuple[Request, ...]:
    """The requests behind a `ttft` record, each with the record's medians but for its own time."""
    metrics = record["metrics"]
    common = (metrics["stages"], metrics["prompt_tokens"], metrics["kept_tokens"])
    more = (metrics["density"], metrics["decode_tok_s"])
    return tuple(Request(seconds, *common, *more) for seconds in record["samples"])


def _compiled() -> int:
    """Kernels in the cache."""
    return sum(1 for _ in (cache_folder() / "kernels").glob("*.cubin"))
