"""Several GPUs against one: what they gather, what they keep, and how a GPU that fails ends; turns that are repeated.

Skipped on one GPU, but for its own turns.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace

import cupy
import numpy as np
import pytest
from repeated_parts import repeated_parts

from sp.errors import DeviceError, PromptError
from sp.kernels import forced_path
from sp.kernels.device import device_count, event_done, nccl_version
from sp.kernels.launch_replay import LaunchReplay
from sp.models import ContextParallel
from sp.models.network.arithmetic import scoring
from sp.models.run import replay as repeated_layers
from sp.models.run.context_parallel import last_chunk_pages_less
from sp.models.synthetic.random_store import random_model
from sp.parallel import nccl, nccl_rank
from sp.parallel.group import Rank
from sp.parallel.nccl import NcclGroup
from sp.parallel.nccl_rank import PeerGathers, reachable
from sp.quant import Math
from sp.scoring import SCORERS, ScoreRequest
from sp.selection.base import SELECTORS, SelectionRequest
from sp.session.loaded import embedded, load
from sp.studies.sample import sample

N, KEPT = 6001, 0.1


def group_of(count: int, **limits: float) -> NcclGroup:
    """The first GPUs; skips where there are not so many."""
    if device_count() < count or not nccl_version():
        pytest.skip(f"needs {count} GPUs and NCCL")
    return NcclGroup(tuple(range(count)), **limits)


def gather(gpu: Rank) -> list[int]:
    """Three gathers, each over the one before."""
    whole = cupy.zeros((gpu.size, 1 << 20), np.uint32)
    for step in range(3):
        whole[gpu.rank] = 10 * step + gpu.rank
        gpu.all_gather(whole)
    return [int(value) for value in whole[:, -1].get()]


def test_events_are_asked_for_as_cupy_asks() -> None:
    stream, seen = cupy.cuda.Stream(non_blocking=True), []
    with stream:
        a = cupy.ones((8192, 8192), np.float32)
        for _ in range(20):
            a = a * np.float32(0.5)
        event = stream.record()
        seen.append(event_done(event))  # either way, and no error
        stream.synchronize()
    assert event_done(event)
    assert event.done
    assert seen[0] in (True, False)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_gathers(count) -> None:
    group = group_of(count)
    for _ in range(2):
        assert group.run(gather) == [[20 + rank for rank in range(count)]] * count


@pytest.mark.parametrize("fetched", [0, 1 << 40])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_gathers_that_are_begun_run_beside_others(count, fetched, monkeypatch) -> None:
    monkeypatch.setattr(nccl_rank, "FETCHED_BYTES", fetched)
    group = group_of(count)

    def begun(gpu: Rank) -> list[list[int]]:
        arrays = [cupy.zeros((2, gpu.size, 1 << 22), np.uint32) for _ in range(4)]
        ends, seen = [], []
        for step in range(12):
            pair = arrays[step % 4]  # four in turn: nobody fetches what is written over any more
            pair[:, gpu.rank] = 100 * step + gpu.rank + cupy.arange(2, dtype=np.uint32)[:, None]
            ends.append((gpu.begin_gather(*pair), pair))
            if len(ends) == 2:
                ended, whole = ends.pop(0)
                ended()
                seen.append((whole.min(axis=2), whole.max(axis=2)))
        gpu.wait()
        assert all((least == most).all() for least, most in seen)
        return [most.get().ravel().tolist() for _, most in seen]

    for _ in range(2):
        each = [[100 * step + rank + i for i in range(2) for rank in range(count)] for step in range(11)]
        assert group.run(begun) == [each] * count


@pytest.mark.parametrize("count", [2, 4])
def test_what_copy_engines_fetch_is_what_nccl_gathers(count, monkeypatch) -> None:
    monkeypatch.setattr(nccl_rank, "FETCHED_BYTES", 0)
    tokens, found, models = 40_000, [], []
    for device in range(group_of(count).size):
        with cupy.cuda.Device(device):
            models.append(random_model("qwen3-0.6b", "bf16", precision="auto"))
            models[-1].arithmetic = scoring(models[-1].arithmetic, "cuda", models[-1].config.head_dim)
    nothing, ids = np.zeros(tokens, bool), np.random.default_rng(2).integers(0, models[0].config.vocab, tokens)
    scorer, shown, show = SCORERS.build("tail", {"sparse": "density:0.1"}), [], PeerGathers.show
    monkeypatch.setattr(PeerGathers, "show", lambda self, *given: shown.append(self) or show(self, *given))
    for reach in (reachable, lambda devices: False):
        monkeypatch.setattr(nccl, "reachable", reach)
        group = group_of(count)
        request = ScoreRequest(models[0], ids, np.arange(tokens), nothing, nothing, gpus=ContextParallel(group, models))
        found += [scorer.score(request).scores for _ in range(2)]
        assert bool(shown) == reach(group.devices)
        shown.clear()
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("options", [{}, {"sparse": "alpha:0.5"}])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_kept_sets_are_those_of_one_card(count, options) -> None:
    group, models = group_of(count), []
    for device in group.devices:
        with cupy.cuda.Device(device):
            loaded = load(embedded("drafter"), device="cuda", extrapolate=True)
            models.append(loaded.model)
    ids = np.resize(np.asarray(loaded.tokenizer.encode(sample()[0]).ids), N)
    question = np.arange(N) >= N - 20
    alone = ScoreRequest(models[0], ids, np.arange(N), question, ~question)
    scorer, selector = SCORERS.build("tail", options), SELECTORS.build("top_chunks")
    want, got = (scorer.score(one).scores for one in (alone, replace(alone, gpus=ContextParallel(group, models))))
    assert np.abs(got - want).max() < 1e-2 * np.abs(want).max()
    kept = [set(selector.select(SelectionRequest(one, question, KEPT)).indices.tolist()) for one in (want, got)]
    assert len(kept[0] & kept[1]) >= 0.97 * len(kept[0])  # chunks whose scores are equal within rounding


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("sparse", ["density:0.1", "off"])
@pytest.mark.parametrize(
    ("file_type", "precision", "path", "tokens"),
    [
        ("bf16", "bf16", "auto", 6001),
        ("bf16", "auto", "auto", 32000),
        ("q8_0", "bf16", "auto", 6001),
        ("q8_0", "bf16", "portable", 6001),
        ("q4_k_m", "bf16", "portable", 6001),
    ],
)
def test_repeated_layers_change_nothing(file_type, precision, path, tokens, sparse, count, monkeypatch) -> None:
    group, models, repeats = None if count == 1 else group_of(count), [], []
    tokens = min(tokens, 8000) if count == 1 else tokens
    for device in range(count):
        with cupy.cuda.Device(device):
            model = random_model("qwen3-0.6b", file_type, precision=precision)
            model.arithmetic = scoring(model.arithmetic, "cuda", model.config.head_dim)
            models.append(model)
    again = LaunchReplay.__call__
    monkeypatch.setattr(LaunchReplay, "__call__", lambda self, to: (repeats.append(len(to)), again(self, to)))
    nothing, ids = np.zeros(tokens, bool), np.random.default_rng(1).integers(0, models[0].config.vocab, tokens)
    options = {"sparse": sparse}
    gpus = None if group is None else ContextParallel(group, models)
    request = ScoreRequest(models[0], ids, np.arange(tokens), nothing, nothing, gpus=gpus)
    with forced_path(path) if path != "auto" else nullcontext():
        scorer = SCORERS.build("tail", options)
        repeated = scorer.score(request)
        eight_bits = models[0].arithmetic.precision is Math.INT8
        less = last_chunk_pages_less(models[0].config, scorer.attend(request), tokens)
        most = repeated_parts(tokens, count, models[0].config.layers, eight_bits, less)
        assert 0 < len(repeats) <= most
        assert len(repeats) == most or file_type == "q4_k_m"  # whose layers are of several kinds
        monkeypatch.setattr(repeated_layers, "WORTH", 1000)  # nothing comes so often
        plain = SCORERS.build("tail", options).score(request)
    np.testing.assert_array_equal(repeated.scores, plain.scores)
    assert repeated.densities == plain.densities


@pytest.mark.no_sanitizer
def test_a_card_that_fails_or_hangs_ends_all() -> None:
    group = group_of(2, wait_seconds=2.0, leave_seconds=4.0)

    def begin(gpu: Rank) -> None:
        for _ in range(2):  # past the first steps, before which hosts wait for each other and no device does
            gather(gpu)

    def fails(gpu: Rank) -> None:
        begin(gpu)
        if gpu.rank == 1:
            raise PromptError("enough")
        gather(gpu)

    def stays(gpu: Rank) -> None:
        begin(gpu)
        if gpu.rank == 1:
            time.sleep(3)
        gather(gpu)

    for work, kind, text in (
        (fails, PromptError, "GPU 1 of 2: enough"),
        (stays, DeviceError, "GPU 1 did not arrive"),
    ):
        start = time.monotonic()
        with pytest.raises(kind, match=text):
            group.run(work)
        assert time.monotonic() - start < 7
        assert group.run(gather) == [[20, 21]] * 2
