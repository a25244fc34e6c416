"""A model that GPUs share against the same model on one GPU; on one GPU alone, threads on it stand for GPUs."""

from __future__ import annotations

from itertools import product

import cupy
import numpy as np
import pytest

from sp.decode.base import GraphDecoder, generate
from sp.errors import PromptError
from sp.kernels.device import device_count, nccl_version
from sp.models import Model, decode_step, load_model, prefill
from sp.models.run.graph import PrefillGraphs
from sp.models.run.tensor_parallel import PART
from sp.models.run.tree import TreeReader
from sp.models.shards.load_shards import load_shards
from sp.models.synthetic.random_store import random_shards
from sp.models.synthetic.synthetic import write_synthetic
from sp.parallel.group import ParallelGroup, Rank
from sp.parallel.host import HostGroup
from sp.parallel.nccl import NcclGroup
from sp.prompt import Prompt
from sp.session import Pipeline, RunOptions
from sp.session.loaded import embedded
from sp.studies.sample import sample

N = 700
GROUPS = ["threads", "cards"]
NAMES = ["target", "tiny-qwen35:q8_0", "tiny-llama:bf16"]
FOUR = ("qwen3-0.6b:q8_0", "four cards")  # heads of the smaller ones are too few


def group_of(kind: str) -> ParallelGroup:
    """Two threads on one GPU, or two or four GPUs; skips where there are not so many."""
    if kind == "threads":
        return HostGroup(2)
    count = 4 if kind == "four cards" else 2
    if device_count() < count or not nccl_version():
        pytest.skip(f"needs {count} GPUs and NCCL")
    return NcclGroup(tuple(range(count)))


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Squared error of the squares."""
    return float(((one - other) ** 2).sum() / (other**2).sum())


@pytest.mark.parametrize(("name", "kind"), [*product(NAMES, GROUPS), FOUR])
def test_prompts_steps_and_trees_are_those_of_one_card(name, kind, tmp_path) -> None:
    shape, _, file_type = name.partition(":")
    path = write_synthetic(tmp_path / "m.gguf", shape, file_type) if file_type else embedded(name)
    group, whole = group_of(kind), load_model(path, device="cuda")
    shards = load_shards(path, group, device="cuda")
    ids = np.random.default_rng(0).integers(0, whole.config.vocab, N)

    def work(model: Model) -> list[np.ndarray]:
        cache = model.new_cache(N + 40)
        found = [prefill(model, ids, np.arange(N), cache, chunk=300).get()]
        found += [decode_step(model, int(ids[i]), N + i, cache).get() for i in range(3)]
        reader = TreeReader(model, cache, (1,), most=8)
        tree = reader.read_tree(ids[3:7], np.array([-1, 0, 0, 1]), N + 3 + np.array([0, 1, 1, 2]))
        found += [*tree.logits.get()]
        reader.commit_path(np.array([0, 1]))
        return [*found, decode_step(model, 5, N + 5, cache).get()]

    want, (first, *others) = work(whole), shards.run(work)
    assert len(others) == group.size - 1
    for its in others:
        assert all(map(np.array_equal, first, its))
    for mine, expected in zip(first, want, strict=True):
        assert apart(mine, expected) < 1e-3
    held = [model.nbytes for model in shards.models]
    assert max(held) < 0.8 * whole.nbytes


@pytest.mark.parametrize("kind", GROUPS)
def test_a_model_of_random_weights_decodes(kind) -> None:
    shards = random_shards("tiny-qwen35", "q4_0", group_of(kind))

    def answer(model: Model) -> list[int]:
        cache, ids = model.new_cache(200), np.arange(100)
        return list(generate(model, prefill(model, ids, ids, cache), 100, cache, limit=20))

    one, other = shards.run(answer)
    assert one == other
    assert len(one) == 20


@pytest.mark.parametrize("name", ["target", "tiny-qwen35:q8_0"])
def test_replayed_steps_and_prompts_are_those_launched_one_by_one(name, tmp_path) -> None:
    shape, _, file_type = name.partition(":")
    path = write_synthetic(tmp_path / "m.gguf", shape, file_type) if file_type else embedded(name)
    shards, new = load_shards(path, group_of("cards"), device="cuda"), 24
    ids = np.random.default_rng(0).integers(0, shards.config.vocab, N)

    def work(model: Model, eager: bool) -> tuple[list[int], dict[str, int], str | None]:
        cache = model.new_cache(N + new)
        graphs, decoder = PrefillGraphs(model, cache, eager=eager), GraphDecoder(model, cache, new, eager=eager)
        for _ in range(3):
            cache.reset()
            logits = prefill(model, ids, np.arange(N), cache, graphs=graphs)
            told = graphs.take_counts()
        tokens = list(decoder.tokens(logits, N, new))
        refused = graphs.refused or decoder.refused
        for one in (graphs, decoder):
            one.end()
        return tokens, told, refused

    eager, other = shards.run(lambda model: work(model, True))
    assert eager == other
    assert eager[1] == {"eager": N}
    assert shards.run(lambda model: work(model, False)) == [(eager[0], {"replayed": N}, None)] * 2


@pytest.mark.parametrize(("name", "kind"), [*((name, "cards") for name in NAMES), FOUR])
def test_long_runs_go_in_two_parts_and_are_those_of_one_card(name, kind, tmp_path) -> None:
    shape, _, file_type = name.partition(":")
    path = write_synthetic(tmp_path / "m.gguf", shape, file_type) if file_type else embedded(name)
    group, whole, n = group_of(kind), load_model(path, device="cuda"), 2 * PART + 230
    shards = load_shards(path, group, device="cuda")
    ids = np.random.default_rng(0).integers(0, whole.config.vocab, 2 * n)

    def work(model: Model) -> tuple[list[np.ndarray], dict[str, int]]:
        cache = model.new_cache(2 * n + PART)  # room for padding behind both runs
        graphs, found = PrefillGraphs(model, cache) if model.shard_count > 1 else None, []
        for _ in range(3):
            cache.reset()
            for start in (0, n):
                some = np.arange(start, start + n)
                found.append(prefill(model, ids[some], some, cache, graphs=graphs).get())
            found.append(decode_step(model, 3, 2 * n, cache).get())
        told = {} if graphs is None else graphs.take_counts()
        if graphs is not None:
            assert graphs.refused is None
            graphs.end()
        return found, told

    (want, _), ((first, told), *others) = work(whole), shards.run(work)
    assert told == {"eager": n, "captured": n, "replayed": 4 * n}
    for its, _ in others:
        assert all(map(np.array_equal, first, its))
    assert max(map(apart, first, want)) < 1e-3


def test_a_card_that_fails_between_replays_ends_all_and_graphs_are_made_anew() -> None:
    shards = load_shards(embedded("target"), group_of("cards"), device="cuda")

    def work(model: Model, failing: bool) -> list[int]:
        cache, ids, found = model.new_cache(100), np.arange(40), []
        for token in generate(model, prefill(model, ids, ids, cache), 40, cache, limit=30):
            found.append(token)
            if failing and model is shards.models[1] and len(found) == 10:
                raise PromptError("enough")
        return found

    with pytest.raises(PromptError, match="GPU 1 of 2: enough"):
        shards.run(lambda model: work(model, failing=True))
    one, other = shards.run(lambda model: work(model, failing=False))
    assert one == other
    assert len(one) == 30


def test_a_run_whose_target_is_shared_is_that_of_one_card() -> None:
    group_of("cards")
    document, example = sample()
    alone, shared = (Pipeline.open(device="cuda", gpus=gpus) for gpus in (1, 2))
    prompt = Prompt.from_document(document, example.question, alone.target.template)
    options = RunOptions(keep_ratio=0.1, compress="always", max_new_tokens=16)
    want, got = (each.run(prompt, options, full=True) for each in (alone, shared))
    assert got.full.tokens == want.full.tokens
    for way in ("eager", "captured", "replayed"):  # into the cache that the full prefill has made
        got = shared.run(prompt, options, full=False)
        assert got.answer.tokens == want.answer.tokens
        facts = got.answer.trace.facts
        assert facts["cards"][-1].startswith("target: shared by 2 GPUs, ")
        assert "not in CUDA graphs" not in facts["cards"][-1]
        assert min(facts["card_peaks"]) > 0
        assert facts["prefill_read"].keys() == {way}
    seen: list[int] = []
    shared.run(prompt, options, full=False, on_token=lambda token: seen.append(token) or len(seen) == 4)
    assert seen == list(want.answer.tokens[:4])
    assert shared.run(prompt, options, full=False).answer.tokens == want.answer.tokens


def test_means_over_cards() -> None:
    group = group_of("cards")
    for rank in range(group.size):  # what CuPy loads of its own while a GPU waits for another may wait for that one
        with group.device(rank):
            warm = cupy.full((3, 1 << 20), rank, np.float32)
            warm += np.float32(0.5)
            assert float(warm.min()) == float(warm.max()) == rank + 0.5

    def mean(gpu: Rank) -> list[float]:
        found = cupy.full((3, 1 << 20), gpu.rank, np.float32)
        for _ in range(200):  # more than are queued ahead
            gpu.all_reduce(found)
            found += np.float32(gpu.rank - 0.5)
        gpu.all_reduce(found)
        return [float(found.min()), float(found.max())]

    assert group.run(mean) == [[0.5, 0.5]] * 2


def test_a_card_that_fails_ends_all_and_the_model_still_works() -> None:
    shards = load_shards(embedded("target"), group_of("cards"), device="cuda")

    def work(model: Model, failing: bool) -> int:
        cache, ids = model.new_cache(50), np.arange(40)
        prefill(model, ids[:20], ids[:20], cache)
        if failing and model is shards.models[1]:
            raise PromptError("enough")
        return int(prefill(model, ids[20:], ids[20:], cache).argmax())

    with pytest.raises(PromptError, match="GPU 1 of 2: enough"):
        shards.run(lambda model: work(model, failing=True))
    one, other = shards.run(lambda model: work(model, failing=False))
    assert one == other
