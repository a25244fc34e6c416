"""Time to first token of whole requests, from text to the first token, by stage and beside the full prefill."""

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
from sp.scoring.base import DRAFTING, recorded
from sp.selection import SELECTORS
from sp.session import Loaded, Pipeline, RunOptions
from sp.session.device_memory import format_bytes
from sp.trace import Stage, peak_bytes

SKIPPED = 3  # decoded tokens before the rate is taken: one launch by launch, one captured, one replayed


@dataclass(frozen=True)
class Request:
    """One request. `peak_bytes`: most device memory in use, weights included, on the GPU that held most; on the CPU
    the process' most so far; `moves`: models, or parts of them, that left the device and came back."""

    ttft_s: float  # from the text to the first token on the host
    stages: dict[str, float]  # seconds by stage; `other` is what lies between them
    prompt_tokens: int
    kept_tokens: int
    drafted_tokens: int | None  # of the prompt in the drafter's vocabulary; None where nobody drafted
    density: float | None  # share of the causal blocks the drafter read; None where nothing was skipped
    decode_tok_s: float | None  # tokens a second after the first few; None if there were too few
    peak_bytes: int = 0
    timeline: tuple[tuple[float, int], ...] = ()  # device memory in use since the request began
    moves: tuple[dict[str, Any], ...] = ()


def measure(pipeline: Pipeline, prompt: Prompt, options: RunOptions) -> Request:
    """Run one request and take its times."""
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
    timeline = tuple((at, used) for at, used in memory.get("memory", ()))
    moves, peaks = tuple(memory.get("transitions", ())), result.answer.trace.facts.get("card_peaks", ())
    peak = max(memory.get("peak_bytes", 0), *peaks, 0) or result.peak_bytes
    tokens, kept = len(result.prompt), result.kept_tokens
    drafted = len(result.drafted) if result.drafted is not None else None
    return Request(ttft, stages, tokens, kept, drafted, density, rate, peak, timeline, moves)


def until_first_token(done: Iterable[Stage], ttft: float) -> dict[str, float]:
    """Seconds by name of the stages before decoding; `other` is what lies between them."""
    spent: dict[str, float] = {}
    for stage in done:
        if stage.name == "decode":
            break
        spent[stage.name] = spent.get(stage.name, 0.0) + stage.seconds
    spent["other"] = max(0.0, ttft - sum(spent.values()))
    return spent


def pair_config(pipeline: Pipeline, options: RunOptions, vram: int | None, path: str, drafts: bool) -> dict[str, Any]:
    """What records have of a pair and how it reads; without what only a drafter has where nothing is drafted. `gpus`
    draft, `target_gpus` share the target where there are several; `drafter_math` is there where it is not `math`."""
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
        **{f"{role}_rope": str(one.requested_rope) for role, one in roles.items() if one.requested_rope},
    }


def _drafter_precision(target: Loaded, drafter: Loaded, path: str) -> dict[str, Any]:
    """What the drafter's products are made in, where that is not what the target's are."""
    theirs, ours = (running(path, one.model.arithmetic) for one in (target, drafter))
    told = [key for key in ("math", "products", "asked_math", "kept_bytes") if key in ours]
    alike = ours.keys() == theirs.keys() and all(ours[key] == theirs[key] for key in told if key != "kept_bytes")
    return {} if alike else {f"drafter_{key}": ours[key] for key in told}


def without_ends(loaded: Loaded) -> Loaded:
    """The same model with no token that ends an answer, whose length then does not depend on the weights."""
    tokenizer = copy.copy(loaded.tokenizer)
    tokenizer.eos_ids = frozenset()
    return replace(loaded, tokenizer=tokenizer)


PROCESS = f"{datetime.now(UTC).isoformat(timespec='seconds')} {os.getpid()}"
"""Tells whether two records are of one process, and so of one pair on one GPU."""
WARM_TOKENS = 16384  # every kernel of a long full prefill has run once by then


@dataclass(frozen=True)
class Cell:
    """What is timed: requests of one length with the same options; `compress="off"` is the full prefill. `vram` is the
    budget in bytes, None for all memory there is."""

    tokens: int
    options: RunOptions
    vram: int | None = None

    @property
    def full(self) -> bool:
        """Whether the target reads everything."""
        return self.options.compress == "off"


@dataclass(frozen=True)
class CellTiming:
    """Requests of one cell."""

    cell: Cell
    requests: tuple[Request, ...] = ()  # those that count; none when the cell failed
    first: Request | None = None  # the one before them, which may wait for memory; before a full prefill a shorter one
    cold: Cold | None = None  # the first request of the process, if it was of this cell
    peak_bytes: int = 0  # of the requests that count
    watched: Request | None = None  # a request whose memory was watched, if that was asked for
    full: tuple[Request, ...] = ()  # the full prefill of the same length
    error: str | None = None  # why there are no requests
    sources: tuple[str, ...] = ()  # kernels that were launched
    host: dict[str, float] = field(default_factory=dict)  # of `HostTime`

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
            "drafted_tokens": done[-1].drafted_tokens,
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
    """Times requests of one pair. `repeats`, `full_repeats` count, after one that does not; 0 for no full prefills;
    `timelines` keeps the memory of the last compressed request of every cell, on the CPU of one more."""

    pipeline: Pipeline  # its target best `without_ends`
    maker: PromptMaker
    repeats: int = 5
    full_repeats: int = 1
    full_seconds: float = 60.0  # no further full prefill of a length once those that count have taken so long together
    timelines: bool = False
    progress: Callable[[], None] = lambda: None  # told of every request that counts

    def run(
        self,
        lengths: Sequence[int],
        settings: Sequence[RunOptions],
        budgets: Sequence[int | None] = (None,),
        known: Callable[[Cell], tuple[Request, ...] | None] = lambda cell: None,
        fresh: bool = True,
    ) -> Iterator[CellTiming]:
        """Time every length, ascending, within every budget; first of a length its full prefill, within the first
        budget. What is `known` from before is left out; the first request of a `fresh` process is told apart as cold. A
        cell that cannot run, for want of memory for example, has an error in place of requests."""
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
                            warm = tokens  # its GPUs capture graphs behind a cache so long
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
        first, host = None, HostTime(pipeline.target.model.device, chosen=pipeline.on_gpus)
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
    more = (metrics.get("drafted_tokens"), metrics["density"], metrics["decode_tok_s"], metrics["peak_bytes"])
    return tuple(Request(seconds, *common, *more) for seconds in record["samples"])


def _compiled() -> int:
    return sum(1 for _ in (cache_folder() / "kernels").glob("*.cubin"))


PERIOD = 0.002  # seconds between two looks
PAGE = 4096


def resident_bytes() -> int:
    """Resident memory now; the most so far where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return peak_bytes()


@contextmanager
def watched() -> Iterator[list[tuple[float, int]]]:
    """Seconds since the start and `resident_bytes`, about every `PERIOD`, in a list that grows until the block ends."""
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


def thinned(seen: Sequence[tuple[float, int]], most: int = 400) -> list[tuple[float, int]]:
    """At most about `most` points of a timeline, the highest of every group, so that no peak is lost."""
    step = -(-len(seen) // most)
    return [max(seen[i : i + step], key=lambda point: point[1]) for i in range(0, len(seen), step)] if seen else []
