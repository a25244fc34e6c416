"""Experts that wait in pinned host memory give what experts on the device give, to the bit, on both paths.

The bytes are the same and so are the kernels; only where weights lie differs, and when they come over.
"""

from __future__ import annotations

from pathlib import Path

import cupy
import numpy as np
import pytest
from compare import to_bf16
from file_rows import file_rows

from sp.decode.base import greedy
from sp.models import Model, load_model, prefill, prefill_layer_major
from sp.models.layer.cold_experts import PinnedWeight, StackRing, allocate_pinned, pack_rows_pinned
from sp.models.run.tree import TreeReader
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.experts import grouped
from sp.ops.experts.stack import Stack
from sp.ops.matmul.packed import pack, unpack
from sp.planning.memory import work_bytes
from sp.prompt import Prompt
from sp.quant import Q4_K, Q6_K, Q8_0, BlockFormat
from sp.session import Pipeline, RunOptions, embedded, load

N, NEW = 600, 12
IDS = np.random.default_rng(1).integers(0, 2000, N + 64)


@pytest.fixture(scope="module", params=["tiny-qwen3moe:q4_k_m", "tiny-qwen35moe:ud-q4_k_xl"])
def models(request, tmp_path_factory) -> tuple[Model, Model]:
    """With all weights on the device, and with the experts of three of four layers on the host."""
    shape, _, file_type = request.param.partition(":")
    file = write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", shape, file_type, seed=3)
    return load_model(file, device="cuda"), load_model(file, device="cuda", cold=[0, 2, 3])


def pinned(fmt: BlockFormat, rows: int, width: int, seed: int) -> tuple[PinnedWeight, np.ndarray]:
    data = file_rows(fmt, np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32))
    weight = allocate_pinned("w", fmt, (rows, width))
    for start in range(0, rows, 128):
        pack_rows_pinned(weight, start, cupy.asarray(data[start : start + 128]))
    cupy.cuda.get_current_stream().synchronize()
    return weight, data


@pytest.mark.parametrize("fmt", [Q4_K, Q6_K, Q8_0], ids=lambda fmt: fmt.name)
def test_the_host_has_the_bytes_of_the_device(fmt) -> None:
    weight, data = pinned(fmt, 5 * 128, 512, 1)
    there = pack("w", fmt, weight.shape, cupy.asarray(data))
    for plane in ("low", "high", "scales", "deltas"):
        if there.plane(plane) is not None:
            assert (there.plane(plane).get() == weight.plane(plane).get()).all(), plane
    assert (unpack(weight) == unpack(there)).all(), "kernels read it where it lies"


def test_grouped_products_read_the_host(path) -> None:
    """Of more tokens than trees of these models have, by bulk copies on Hopper."""
    weight, data = pinned(Q4_K, 6 * 128, 512, 5)
    there = pack("w", Q4_K, weight.shape, cupy.asarray(data))
    placed = grouped.place(cupy.asarray(np.random.default_rng(1).integers(0, 6, (300, 2)).astype(np.int32)), 6)
    rows = cupy.asarray(to_bf16(np.random.default_rng(2).standard_normal((placed.rows, 512))))
    found = []
    for held in (weight, there):
        y = grouped.multiply(rows, Stack(held, 128, 0, 128), placed)
        found.append(y.get()[placed.places.get()])
    assert (found[0] == found[1]).all()


def test_places_are_not_overwritten_while_they_are_read() -> None:
    """Slow readers of small layers: a copy that did not wait would be seen."""
    stacks = {layer: [pinned(Q8_0, 2048, 1024, layer)[0]] for layer in range(5)}
    ring = StackRing(stacks, list(stacks))
    want = [int(stacks[layer][0].data.astype(np.uint64).sum()) for layer in stacks]
    seen, delay = [], cupy.ones(1 << 26, np.float32)
    for layer in [*stacks] * 6:
        with ring.stacks_on_device(layer) as (weight,):
            for _ in range(8):
                delay = cupy.sin(delay)
            seen.append(weight.data.astype(np.uint64).sum())
    assert [int(value) for value in seen] == want * 6


@pytest.mark.parametrize("chunk", [None, 130])
def test_prompts(models, chunk, path) -> None:
    found = []
    for model in models:
        cache = model.new_cache(N)
        found.append(prefill(model, IDS[:N], np.arange(N), cache, chunk=chunk).get())
        cache.reset()
        found.append(prefill_layer_major(model, IDS[:N], np.arange(N), cache, chunk=130).get())
    assert (found[0] == found[2]).all()
    assert (found[1] == found[3]).all()


def test_tokens_in_graphs_and_their_choices(models, path) -> None:
    found = []
    for model in models:
        cache = model.new_cache(N + NEW)
        logits = prefill(model, IDS[:N], np.arange(N), cache)
        if model.cold is not None:
            model.cold.end_of_prompt()
        found.append(greedy(model, logits, N, cache, eos_ids=frozenset(), max_new_tokens=NEW))
    assert found[0] == found[1]
    cold, experts = models[1].cold, models[1].config.experts
    assert cold is not None
    assert experts is not None
    assert cold.choices().decoded == 3 * experts.used * (NEW - 1), "replays count too"


@pytest.mark.parametrize("nodes", [1, 16, 64])
def test_trees(models, nodes, path) -> None:
    found = []
    for model in models:
        cache = model.new_cache(N + 64)
        prefill(model, IDS[:N], np.arange(N), cache)
        reader = TreeReader(model, cache, most=64)
        found.append(reader.read_tree(IDS[N : N + nodes], np.arange(nodes) - 1, N + np.arange(nodes)).logits.get())
    assert (found[0] == found[1]).all()


def test_a_pair_within_a_budget_that_does_not_hold_the_target(tmp_path: Path) -> None:
    """The same answer as without a budget, within it, and what waits is told."""
    path = write_synthetic(tmp_path / "m.gguf", "tiny-qwen35moe", "q4_k_m", seed=3)
    whole = Pipeline.open(path, embedded("drafter"), device="cuda")
    prompt = Prompt.from_document("A line of words that say little. " * 400, "What is said?", whole.target.template)
    options = RunOptions(0.3, compress="always", max_new_tokens=8)
    want = whole.run(prompt, options).answer
    config, nbytes = whole.target.model.config, whole.target.model.nbytes
    del whole
    cupy.get_default_memory_pool().free_all_blocks()
    budget = work_bytes(config) + nbytes - 1
    tight = Pipeline.open(path, embedded("drafter"), device="cuda", vram=budget)
    assert tight.target.model.cold is not None
    try:
        for _ in range(3):
            got = tight.run(prompt, options).answer
            assert got.tokens == want.tokens
            assert got.trace.facts["residency"]["peak_bytes"] <= budget
            assert "wait in host memory" in got.trace.facts["experts"][0]
            assert got.trace.facts["expert_choices"]["decoded"] > 0
    finally:
        tight.within(None).run(prompt, options, full=False)  # the pool's limit goes
    assert load(path, device="cuda", room=1 << 40).model.cold is None
