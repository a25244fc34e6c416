"""Time to first token of whole requests, from text to the first token, by stage and next to the full prefill."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median
from typing import Any

from sp.bench.prompts import PromptMaker
from sp.bench.record import make_record, running
from sp.bench.timing import HostTime
from sp.errors import SpError
from sp.folders import cache_folder
from sp.kernels.device import device_errors
from sp.kernels.launch import launched_sources, reset_launched
from sp.models.cache.kv_type import cache_name
from sp.models.shards.shards import SharedModel
from sp.prompt import Prompt
from sp.scoring.base import recorded
from sp.scoring.sparse import DRAFTING
from sp.selection import SELECTORS
from sp.session import Loaded, Pipeline, RunOptions
from sp.session.device_memory import format_bytes
from sp.trace import Stage, peak_bytes

SKIPPED = 3  # tokens decoded before the rate is measured: one launched eagerly, one captured, one replayed


@dataclass(frozen=True)
class TimedRequest:
    """One timed request. `peak_bytes`: peak device memory, weights included, of the GPU with the highest; on the CPU
    the peak of the process so far. `moves`: models, or parts of them, that were offloaded and onloaded."""

    ttft_s: float  # from the text to the first token on the host
    stages: dict[str, float]  # seconds by stage; `other` is the time between stages
    prompt_tokens: int
    kept_tokens: int
    drafted_tokens: int | None  # prompt tokens in the drafter's vocabulary; None without a drafter
    density: float | None  # share of the causal blocks that the drafter read; None for dense attention
    decode_tok_s: float | None  # tokens per second after the first `SKIPPED`; None for too few tokens
    peak_bytes: int = 0
    timeline: tuple[tuple[float, int], ...] = ()  # device memory in use since the request began
    moves: tuple[dict[str, Any], ...] = ()


def measure(pipeline: Pipeline, prompt: Prompt, options: RunOptions) -> TimedRequest:
    """Run one request and time it."""
    arrivals: list[float] = []
    start = time.perf_counter()
    result = pipeline.run(prompt, options, full=False, on_token=lambda _: arrivals.append(time.perf_counter()))
    ttft = (arrivals[0] if arrivals else time.perf_counter()) - start
    stages = until_first_token(result.answer.trace.stages, ttft)
    counted = arrivals[SKIPPED:]
    rate = (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 1 else None
    densities = result.importance.densities if result.importance else ()
    density = mean(densities) if densities else None
    memory = result.answer.trace.facts.get("residency", {})
    timeline = tuple((second, used) for second, used in memory.get("memory", ()))
    moves, peaks = tuple(memory.get("transitions", ())), result.answer.trace.facts.get("card_peaks", ())
    peak = max(memory.get("peak_bytes", 0), *peaks, 0) or result.peak_bytes
    tokens, kept_tokens = len(result.prompt), result.kept_tokens
    drafted = len(result.drafted) if result.drafted is not None else None
    return TimedRequest(ttft, stages, tokens, kept_tokens, drafted, density, rate, peak, timeline, moves)


def until_first_token(done: Iterable[Stage], ttft: float) -> dict[str, float]:
    """Sum the seconds of the stages before decoding by name; `other` is the time between them."""
    spent: dict[str, float] = {}
    for stage in done:
        if stage.name == "decode":
            break
        spent[stage.name] = spent.get(stage.name, 0.0) + stage.seconds
    spent["other"] = max(0.0, ttft - sum(spent.values()))
    return spent


def pair_config(pipeline: Pipeline, options: RunOptions, vram: int | None, path: str, drafts: bool) -> dict[str, Any]:
    """Describe a pair and its options with the keys of records; keys of the drafter are omitted or None unless it
    `drafts`. The key `target_cards` is there for a sharded target, `drafter_math` where it differs from `math`."""
    drafter = pipeline.drafter if drafts else None
    gpus = 1 if pipeline.gpus is None or drafter is None else pipeline.gpus.group.size
    roles = {"target": pipeline.target} | ({"drafter": drafter} if drafter else {})
    model = pipeline.target.model
    scorer = options.scorer.scorer_for(drafter.model.config) if drafter else options.scorer
    shared = {"target_cards": model.shards.group.size} if isinstance(model, SharedModel) else {}
    return {
        "target": pipeline.target.path.name,
        "drafter": drafter.path.name if drafter else None,
        **(recorded(scorer) if drafts else dict.fromkeys(DRAFTING[:-1])),
        "selector": SELECTORS.name_of(options.selector) if drafts else None,
        "vram": format_bytes(vram),
        "kv": cache_name(options.kv, options.rotate),
        **running(path, model.arithmetic, gpus),
        **shared,
        **(_drafter_precision(pipeline.target, drafter, path) if drafter else {}),
        **{f"{role}_rope": str(rope) for role, loaded in roles.items() if (rope := loaded.requested_rope)},
    }


def _drafter_precision(target: Loaded, drafter: Loaded, path: str) -> dict[str, Any]:
    """Describe the drafter's precision where it differs from the target's; else nothing."""
    of_target, of_drafter = (running(path, loaded.model.arithmetic) for loaded in (target, drafter))
    keys = [key for key in ("math", "products", "asked_math", "kept_bytes") if key in of_drafter]
    # Bytes differ between any two models, so they do not count as another precision.
    same_values = all(of_drafter[key] == of_target.get(key) for key in keys if key != "kept_bytes")
    alike = of_drafter.keys() == of_target.keys() and same_values
    return {} if alike else {f"drafter_{key}": of_drafter[key] for key in keys}


def without_ends(loaded: Loaded) -> Loaded:
    """Copy a model without tokens that end an answer, so that its length does not depend on the weights."""
    tokenizer = copy.copy(loaded.tokenizer)
    tokenizer.eos_ids = frozenset()
    return replace(loaded, tokenizer=tokenizer)


PROCESS = f"{datetime.now(UTC).isoformat(timespec='seconds')} {os.getpid()}"
"""Identifies the process of a record: records of one process are of one pair on one GPU."""
WARM_TOKENS = 16384  # enough that every kernel of a long full prefill has run once


@dataclass(frozen=True)
class RequestCell:
    """Configuration of requests: one length and one set of options; `compress="off"` is the full prefill. `vram`:
    budget in bytes, None for all memory of the device."""

    tokens: int
    options: RunOptions
    vram: int | None = None

    @property
    def full(self) -> bool:
        """True if the target reads the whole prompt."""
        return self.options.compress == "off"


@dataclass(frozen=True)
class CellTiming:
    """Measured requests of one cell."""

    cell: RequestCell
    requests: tuple[TimedRequest, ...] = ()  # counted ones; none if the cell failed
    first: TimedRequest | None = None  # the warm-up, whose allocations may be slow; shorter for a full prefill
    cold: ColdRequest | None = None  # the first request of the process, if it was of this cell
    peak_bytes: int = 0  # of the counted requests
    watched: TimedRequest | None = None  # a request with a timeline of its memory, if `timelines` was set
    full: tuple[TimedRequest, ...] = ()  # full prefills of the same length
    error: str | None = None  # why there are no requests
    sources: tuple[str, ...] = ()  # kernels launched
    host: dict[str, float] = field(default_factory=dict)  # of `HostTime`

    def metrics(self) -> dict[str, Any]:
        """Medians over the requests, and values that they share."""
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
            "drafted_tokens": done[-1].drafted_tokens,
            "density": mean(densities) if densities else None,
            "decode_tok_s": median(rates) if rates else None,
            "peak_bytes": self.peak_bytes,
            "process": PROCESS,
            **self.host,
        }


@dataclass(frozen=True)
class ColdRequest:
    """The first request of a process. `compiled`: kernels that it compiled; 0 if all were in the cache on disk."""

    request: TimedRequest
    compiled: int


@dataclass(frozen=True)
class Bench:
    """Times requests of one pair. `repeats` and `full_repeats` requests count, after one uncounted; 0 `full_repeats`
    omit the full prefill. `timelines` records the memory of the last compressed request of each cell, on the CPU of an
    additional one."""

    pipeline: Pipeline  # its target should be `without_ends`
    maker: PromptMaker
    repeats: int = 5
    full_repeats: int = 1
    full_seconds: float = 60.0  # no further full prefill of a length after so much time in all
    timelines: bool = False
    progress: Callable[[], None] = lambda: None  # called after every counted request

    def run(
        self,
        lengths: Sequence[int],
        settings: Sequence[RunOptions],
        budgets: Sequence[int | None] = (None,),
        known: Callable[[RequestCell], tuple[TimedRequest, ...] | None] = lambda cell: None,
        fresh: bool = True,
    ) -> Iterator[CellTiming]:
        """Time every length, ascending, within every budget. The full prefill comes first for each length, within the
        first budget only. Cells that are `known` already are omitted; the first request of a `fresh` process is
        recorded as the cold one. A cell that cannot run, for lack of memory for example, has an error in place of
        requests."""
        for tokens in lengths:
            self.maker.make(tokens)  # fails before anything is timed if it is impossible
        cold, wholes = None, dict[int, tuple[TimedRequest, ...]]()
        for number, vram in enumerate(budgets):
            pipeline = self.pipeline.within(vram)
            for tokens in lengths:
                cells = [RequestCell(tokens, replace(options, compress="always"), vram) for options in settings]
                cells = [cell for cell in cells if known(cell) is None]
                if fresh and cells:
                    cold, fresh = self._cold(pipeline, cells[0]), False
                wholes.setdefault(tokens, ())
                if number == 0 and self.full_repeats:
                    whole = RequestCell(tokens, replace(settings[0], keep_ratio=1.0, compress="off"), vram)
                    if (full := known(whole)) is None:
                        warm = 0 if any(wholes.values()) else min(tokens, WARM_TOKENS)
                        if isinstance(pipeline.target.model, SharedModel):
                            warm = tokens  # its GPUs capture CUDA graphs for a cache of this length
                        timing = self._timed(pipeline, whole, self.full_repeats, warm)
                        full = timing.requests
                        yield replace(timing, full=full)
                    wholes[tokens] = full
                for cell in cells:
                    timing = self._timed(pipeline, cell, self.repeats, tokens)
                    yield replace(timing, full=wholes[tokens], cold=cold)
                    cold = None

    def _cold(self, pipeline: Pipeline, cell: RequestCell) -> ColdRequest | None:
        """Time the first request; None if it fails, since the same request fails again when timed and reports the
        error."""
        before = _compiled()
        try:
            with device_errors():
                return ColdRequest(self._request(pipeline, cell, 0), _compiled() - before)
        except (SpError, MemoryError):
            return None

    def _timed(self, pipeline: Pipeline, cell: RequestCell, repeats: int, warm: int) -> CellTiming:
        """Time the requests of one cell after an uncounted one of `warm` tokens; none if 0."""
        first, host = None, HostTime(pipeline.target.model.device, chosen=pipeline.on_gpus)
        reset_launched()
        done: list[TimedRequest] = []
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

    def _request(self, pipeline: Pipeline, cell: RequestCell, number: int) -> TimedRequest:
        return measure(pipeline, self.maker.make(cell.tokens, number), cell.options)


def config_of(cell: RequestCell, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """Describe the timed configuration with the keys of records."""
    return {
        **pair_config(pipeline, cell.options, cell.vram, path, not cell.full),
        "prompt_tokens": cell.tokens,
        "keep_ratio": cell.options.keep_ratio,
        "new_tokens": cell.options.max_new_tokens,
    }


def describe(timing: CellTiming, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """Build the arguments of `make_record` for a timing; samples are seconds to the first token."""
    return {
        "bench": "ttft",
        "config": config_of(timing.cell, pipeline, path),
        "metrics": timing.metrics(),
        "samples": [request.ttft_s for request in timing.requests],
        "sources": timing.sources,
        "device": pipeline.target.model.device,
    }


def records_of(timing: CellTiming, pipeline: Pipeline, path: str) -> list[dict[str, Any]]:
    """Make the `ttft` record of a timing and, if it has a timeline of memory, the `ttft_memory` record."""
    records = [make_record(**describe(timing, pipeline, path))]
    return records + ([make_record(**describe_memory(timing, pipeline, path))] if timing.watched else [])


def describe_memory(timing: CellTiming, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """Build the arguments of `make_record` for the memory of one request; samples are (seconds, bytes)."""
    assert timing.watched is not None, "no request was watched"
    seen = timing.watched
    metrics = {"ttft_s": seen.ttft_s, "stages": seen.stages, "peak_bytes": seen.peak_bytes, "moves": seen.moves}
    samples = thin_timeline(seen.timeline)
    return describe(timing, pipeline, path) | {"bench": "ttft_memory", "metrics": metrics, "samples": samples}


def requests_of(record: Mapping[str, Any]) -> tuple[TimedRequest, ...]:
    """Recover the requests of a `ttft` record; each has its own time, and the record's medians otherwise."""
    metrics = record["metrics"]
    common = (metrics["stages"], metrics["prompt_tokens"], metrics["kept_tokens"])
    more = (metrics.get("drafted_tokens"), metrics["density"], metrics["decode_tok_s"], metrics["peak_bytes"])
    return tuple(TimedRequest(seconds, *common, *more) for seconds in record["samples"])


def _compiled() -> int:
    return sum(1 for _ in (cache_folder() / "kernels").glob("*.cubin"))


PERIOD = 0.002  # seconds between two samples of memory
PAGE = 4096


def resident_bytes() -> int:
    """Return the resident memory now, or the peak so far if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return peak_bytes()


@contextmanager
def watched() -> Iterator[list[tuple[float, int]]]:
    """Sample (seconds since the start, `resident_bytes`) about every `PERIOD`, into a list that grows until the end."""
    seen: list[tuple[float, int]] = []
    start, done = time.perf_counter(), threading.Event()

    def look() -> None:
        while not done.wait(PERIOD):
            seen.append((time.perf_counter() - start, resident_bytes()))

    thread = threading.Thread(target=look, name="sp-memory", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
        seen.append((time.perf_counter() - start, resident_bytes()))


def thin_timeline(seen: Sequence[tuple[float, int]], most: int = 400) -> list[tuple[float, int]]:
    """Reduce a timeline to at most `most` points: the highest of every group, so that no peak is lost."""
    step = -(-len(seen) // most)
    return [max(seen[i : i + step], key=lambda point: point[1]) for i in range(0, len(seen), step)] if seen else []
