"""A prompt read on several GPUs, threads in their place, against one that reads it alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from odd_groups import FetchingGroup, LateGroup
from pairwise import pairwise
from tiny_models import VOCAB, write_tiny

from sp.errors import ConfigError, PromptError
from sp.models import Hooks, LayerAttention, Model, SparseAttention, dense_attention, load_model, read_layer_major
from sp.models.cache.context_parallel_cache import ContextChunks
from sp.models.run.context_parallel import (
    MOST_TOGETHER,
    SCAN_OPERATIONS,
    last_chunk_pages_less,
    read_context_parallel,
    tokens_together,
)
from sp.models.run.layer_major import LAYER_MAJOR_CHUNK
from sp.models.synthetic.shapes import find_shape
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.sparse.block_budget import ConstantBlocks
from sp.ops.sparse.block_selector import BlockSelector, Dense, Streaming
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.parallel.group import CollectiveBarrier, Rank
from sp.parallel.host import HostGroup

MOST, ROWS = 1500, 8
IDS = np.random.default_rng(0).integers(0, VOCAB, MOST)
WHERE = np.cumsum(1 + (np.arange(MOST) % 97 == 0))  # with gaps, as kept tokens have
Seen = list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return load_model(write_tiny(tmp_path_factory.mktemp("m") / "tiny.gguf", "qwen3", block_count=2))


@pytest.fixture(scope="module")
def deep(tmp_path_factory) -> Model:
    return load_model(write_tiny(tmp_path_factory.mktemp("m") / "deep.gguf", "qwen3", block_count=5))


@pytest.fixture(scope="module")
def gated(tmp_path_factory) -> Model:
    path = tmp_path_factory.mktemp("m") / "gated.gguf"
    return load_model(write_tiny(path, "qwen35", block_count=2, full_attention_interval=1))


def seen_by(read: Callable[..., None]) -> Seen:
    """What `watch` is shown: layer, last queries, all keys, all values."""
    found: Seen = []
    read(lambda layer, q, cache: found.append((layer, q[-ROWS:].copy(), *cache.gather(layer))))
    return found


def attention(selector: BlockSelector | None) -> LayerAttention:
    return dense_attention if selector is None else SparseAttention(selector)


@cache
def read_alone(model: Model, n: int, selector: BlockSelector | None, kv: str, rotate: bool) -> tuple[Seen, Any]:
    """What one GPU sees and, if it does not attend to everything, the blocks it reads."""
    alone = attention(selector)
    room = model.new_cache(n, kv, rotate=rotate, layers=1)
    seen = seen_by(
        lambda watch: read_layer_major(model, IDS[:n], WHERE[:n], room, Hooks(watch), attend=alone, rows=ROWS)
    )
    return seen, alone.densities() if isinstance(alone, SparseAttention) else None


def both(
    model: Model,
    n: int,
    gpus: int,
    selector: BlockSelector | None,
    kv: str,
    rotate: bool,
    kind: type[HostGroup] = HostGroup,
) -> None:
    """Read alone and together, and compare all that is seen and counted."""
    spread = attention(selector)
    want, densities = read_alone(model, n, selector, kv, rotate)
    how = {"attend": spread, "rows": ROWS, "kv": kv, "rotate": rotate, "chunk": 200}
    got = seen_by(
        lambda watch: read_context_parallel(kind(gpus), [model] * gpus, IDS[:n], WHERE[:n], Hooks(watch), **how)
    )
    assert [layer for layer, *_ in got] == [layer for layer, *_ in want] == list(range(model.config.layers))
    for (_, *mine), (_, *theirs) in zip(got, want, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.shape == other.shape
            far = np.abs(one - other) > 2e-3 * np.abs(other).max()
            assert far.mean() < (2e-3 if kv == "q4_0" else 1e-9)  # rounding decides which 4-bit step a value takes
    if isinstance(spread, SparseAttention):
        assert spread.densities() == densities


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("n", [100, 512, 1025, 1100, 1499])
def test_lengths_of_all_kinds(model, n, gpus) -> None:
    both(model, n, gpus, None, "f16", rotate=False)


@pairwise(gpus=[2, 3, 4], kind=[HostGroup, LateGroup, FetchingGroup], sparse=[False, True], n=[1100, 1499])
def test_gathers_may_come_early_or_late(deep, gpus, kind, sparse, n) -> None:
    both(deep, n, gpus, TopDensity(0.5) if sparse else None, "f16", sparse, kind)


def test_a_model_of_one_layer(tmp_path) -> None:
    one = load_model(write_tiny(tmp_path / "one.gguf", "qwen3", block_count=1))
    both(one, 1100, 2, None, "f16", rotate=False)


@pytest.mark.parametrize(("kv", "rotate"), [("f32", False), ("f16", True), ("q4_0", False), ("q4_0", True)])
def test_caches_of_all_kinds(model, kv, rotate) -> None:
    both(model, 1100, 4, None, kv, rotate)


@pytest.mark.parametrize(
    "selector",
    [
        FlashPrefill(0.99, sink=1, window=1, last_n=5, maximum="unforced"),  # longer than the last stripe
        FlashPrefill(0.9, share="group", visibility="first", mean_correction=True),
        TopDensity(0.4),
        ConstantBlocks(3, sink=1, window=1, last_n=3),
        Streaming(1, 2, last_n=3),
        Dense(),
    ],
)
def test_selectors_list_the_same_blocks(model, selector) -> None:
    both(model, 1499, 4, selector, "f16", rotate=True)


def test_gates_and_few_gpus(gated) -> None:
    assert gated.config.gated
    both(gated, 1100, 2, TopDensity(0.5), "f16", rotate=False)
    few = TopDensity(0.4, sink=1, window=1, last_n=0)  # without what is always read a block of 64 queries is told apart
    both(gated, 960, 4, few, "f16", rotate=False)


def test_stripes_are_whole_pages_and_balanced() -> None:
    for n, gpus, tail in ((100_000, 4, 128), (1024, 4, 128), (1 << 20, 8, 64), (1300, 2, 700)):
        stripes = ContextChunks(n, gpus, tail)
        assert stripes.all[0].start == 0
        assert stripes.all[-1].stop == n
        assert stripes.all[-1].start <= n - tail
        assert all(a.stop == b.start for a, b in zip(stripes.all, stripes.all[1:], strict=False))
        assert not any(stripe.start % 128 for stripe in stripes.all)
        assert len(set(stripes.table().tolist())) == -(-n // 128)
        work = [sum(b * b - a * a for a, b in stripes.of(gpu)) / n**2 * gpus for gpu in range(gpus)]
        assert n < 10_000 or max(work) < 1.01


def test_progress_counts_all_of_it_and_depth_stops(model) -> None:
    told: list[int] = []
    seen = seen_by(
        lambda watch: read_context_parallel(
            HostGroup(2), [model] * 2, IDS, WHERE, Hooks(watch, progress=told.append), rows=ROWS, depth=1, chunk=300
        )
    )
    assert [layer for layer, *_ in seen] == [0]
    assert sum(told) == MOST * model.config.layers


class TellingGroup(HostGroup):
    """Whose GPUs are told whether something was done before."""

    told: tuple[bool, ...] = ()

    @contextmanager
    def _gpu(self, rank: int, barrier: CollectiveBarrier) -> Iterator[Rank]:
        with super()._gpu(rank, barrier) as gpu:
            gpu.set_warm = self._note  # type: ignore[method-assign]
            yield gpu

    def _note(self, known: bool) -> None:
        self.told += (known,)


def test_what_all_gpus_have_done_to_its_end_they_have_done_before(model, deep) -> None:
    group = TellingGroup(2)

    def read(
        model: Model, n: int, attend: LayerAttention = dense_attention, watch: Any = lambda *_: None, like: Any = "look"
    ) -> bool:
        group.told = ()
        read_context_parallel(group, [model] * 2, IDS[:n], np.arange(n), Hooks(watch, replay_key=like), attend=attend)
        assert len(set(group.told)) == 1
        return group.told[0]

    def fails(*_: object) -> None:
        raise PromptError("seen enough")

    assert [read(model, n) for n in (1100, 1100, 1200)] == [False, True, True]
    assert not read(model, 1000), "of another length"
    assert not read(deep, 1100), "of another model"
    assert [read(model, 1100, SparseAttention(Dense())) for _ in range(2)] == [False, True]
    assert [read(model, 1100, like=None) for _ in range(2)] == [False, False], "a watch that may load anything"
    assert not read(model, 1100, like="another")
    with pytest.raises(PromptError, match="seen enough"):
        read(model, 1100, watch=fails)
    assert [read(model, 1100) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("name", "wanted"), [("qwen3-0.6b", MOST_TOGETHER), ("llama-3.1-8b", 16384), ("qwen3-30b-a3b", 16384)]
)
def test_as_few_launches_as_memory_allows(name, wanted, model) -> None:
    shape: Any = SimpleNamespace(config=find_shape(name).config, device="cuda")
    assert tokens_together(shape) == wanted
    assert tokens_together(model) == LAYER_MAJOR_CHUNK["cpu"]


def test_refusals_and_a_watch_that_fails(model, gated, tmp_path) -> None:
    def fails(layer: int, q: np.ndarray, cache: object) -> None:
        raise PromptError("enough")

    group = HostGroup(2)
    with pytest.raises(PromptError, match="GPU 0 of 2: enough"):
        read_context_parallel(group, [model] * 2, IDS, WHERE, Hooks(fails))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sp-gpu")]
    with pytest.raises(PromptError, match="outside the vocabulary"):
        read_context_parallel(group, [model] * 2, IDS + VOCAB, WHERE, Hooks(fails))
    for models in ([model], [model, gated]):
        with pytest.raises(ConfigError, match="2 GPUs need the same model each"):
            read_context_parallel(group, models, IDS, WHERE, Hooks(fails))
    hybrid = load_model(write_tiny(tmp_path / "hybrid.gguf", "qwen35"))
    with pytest.raises(ConfigError, match="attention layers alone"):
        read_context_parallel(group, [hybrid] * 2, IDS, WHERE, Hooks(fails))


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_stripes_are_equally_long_but_for_the_last(gpus) -> None:
    """Where each has a page more than there are stripes, and of fewer pages within one."""
    parts, draw = 2 * gpus, np.random.default_rng(gpus)
    for tokens in (131072, 130981, *draw.integers(PAGE_TOKENS * parts, 150_000, 300).tolist()):
        found = [stop - start for start, stop in ContextChunks(tokens, gpus, PAGE_TOKENS).all]
        pages = -(-tokens // PAGE_TOKENS)
        assert sum(found) == tokens
        assert min(found) >= PAGE_TOKENS
        assert max(found) <= PAGE_TOKENS * (-(-pages // parts) + 1)
        alike = set(found[:-1])
        assert len(alike) == 1 or (pages < parts**2 and max(alike) - min(alike) == PAGE_TOKENS), (tokens, found)


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_a_last_stripe_is_shorter_where_the_end_takes_longer(gpus) -> None:
    parts, draw = 2 * gpus, np.random.default_rng(gpus)
    for tokens in (131072, 262143, *draw.integers(20_000, 150_000, 100).tolist()):
        for less in (1, 9, 40, 10**6):
            plain, found = ContextChunks(tokens, gpus, 300), ContextChunks(tokens, gpus, 300, less)
            sizes = [stop - start for start, stop in found.all]
            assert sum(sizes) == tokens
            assert len(set(sizes[:-1])) == 1
            assert sizes[-1] >= 300
            shorter = sizes[0] // PAGE_TOKENS - -(-sizes[-1] // PAGE_TOKENS)
            assert found.all == plain.all or less - parts < shorter <= less, (tokens, less, sizes)
            assert sorted(found.table().tolist()) == sorted(set(found.table().tolist()))


def test_how_much_shorter_depends_on_what_the_end_takes() -> None:
    config = find_shape("qwen3-0.6b").config

    def less(tokens: int, **options: Any) -> int:
        return last_chunk_pages_less(config, SparseAttention(TopDensity(0.05, **options)), tokens)

    assert less(131072, last_n=0) < less(131072) < less(131072, last_n=4)
    assert last_chunk_pages_less(config, dense_attention, 131072) < less(131072, last_n=0), "what a token takes there"
    assert last_chunk_pages_less(config, SparseAttention(Streaming(2, 4)), 131072) == last_chunk_pages_less(
        config, dense_attention, 131072
    )
    whole = 131072 * 4 * 16 * 128 * 28  # of a row at the end, all layers
    share = expected_density(TopDensity(0.05), 131072)
    token = 2 * 15728640 * 28 + share * whole + whole / 256
    extra = 256 * (1 - share) * whole + SCAN_OPERATIONS * 2 * 28 * 8 * 128 * 131072
    assert less(131072) == int(extra / token / 128)
