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
from sp.scoring.sparse import Sparse

WARM_TOKENS = 16384  # enough that every kernel of a long prefill has run once
IMBALANCE_TOKENS = 8192  # at most so many tokens measure the imbalance of experts
Together = Callable[[Callable[[Model], Any]], list[Any]]
Draws = Mapping[int, np.random.Generator]
KVForm = tuple[str, bool | None]
SKIPPED = 3  # untimed decoded tokens, or prefills in graphs: one launched eagerly, one captured, one replayed


@dataclass(frozen=True)
class Trial:
    """One test: a prefill of `prompt` tokens, or `new` tokens decoded after a prompt of that length. `sparse`: the rule
    by which a prefill's attention chooses key blocks, as for a scorer."""

    prompt: int
    new: int = 0
    sparse: Sparse = Sparse("off")  # noqa: RUF009  an immutable str

    @property
    def name(self) -> str:
        """The name that llama-bench uses: pp512, tg64, tg64@d4096; for a sparse prefill pp512 sparse 0.05."""
        if not self.new:
            return f"pp{self.prompt}" + (
                "" if self.sparse == "off" else f" sparse {self.sparse.removeprefix('density:')}"
            )
        return f"tg{self.new}" + (f"@d{self.prompt}" if self.prompt else "")

    @property
    def tokens(self) -> int:
        """Number of timed tokens."""
        return self.new or self.prompt


@dataclass(frozen=True)
class Timing:
    """Samples of one test. `tokens_by_mode`: tokens of the last prefill by how they were launched, see
    `sp.models.run.graph.ReadMode`; empty without graphs. `refused`: why work that otherwise is a CUDA graph was
    launched eagerly."""

    test: Trial
    seconds: tuple[float, ...]  # per repetition
    peak_bytes: int  # peak device memory of the test, weights included; 0 on the CPU
    sources: tuple[str, ...] = ()  # kernels launched, for `make_record`
    densities: tuple[float, ...] = ()  # share of the causal blocks that each layer of a sparse prefill read
    imbalance: float | None = None  # of experts, in a prefill by one GPU; see `sp.models.run.imbalance`
    tokens_by_mode: Mapping[str, int] = field(default_factory=dict)
    gpus: int = 1  # GPUs that share the model; memory is that of the one with the highest peak
    refused: str | None = None
    host: Mapping[str, float] = field(default_factory=dict)  # of `HostTime`

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each repetition."""
        return [self.test.tokens / s for s in self.seconds]

    def metrics(self) -> dict[str, float]:
        """Median, mean and standard deviation of the rate; peak memory; imbalance of experts and replayed tokens if
        known."""
        rates = self.rates
        imbalance = {} if self.imbalance is None else {"imbalance": self.imbalance}
        replayed = {"replayed_tokens": self.tokens_by_mode.get("replayed", 0)} if self.tokens_by_mode else {}
        speed = {"tok_s": median(rates), "tok_s_mean": mean(rates), "tok_s_sd": stdev(rates) if len(rates) > 1 else 0.0}
        return {**imbalance, **replayed, **self.host, **speed, "peak_bytes": self.peak_bytes}


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
    """Time a model; each test is warmed up, then repeated with other random tokens.

    `progress` is called with the name of the test after every repetition. `together` is `Shards.run` of a model that
    several GPUs share: `model` is then the first GPU's, and the slowest GPU's time counts.
    """
    run = together or (lambda work: [work(model)])
    spread_of = functools.cache(functools.partial(imbalance, model))
    # Equal seeds, so that all GPUs of a shared model read the same tokens.
    draws: dict[int, np.random.Generator] = defaultdict(lambda: np.random.default_rng(0))
    for test in tests:
        # Every step ends on all GPUs before the next begins: no memory may be allocated or freed while another GPU
        # waits for this one in a collective.
        run(free_pool)
        reset_launched()
        starts = run(functools.partial(_Run, draws, test, (kv, rotate), chunk))
        runs = {id(start.model): start for start in starts}
        _on_each(run, runs, _Run.warm)
        seconds: list[float] = []
        densities: tuple[float, ...] = ()
        host = HostTime(model.device, chosen=together is not None)
        for _ in range(repeats):
            results = _on_each(run, runs, _Run.once)
            seconds.append(max(seconds_taken for seconds_taken, _ in results))
            densities = results[0][1]
            if not test.new:  # decoding replays graphs, so the time of single launches says nothing of it
                host.look()
            if progress is not None:
                progress(test.name)
        peak, sources = max(run(pool_bytes)), launched_sources()
        by_mode, refused = _on_each(run, runs, _Run.end)[0]
        unevenness = None if test.new or together else spread_of(min(test.prompt, IMBALANCE_TOKENS))
        times = tuple(seconds)
        yield Timing(test, times, peak, sources, densities, unevenness, by_mode, len(runs), refused, host.metrics())


def _on_each(run: Together, runs: Mapping[int, _Run], work: Callable[[_Run], Any]) -> list[Any]:
    return run(lambda model: work(runs[id(model)]))


class _Run:
    """One test of a model, or of one GPU's shard of it."""

    def __init__(self, draws: Draws, test: Trial, form: KVForm, chunk: int | None, model: Model) -> None:
        self.model, self._rng, self._test, self._chunk = model, draws[id(model)], test, chunk
        room = max(1, test.prompt) + (test.new + SKIPPED if test.new else 0)
        self._cache = model.new_cache(room, form[0], rotate=form[1], once=True)
        self._graphs, self._counts = _graphs(model, self._cache, test), dict[str, int]()
        on_device = test.new and model.device == "cuda" and model.captures
        self._decoder = GraphDecoder(model, self._cache, self._cache.capacity) if on_device else None

    def warm(self) -> None:
        """Run the untimed prefills before the repetitions."""
        for _ in range(0 if self._test.new else 1 if self._graphs is None else SKIPPED):
            self._cache.reset()
            self._read(replace(self._test, prompt=min(self._test.prompt, WARM_TOKENS)))

    def once(self) -> tuple[float, tuple[float, ...]]:
        """Time one repetition with new tokens; return its seconds and densities."""
        self._cache.reset()
        if self._test.new:
            return _decode(self.model, self._cache, self._rng, self._test, self._chunk, self._decoder), ()
        result = self._read(self._test)
        self._counts = {} if self._graphs is None else self._graphs.take_counts()
        return result

    def end(self) -> tuple[dict[str, int], str | None]:
        """Free the graphs; return `Timing.tokens_by_mode` and `Timing.refused`."""
        refused = None
        for graphs in (self._graphs, self._decoder):
            if graphs is not None:
                graphs.end()
                refused = graphs.refused or refused
        return self._counts, refused

    def _read(self, test: Trial) -> tuple[float, tuple[float, ...]]:
        return _prefill(self.model, self._cache, self._rng, test, self._chunk, self._graphs)


def run_prefill(
    model: Model,
    ids: Ints,
    cache: Cache,
    chunk: int | None,
    sparse: Sparse,
    graphs: PrefillGraphs | None = None,
) -> tuple[float, ...]:
    """Prefill, sparsely if `sparse` has a rule; return `Timing.densities`."""
    if (rule := sparse.rule) is None:
        prefill(model, ids, np.arange(len(ids)), cache, chunk=chunk, graphs=graphs)
        return ()
    return prefill_sparse(model, ids, np.arange(len(ids)), cache, rule, chunk=chunk)[1]


def _ids(model: Model, rng: np.random.Generator, tokens: int) -> Ints:
    return rng.integers(0, model.config.vocab, tokens)


def _graphs(model: Model, cache: Cache, test: Trial) -> PrefillGraphs | None:
    """Create the graphs of a prefill if they would cover most of it: a short prompt, or a model with long graphs."""
    in_graphs = test.prompt <= MOST or longest(model.shard_count, cache.precision) > MOST
    suited = not test.new and test.sparse == "off" and in_graphs
    return PrefillGraphs(model, cache) if suited and model.device == "cuda" else None


def _prefill(
    model: Model,
    cache: Cache,
    rng: np.random.Generator,
    test: Trial,
    chunk: int | None,
    graphs: PrefillGraphs | None = None,
) -> tuple[float, tuple[float, ...]]:
    """Time one prefill, from ids on the host to logits, on GPUs by CUDA events; return seconds and densities."""
    ids = _ids(model, rng, test.prompt)
    if model.device == "cpu":
        start = time.perf_counter()
        densities = run_prefill(model, ids, cache, chunk, test.sparse)
        return time.perf_counter() - start, densities
    events = import_cupy().cuda
    before, after = events.Event(), events.Event()
    before.record()
    densities = run_prefill(model, ids, cache, chunk, test.sparse, graphs)
    after.record()
    after.synchronize()
    return float(events.get_elapsed_time(before, after)) / 1e3, densities


def _decode(
    model: Model, cache: Cache, rng: np.random.Generator, test: Trial, chunk: int | None, decoder: GraphDecoder | None
) -> float:
    """Measure the seconds between the arrivals of the last skipped and the last counted token."""
    length = max(1, test.prompt)
    logits = prefill(model, _ids(model, rng, length), np.arange(length), cache, chunk=chunk)
    tokens = generate(model, logits, length, cache, limit=SKIPPED + test.new, decoder=decoder)
    for _ in range(SKIPPED):
        next(tokens)
    start = time.perf_counter()
    for _ in tokens:
        pass
    return time.perf_counter() - start


def describe(
    timing: Timing, facts: Mapping[str, Any], path: str, kv: str, made_in: Arithmetic | None = None
) -> dict[str, Any]:
    """Build the arguments of `make_record` for a timing; samples are tokens per second, `facts` those of
    `model_facts`."""
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
    density = test.sparse.recorded()["density"]
    rule = {"asked_density": density} if density else {"asked_sparse": str(test.sparse)}
    sparse = {} if test.sparse == "off" else rule
    return {
        "bench": "prefill",
        "config": common | {"prompt_tokens": test.prompt} | sparse,
        "metrics": metrics | ({"density": mean(timing.densities)} if timing.densities else {}),
        "samples": timing.rates,
        "sources": timing.sources,
    }
