"""A model that GPUs share, threads in their place, against the same model on one: logits, steps, trees, memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parity import fixture
from shared_models import IDS, WHERE, N, file_of, read_all
from tiny_models import rewritten, write_tiny

from sp.decode.base import generate
from sp.gguf import GGUFFile
from sp.models import (
    Model,
    Shards,
    decode_step,
    load_model,
    load_shards,
    prefill,
    prefill_layer_major,
    prefill_sparse,
)
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.sparse.flashprefill import TopDensity
from sp.parallel.host import HostGroup
from sp.quant import Q4_K, Q6_K, Q8_0
from sp.session.loaded import embedded

MIXTURES = ["qwen3moe", "qwen3moe-plain", "qwen35moe", "qwen3next"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("shards")


def alike(shards: Shards, model: Model, close: float, **how: object) -> None:
    """All GPUs find the same bits, and what one finds that has the whole model."""
    want, (first, *others) = read_all(model, **how), shards.run(lambda part: read_all(part, **how))
    for other in others:
        assert all(np.array_equal(mine, its) for mine, its in zip(first, other, strict=True))
    assert len(first) == len(want)
    for mine, its in zip(first, want, strict=True):
        assert mine.shape == its.shape
        assert np.abs(mine - its).max() <= close * np.abs(its).max()


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_prompts_steps_and_trees_are_those_of_one_gpu(arch, gpus, folder) -> None:
    path = file_of(folder, arch)
    alike(load_shards(path, HostGroup(gpus)), load_model(path), 2e-5)


def test_three_gpus_round_a_little(tmp_path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "qwen3", attention__head_count_kv=3)
    alike(load_shards(path, HostGroup(3)), load_model(path), 2e-5)


@pytest.mark.parametrize("fmt", [Q8_0, Q4_K, Q6_K], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_packed_weights_are_cut_between_blocks(arch, fmt, folder) -> None:
    path = file_of(folder, arch, fmt)
    alike(load_shards(path, HostGroup(4)), load_model(path), 2e-5, n=37)


@pytest.mark.parametrize("n", [1, 5, 128])
def test_lengths_of_all_kinds(n, folder) -> None:
    path = file_of(folder, "qwen35")
    alike(load_shards(path, HostGroup(2)), load_model(path), 2e-5, n=n)


@pytest.mark.parametrize(("kv", "rotate"), [("f16", False), ("f16", True), ("q4_0", True)])
def test_caches_of_all_kinds(kv, rotate, folder) -> None:
    path = file_of(folder, "qwen3")
    # A value at a border of the format falls to either side of it.
    alike(load_shards(path, HostGroup(2)), load_model(path), 5e-2 if kv == "q4_0" else 2e-3, kv=kv, rotate=rotate)


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_several_caches_layer_by_layer_and_sparsely(arch, folder) -> None:
    path = file_of(folder, arch)

    def work(model: Model) -> list[np.ndarray]:
        one, other, third = (model.new_cache(N, "f32") for _ in range(3))
        prefill(model, IDS[:50], WHERE[:50], one)
        prefill(model, IDS[20:40], WHERE[:20], other)
        found = [prefill(model, IDS[50:N], WHERE[50:N], one), decode_step(model, 3, int(WHERE[20]), other)]
        found.append(prefill_layer_major(model, IDS[:N], WHERE[:N], third, chunk=50))
        third.reset()
        found.append(prefill_sparse(model, IDS[:N], WHERE[:N], third, TopDensity(0.9), chunk=100)[0])
        third.reset()
        found.append(prefill(model, IDS[:N], WHERE[:N], third, gaps="decay"))
        return found

    want, (first, second) = work(load_model(path)), load_shards(path, HostGroup(2)).run(work)
    for mine, its, expected in zip(first, second, want, strict=True):
        assert np.array_equal(mine, its)
        np.testing.assert_allclose(mine, expected, atol=2e-5 * np.abs(expected).max())


def test_the_embedded_target_says_the_same(folder) -> None:
    path, prompt = embedded("target"), np.arange(40, 240)

    def answer(model: Model) -> list[int]:
        cache = model.new_cache(300)
        logits = prefill(model, prompt, np.arange(200), cache)
        return list(generate(model, logits, 200, cache, limit=12))

    assert load_shards(path, HostGroup(2)).run(answer) == [answer(load_model(path))] * 2


def transformers_apart(path: Path, name: str) -> float:
    """Distance of two GPUs' logits from those of transformers, of the largest: of a prompt and of steps behind it."""
    expected, shards = np.load(fixture(name).with_suffix(".npz")), load_shards(path, HostGroup(2))
    ids, last = expected["ids"], int(expected["prompt"]) - 1

    def work(model: Model) -> np.ndarray:
        cache = model.new_cache(last + 1, "f32")
        rows = [prefill(model, ids[: last - 4], np.arange(last - 4), cache)]
        return np.array(rows + [decode_step(model, int(ids[i]), i, cache) for i in range(last - 4, last + 1)])

    want = expected["logits"][last - 5 : last + 1]
    return float(np.abs(shards.run(work)[1] - want).max() / np.abs(want).max())


@pytest.mark.parametrize(
    "name", ["llama", "llama-3", "llama-yarn", "mistral3", "qwen2", "qwen3", "qwen35", "gpt-oss", *MIXTURES]
)
def test_two_gpus_say_what_transformers_says(name) -> None:
    assert transformers_apart(fixture(name), name) < 1e-4


def test_a_fused_matrix_is_cut_in_three(tmp_path) -> None:
    changes: dict[str, np.ndarray | None] = {}
    with GGUFFile.open(fixture("qwen3")) as file:
        for index in range(2):
            parts = [f"blk.{index}.attn_{part}.weight" for part in "qkv"]
            changes |= dict.fromkeys(parts)
            changes[f"blk.{index}.attn_qkv.weight"] = np.concatenate([file.weight(part).dense() for part in parts])
    assert transformers_apart(rewritten(fixture("qwen3"), tmp_path / "fused.gguf", changes), "qwen3") < 1e-4


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_a_gpu_holds_its_share(arch, folder) -> None:
    path = file_of(folder, arch, Q8_0)
    whole, shards = load_model(path), load_shards(path, HostGroup(4))
    table, sizes = whole.weights.embed.nbytes, [model.nbytes for model in shards.models]
    norms = (
        sum(norm.nbytes for block in whole.weights.blocks for norm in (block.attn_norm, block.ffn_norm))
        + 6 * (2 * 64 + 256) * 4
    )  # of heads and of recurrent layers
    assert max(sizes) - min(sizes) <= whole.weights.output.nbytes / 16  # the last GPU has fewer rows of the head
    total = whole.nbytes + (table if whole.weights.output is whole.weights.embed else 0)
    assert total <= sum(sizes) <= total + 3 * (table + norms)
    caches = [model.new_cache(500) for model in (whole, *shards.models)]
    assert [cache.nbytes for cache in caches[1:]] == [caches[0].nbytes // 4] * 4


@pytest.mark.parametrize("shape", ["tiny-qwen3moe", "tiny-qwen35moe", "tiny-gpt-oss"])
def test_experts_are_cut_between_blocks(shape, tmp_path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", shape, "q8_0")
    ids = np.arange(90)

    def work(model: Model) -> np.ndarray:
        cache = model.new_cache(100, "f32")
        rows = [prefill(model, ids, ids, cache, chunk=40)]
        return np.array(rows + [decode_step(model, 7 * i, 90 + i, cache) for i in range(3)])

    whole, shards = load_model(path), load_shards(path, HostGroup(2))
    want, (first, second) = work(whole), shards.run(work)
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, want, atol=2e-5 * np.abs(want).max())
    assert sum(model.nbytes for model in shards.models) < 1.25 * whole.nbytes


def test_products_in_eight_bits(folder) -> None:
    path = file_of(folder, "qwen3", Q4_K)
    shards, model = load_shards(path, HostGroup(2), precision="int8"), load_model(path, precision="int8")
    assert shards.models[0].arithmetic.matrices == model.arithmetic.matrices
    found = shards.run(lambda part: prefill(part, IDS[:40], WHERE[:40], part.new_cache(50, "f32")))
    want = prefill(model, IDS[:40], WHERE[:40], model.new_cache(50, "f32"))
    assert np.abs(found[0] - want).max() <= 0.05 * np.abs(want).max()
