"""Speed of a whole model: prefill of random tokens at several lengths, and greedy decoding."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.bench.record import running
from sp.bench.timing import HostTime, free_pool, pool_bytes
from sp.decode.base import GraphDecoder, generate
from sp.kernels import import_cupy
from sp.kernels.launch import launched_sources, reset_launched
from sp.models import Arithmetic, Cache, Model, prefill, prefill_sparse
from sp.models.run.graph import MOST, PrefillGraphs, longest
from sp.models.run.imbalance import imbalance
from sp.scoring.base import Sparse

WARM_TOKENS = 16384  # every kernel of a long prefill has run once by then
MOST_SPREAD = 8192  # tokens that a mixture's imbalance is taken from
Together = Callable[[Callable[[Model], Any]], list[Any]]
Draws = Mapping[int, np.random.Generator]
KVForm = tuple[str, bool | None]
SKIPPED = 3  # decoded tokens, or prefills in graphs, before the clock: one launch by launch, one captured, one replayed


@dataclass(frozen=True)
class Trial:
    """What is timed: a prefill of `prompt` tokens, or `new` tokens decoded after a prompt of that length. Which key
    blocks the attention of a prefill reads, `sparse` says, as of a scorer."""

    prompt: int
    new: int = 0
    sparse: Sparse = Sparse("off")  # noqa: RUF009  a text

    @property
    def name(self) -> str:
        """As llama-bench calls it: pp512, tg64, tg64@d4096; a sparse prefill pp512 sparse 0.05."""
        if not self.new:
            return f"pp{self.prompt}" + (
                "" if self.sparse == "off" else f" sparse {self.sparse.removeprefix('density:')}"
            )
        return f"tg{self.new}" + (f"@d{self.prompt}" if self.prompt else "")

    @property
    def tokens(self) -> int:
        """Tokens whose time is taken."""
        return self.new or self.prompt


@dataclass(frozen=True)
class Timing:
    """Samples of one test. `read`: tokens of the last prefill by how they were read, see `sp.models.run.graph.Way`, if
    that was asked; `refused`: why work that otherwise is a CUDA graph was launched kernel by kernel."""

    test: Trial
    seconds: tuple[float, ...]  # one a repetition
    peak_bytes: int  # most device memory held during the test, weights included; 0 on the CPU
    sources: tuple[str, ...] = ()  # kernels it launched, for `make_record`
    densities: tuple[float, ...] = ()  # share of the causal blocks that each layer of a sparse prefill read
    imbalance: float | None = None  # of experts, in a prefill by one GPU; see `sp.models.run.imbalance`
    read: Mapping[str, int] = field(default_factory=dict)
    gpus: int = 1  # how many share the model; memory is that of the one that held most
    refused: str | None = None
    host: Mapping[str, float] = field(default_factory=dict)  # of `HostTime`

    @property
    def rates(self) -> list[float]:
        """Tokens a second."""
        return [self.test.tokens / s for s in self.seconds]

    def metrics(self) -> dict[str, float]:
        """Median, mean and standard deviation of the rate, and the peak; imbalance of experts, tokens by replays."""
        rates = self.rates
        spread = {} if self.imbalance is None else {"imbalance": self.imbalance}
        replayed = {"replayed_tokens": self.read.get("replayed", 0)} if self.read else {}
        found = {"tok_s": median(rates), "tok_s_mean": mean(rates), "tok_s_sd": stdev(rates) if len(rates) > 1 else 0.0}
        return {**spread, **replayed, **self.host, **found, "peak_bytes": self.peak_bytes}


def run_tests(
    model: Model,
    tests: list[Trial],
    repeats: int,
    *,
    kv: str = "f16",
    rotate: bool | None = None,
    chunk: int | None = None,
    progress: Callable[[str], None] | None = None,
    together: Together | None = None,
) -> Iterator[Timing]:
    """Time a model; each test is warmed up, then repeated with other random tokens. `progress` is told the name of its
    test after every repetition; with `together`, `Shards.run` of a model that GPUs share, the slowest GPU's time
    counts and `model` is the first GPU's."""
    run = together or (lambda work: [work(model)])
    spread_of = functools.cache(functools.partial(imbalance, model))
    draws: dict[int, np.random.Generator] = defaultdict(lambda: np.random.default_rng(0))  # all GPUs read the same
    for test in tests:
        # Each for all GPUs before the next: memory is not to come or go while another GPU waits for this one.
        run(free_pool)
        reset_launched()
        made = {id(one.model): one for one in run(functools.partial(_Run, draws, test, (kv, rotate), chunk))}
        _each(run, made, _Run.warm)
        seconds: list[float] = []
        densities: tuple[float, ...] = ()
        host = HostTime(model.device, chosen=together is not None)
        for _ in range(repeats):
            took = _each(run, made, _Run.once)
            seconds.append(max(found for found, _ in took))
            densities = took[0][1]
            if not test.new:  # decoding replays graphs: no record of it rests on what a look launches
                host.look()
            if progress is not None:
                progress(test.name)
        peak, sources = max(run(pool_bytes)), launched_sources()
        told, refused = _each(run, made, _Run.end)[0]
        spread = None if test.new or together else spread_of(min(test.prompt, MOST_SPREAD))
        times = tuple(seconds)
        yield Timing(test, times, peak, sources, densities, spread, told, len(made), refused, host.metrics())


def _each(run: Together, made: Mapping[int, _Run], what: Callable[[_Run], Any]) -> list[Any]:
    return run(lambda model: what(made[id(model)]))


class _Run:
    """One test of a model, or of one GPU's share of it."""

    def __init__(self, draws: Draws, test: Trial, form: KVForm, chunk: int | None, model: Model) -> None:
        self.model, self._rng, self._test, self._chunk = model, draws[id(model)], test, chunk
        room = max(1, test.prompt) + (test.new + SKIPPED if test.new else 0)
        self._cache = model.new_cache(room, form[0], rotate=form[1], once=True)
        self._graphs, self._told = _graphs(model, self._cache, test), dict[str, int]()
        on_device = test.new and model.device == "cuda" and model.captures
        self._decoder = GraphDecoder(model, self._cache, self._cache.capacity) if on_device else None

    def warm(self) -> None:
        """What comes before the repetitions."""
        for _ in range(0 if self._test.new else 1 if self._graphs is None else SKIPPED):
            self._cache.reset()
            self._read(replace(self._test, prompt=min(self._test.prompt, WARM_TOKENS)))

    def once(self) -> tuple[float, tuple[float, ...]]:
        """Seconds of one repetition, with other tokens, and densities."""
        self._cache.reset()
        if self._test.new:
            return _decode(self.model, self._cache, self._rng, self._test, self._chunk, self._decoder), ()
        found = self._read(self._test)
        self._told = {} if self._graphs is None else self._graphs.take_counts()
        return found

    def end(self) -> tuple[dict[str, int], str | None]:
        """Let go of graphs; see `Timing.read` and `Timing.refused`."""
        refused = None
        for one in (self._graphs, self._decoder):
            if one is not None:
                one.end()
                refused = one.refused or refused
        return self._told, refused

    def _read(self, test: Trial) -> tuple[float, tuple[float, ...]]:
        return _prefill(self.model, self._cache, self._rng, test, self._chunk, self._graphs)


def read(
    model: Model,
    ids: Ints,
    cache: Cache,
    chunk: int | None,
    sparse: Sparse,
    graphs: PrefillGraphs | None = None,
) -> tuple[float, ...]:
    """Prefill, perhaps sparsely; see `Timing.densities`."""
    if (rule := sparse.rule) is None:
        prefill(model, ids, np.arange(len(ids)), cache, chunk=chunk, graphs=graphs)
        return ()
    return prefill_sparse(model, ids, np.arange(len(ids)), cache, rule, chunk=chunk)[1]


def _ids(model: Model, rng: np.random.Generator, tokens: int) -> Ints:
    return rng.integers(0, model.config.vocab, tokens)


def _graphs(model: Model, cache: Cache, test: Trial) -> PrefillGraphs | None:
    """What reads a prompt on the device that is short, or that long graphs take; of others it would read little."""
    in_graphs = test.prompt <= MOST or longest(model.shard_count, cache.precision) > MOST
    wanted = not test.new and test.sparse == "off" and in_graphs
    return PrefillGraphs(model, cache) if wanted and model.device == "cuda" else None


def _prefill(
    model: Model,
    cache: Cache,
    rng: np.random.Generator,
    test: Trial,
    chunk: int | None,
    graphs: PrefillGraphs | None = None,
) -> tuple[float, tuple[float, ...]]:
    """Seconds of one prefill, from ids on the host to logits, by CUDA events on the device; and densities."""
    ids = _ids(model, rng, test.prompt)
    if model.device == "cpu":
        start = time.perf_counter()
        densities = read(model, ids, cache, chunk, test.sparse)
        return time.perf_counter() - start, densities
    events = import_cupy().cuda
    before, after = events.Event(), events.Event()
    before.record()
    densities = read(model, ids, cache, chunk, test.sparse, graphs)
    after.record()
    after.synchronize()
    return float(events.get_elapsed_time(before, after)) / 1e3, densities


def _decode(
    model: Model, cache: Cache, rng: np.random.Generator, test: Trial, chunk: int | None, decoder: GraphDecoder | None
) -> float:
    """Seconds between the arrivals of the first and the last token that are counted."""
    read = max(1, test.prompt)
    logits = prefill(model, _ids(model, rng, read), np.arange(read), cache, chunk=chunk)
    tokens = generate(model, logits, read, cache, limit=SKIPPED + test.new, decoder=decoder)
    for _ in range(SKIPPED):
        next(tokens)
    start = time.perf_counter()
    for _ in tokens:
        pass
    return time.perf_counter() - start


def describe(
    timing: Timing, facts: Mapping[str, Any], path: str, kv: str, made_in: Arithmetic | None = None
) -> dict[str, Any]:
    """Arguments of `make_record` for a timing; samples are tokens a second, `facts` as of `model_facts`."""
    test, metrics = timing.test, timing.metrics()
    common = {**facts, "kv": kv, **running(path, made_in, timing.gpus), "engine": "sp"}
    if test.new:
        config = common | {"context": test.prompt, "tokens": test.new, "method": "greedy", "budget": 1}
        return {
            "bench": "decode",
            "config": config,
            "metrics": metrics | {"acceptance_length": 1.0},
            "samples": timing.rates,
            "sources": timing.sources,
        }
    asked = test.sparse.recorded()["density"]
    sparse = {} if test.sparse == "off" else {"asked_density": asked} if asked else {"asked_sparse": str(test.sparse)}
    return {
        "bench": "prefill",
        "config": common | {"prompt_tokens": test.prompt} | sparse,
        "metrics": metrics | ({"density": mean(timing.densities)} if timing.densities else {}),
        "samples": timing.rates,
        "sources": timing.sources,
    }
