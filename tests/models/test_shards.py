"""A model that cards share, threads in their place, against the same model on one: logits, steps, trees, memory."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache as once
from pathlib import Path

import numpy as np
import pytest
from parity import fixture
from tiny_models import VOCAB, rewritten, write_tiny

from sp.decode.greedy import generate
from sp.errors import ConfigError, DeviceError, PromptError
from sp.gguf import GGUFFile
from sp.models import Model, decode_step, load_model, prefill, prefill_by_layer, prefill_sparse
from sp.models.architectures import base
from sp.models.passes.tree import LayerFeatures, TreeReader
from sp.models.shards.load_shards import load_shards
from sp.models.shards.shards import Shards
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.sparse.flashprefill import TopDensity
from sp.parallel.host import HostGroup
from sp.pipeline.load import embedded
from sp.quant import Q4_K, Q6_K, Q8_0, BlockFormat

ATTENTION = {"attention__head_count": 8, "attention__head_count_kv": 4}
DELTA = {"ssm__group_count": 4, "ssm__time_step_rank": 12, "ssm__inner_size": 192}  # three rounds of value heads
N = 131  # behind the border of a page
IDS = np.random.default_rng(0).integers(0, VOCAB, N + 20)
WHERE = np.cumsum(1 + (np.arange(N + 20) % 17 == 0))  # with gaps, as kept tokens have
PARENTS = np.array([-1, 0, 0, 1, 1, 2])
DEPTHS = np.array([0, 1, 1, 2, 2, 2])


@once
def file_of(folder: Path, arch: str, fmt: BlockFormat | None = None) -> Path:
    """A tiny file; in a format of blocks with sizes that four cards cut at their borders."""
    sizes: dict[str, object] = ATTENTION | (DELTA if arch == "qwen35" else {})
    if fmt is None:
        return write_tiny(folder / f"{arch}.gguf", arch, **sizes)
    sizes |= {"embedding_length": 256, "feed_forward_length": 4 * fmt.block_size, "attention__head_count": 16}
    if arch == "qwen35":
        sizes |= {"ssm__state_size": fmt.block_size, "ssm__inner_size": 12 * fmt.block_size, "block_count": 3}
    return write_tiny(folder / f"{arch}-{fmt.name}.gguf", arch, fmt=fmt, **sizes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("shards")


def read_all(model: Model, kv: str = "f32", rotate: bool = False, n: int = N) -> list[np.ndarray]:
    """What a prompt in chunks, steps, a tree, a kept path of it and a step behind that come to."""
    cache, seen = model.new_cache(n + 20, kv, rotate=rotate), []
    found = [prefill(model, IDS[:n], WHERE[:n], cache, chunk=50, after=LayerFeatures((0, 2), seen.append), rows=n)]
    found += [decode_step(model, int(IDS[n + i]), int(WHERE[n + i]), cache) for i in range(2)]
    reader = TreeReader(model, cache, (1, 2), most=8)
    tree = reader.read_tree(IDS[n + 2 : n + 8], PARENTS, WHERE[n + 2] + DEPTHS)
    assert (tree.choices == tree.logits.argmax(axis=1)).all()
    found += [*tree.logits, *seen, tree.features.copy()]
    reader.commit_path(np.array([0, 1, 4]))
    return [*found, decode_step(model, 7, int(WHERE[n + 2]) + 3, cache)]


def alike(shards: Shards, model: Model, close: float, **how: object) -> None:
    """All cards find the same bits, and what one finds that has the whole model."""
    want, (first, *others) = read_all(model, **how), shards.run(lambda part: read_all(part, **how))
    for other in others:
        assert all(np.array_equal(mine, its) for mine, its in zip(first, other, strict=True))
    assert len(first) == len(want)
    for mine, its in zip(first, want, strict=True):
        assert mine.shape == its.shape
        assert np.abs(mine - its).max() <= close * np.abs(its).max()


@pytest.mark.parametrize("cards", [1, 2, 4])
@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_prompts_steps_and_trees_are_those_of_one_card(arch, cards, folder) -> None:
    path = file_of(folder, arch)
    alike(load_shards(path, HostGroup(cards)), load_model(path), 2e-5)


def test_three_cards_round_a_little(tmp_path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "qwen3", attention__head_count_kv=3)
    alike(load_shards(path, HostGroup(3)), load_model(path), 2e-5)


@pytest.mark.parametrize("fmt", [Q8_0, Q4_K, Q6_K], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_packed_weights_are_cut_between_blocks(arch, fmt, folder) -> None:
    path = file_of(folder, arch, fmt)
    alike(load_shards(path, HostGroup(4), decode_budget=0), load_model(path, decode_budget=0), 2e-5, n=37)


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
        found.append(prefill_by_layer(model, IDS[:N], WHERE[:N], third, chunk=50))
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
    """Distance of two cards' logits from those of transformers, of the largest: of a prompt and of steps behind it."""
    expected, shards = np.load(fixture(name).with_suffix(".npz")), load_shards(path, HostGroup(2))
    ids, last = expected["ids"], int(expected["prompt"]) - 1

    def work(model: Model) -> np.ndarray:
        cache = model.new_cache(last + 1, "f32")
        rows = [prefill(model, ids[: last - 4], np.arange(last - 4), cache)]
        return np.array(rows + [decode_step(model, int(ids[i]), i, cache) for i in range(last - 4, last + 1)])

    want = expected["logits"][last - 5 : last + 1]
    return float(np.abs(shards.run(work)[1] - want).max() / np.abs(want).max())


@pytest.mark.parametrize("name", ["llama", "llama-3", "llama-yarn", "qwen2", "qwen3", "qwen35"])
def test_two_cards_say_what_transformers_says(name) -> None:
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
def test_a_card_holds_its_share(arch, folder) -> None:
    path = file_of(folder, arch, Q8_0)
    whole, shards = load_model(path, decode_budget=0), load_shards(path, HostGroup(4), decode_budget=0)
    table, sizes = whole.trunk.embed.nbytes, [model.nbytes for model in shards.models]
    norms = sum(norm.nbytes for norm, _ in whole.norms) + 6 * (2 * 64 + 256) * 4  # of heads and of recurrent layers
    assert max(sizes) - min(sizes) <= whole.trunk.output.nbytes / 16  # the last card has fewer rows of the head
    total = whole.nbytes + (table if whole.trunk.output is whole.trunk.embed else 0)
    assert total <= sum(sizes) <= total + 3 * (table + norms)
    caches = [model.new_cache(500) for model in (whole, *shards.models)]
    assert [cache.nbytes for cache in caches[1:]] == [caches[0].nbytes // 4] * 4


REFUSED = [
    (
        "qwen3",
        {"attention__head_count": 6},
        4,
        "4 cards cannot share 2 kv heads, 48 columns of feed-forward; 1 or 2 can",
    ),
    (
        "qwen35",
        ATTENTION,
        4,
        r"share 4 kv heads, 48 columns of feed-forward, 2 key heads of recurrent layers; 1 or 2 can",
    ),
    ("qwen3", ATTENTION | {"feed_forward_length": 50}, 4, "share 4 kv heads, 50 columns of feed-forward; 1 or 2 can"),
]


@pytest.mark.parametrize(("arch", "sizes", "cards", "text"), REFUSED)
def test_what_does_not_come_out_even_is_refused(arch, sizes, cards, text, tmp_path) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, **sizes)
    with pytest.raises(ConfigError, match=text) as found:
        load_shards(path, HostGroup(cards))
    assert "\n" not in str(found.value)


def test_blocks_experts_and_families_without_shares_are_refused(tmp_path, folder, monkeypatch) -> None:
    sizes = ATTENTION | {"embedding_length": 256, "feed_forward_length": 256}
    path = write_tiny(tmp_path / "m.gguf", "qwen3", fmt=Q4_K, **sizes)
    with pytest.raises(
        ConfigError, match=r"blk.0.ffn_down.weight: 256 columns in Q4_K have blocks of 256, which 2 cards"
    ):
        load_shards(path, HostGroup(2), decode_budget=0)
    path = write_synthetic(tmp_path / "experts.gguf", "tiny-qwen3moe", "q8_0")
    with pytest.raises(ConfigError, match="no mixtures of experts"):
        load_shards(path, HostGroup(2))

    class Other:
        """A feed-forward of somebody's own."""

    build = base.ARCHITECTURES["qwen3"]
    own = replace(build, block=lambda store, i: replace(build.block(store, i), ffn=Other()))
    monkeypatch.setitem(base._records, "qwen3", own)
    with pytest.raises(ConfigError, match="several cards cannot share Other, which has no method `cut`"):
        load_shards(file_of(folder, "qwen3"), HostGroup(2))


def test_one_that_fails_ends_all_and_the_model_still_works(folder) -> None:
    shards = load_shards(file_of(folder, "qwen3"), HostGroup(2))

    def fails(model: Model) -> None:
        cache = model.new_cache(N)
        prefill(model, IDS[:9], WHERE[:9], cache)
        if model is shards.models[1]:
            raise PromptError("enough")
        prefill(model, IDS[9:20], WHERE[9:20], cache)

    with pytest.raises(PromptError, match="card 1 of 2: enough"):
        shards.run(fails)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sp-card")]
    with pytest.raises(PromptError, match=r"card [01] of 2: token id 60 is outside the vocabulary"):
        shards.run(lambda model: prefill(model, np.array([60]), np.arange(1), model.new_cache(5)))
    with pytest.raises(ConfigError, match="runs with those of the others alone"):
        read_all(shards.models[0])
    assert len(shards.run(read_all)) == 2


def test_one_that_was_left_behind_disturbs_nobody(folder) -> None:
    group = HostGroup(2, wait_seconds=0.2, leave_seconds=0.2)
    shards, let_go = load_shards(file_of(folder, "qwen3"), group), threading.Event()

    def stays(model: Model) -> None:
        cache = model.new_cache(N)
        prefill(model, IDS[:9], WHERE[:9], cache)
        if model is shards.models[1]:
            let_go.wait()
        prefill(model, IDS[9:20], WHERE[9:20], cache)

    with pytest.raises(DeviceError, match="card 1 did not come"):
        shards.run(stays)
    (left,) = [thread for thread in threading.enumerate() if thread.name.startswith("sp-card")]
    group.wait_seconds = 5.0

    def again(model: Model) -> list[np.ndarray]:
        cache = model.new_cache(N)
        prefill(model, IDS[:9], WHERE[:9], cache)
        if model is shards.models[0]:
            let_go.set()
            left.join(5)
        return read_all(model)

    for found in shards.run(again):
        for mine, its in zip(found, read_all(load_model(file_of(folder, "qwen3"))), strict=True):
            np.testing.assert_allclose(mine, its, atol=2e-5 * np.abs(its).max())
    assert not left.is_alive()


def test_products_in_eight_bits(folder) -> None:
    path = file_of(folder, "qwen3", Q4_K)
    shards, model = load_shards(path, HostGroup(2), math="int8"), load_model(path, math="int8")
    assert shards.models[0].arithmetic.matrices == model.arithmetic.matrices
    found = shards.run(lambda part: prefill(part, IDS[:40], WHERE[:40], part.new_cache(50, "f32")))
    want = prefill(model, IDS[:40], WHERE[:40], model.new_cache(50, "f32"))
    assert np.abs(found[0] - want).max() <= 0.05 * np.abs(want).max()
