"""A family from outside the package, as its page describes it, is loaded, run, inspected and written like any other."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from dry_walk import walked
from outside_family import FFN, HIDDEN, LAYERS, VOCAB, Variant, page_code, tern_logits, tern_tensors, write_tern

from sp.errors import ConfigError, ModelError
from sp.gguf import GGUFFile, GGUFWriter
from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.gguf.vocabulary import MERGED_PIECES, SENTENCEPIECE
from sp.models import (
    ARCHITECTURES,
    Architecture,
    Hooks,
    decode_step,
    load_model,
    prefill,
    prefill_layer_major,
    read_config,
    register_architecture,
)
from sp.models.layer.feed_forward import GatedMLP
from sp.models.layer.spec import LayerSpec
from sp.models.network.cost import matmul_params
from sp.models.run.tree import TreeReader
from sp.ops.matmul.project import project
from sp.planning.inspect import inspect_file
from sp.quant import F32

N = 150  # more than a page of the cache
TOLERANCE = 2e-5  # of the largest logit


@pytest.fixture(scope="module")
def prompt():
    """Ids, and positions with gaps."""
    rng = np.random.default_rng(4)
    return rng.integers(0, VOCAB, N), np.cumsum(rng.integers(1, 5, N))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(write_tern(tmp_path_factory.mktemp("tern") / "tern.gguf", tern_tensors()))


@pytest.fixture(scope="module")
def expected(prompt):
    return tern_logits(tern_tensors(), *prompt)


def all_logits(model, ids, positions) -> np.ndarray:
    x, cache = model.embed(ids), model.new_cache(len(ids), "f32")
    for layer in range(model.config.layers):
        x = model.layer(layer, x, positions, cache)
    return model.head(x)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def test_logits_of_every_token(model, prompt, expected) -> None:
    assert distance(all_logits(model, *prompt), expected) < TOLERANCE


@pytest.mark.parametrize("change", ["biased", "interleaved", "learned"])
def test_what_makes_the_family_matters(change, model, prompt) -> None:
    other = tern_logits(tern_tensors(), *prompt, replace(Variant(), **{change: False}))
    assert distance(all_logits(model, *prompt), other) > 1000 * TOLERANCE


@pytest.mark.parametrize("walk", [prefill, prefill_layer_major])
def test_prefill_then_decode(walk, model, prompt, expected) -> None:
    ids, positions = prompt
    cache, seen = model.new_cache(N, "f32"), []
    logits = walk(model, ids[:-3], positions[:-3], cache, chunk=40, hooks=Hooks(lambda *call: seen.append(call[0])))
    assert distance(logits, expected[-4]) < TOLERANCE
    assert set(seen) == set(range(LAYERS))
    for t in range(N - 3, N):
        logits = decode_step(model, int(ids[t]), int(positions[t]), cache)
        assert distance(logits, expected[t]) < TOLERANCE


def test_a_chain_of_guesses_in_one_pass(model, prompt, expected) -> None:
    ids, positions = prompt
    cache = model.new_cache(N, "f32")
    prefill(model, ids[:-6], positions[:-6], cache)
    found = TreeReader(model, cache, most=6).read_tree(ids[-6:], np.arange(6) - 1, positions[-6:])
    assert distance(found.logits, expected[-6:]) < TOLERANCE


def test_missing_and_unknown_tensors_are_named(tmp_path) -> None:
    tensors = tern_tensors()
    del tensors["blk.1.attn_k.bias"]
    path = write_tern(tmp_path / "m.gguf", tensors)
    with pytest.raises(ModelError, match=r"blk\.1\.attn_k\.bias is missing"):
        load_model(path)
    warnings = inspect_file(path)["warnings"]
    assert warnings[0] == "1 expected tensors are missing: blk.1.attn_k.bias"
    tensors = tern_tensors() | {"blk.1.attn_q_norm.weight": np.ones(64, np.float32)}
    with pytest.raises(ModelError, match=r"not part of tern, the first is blk\.1\.attn_q_norm\.weight"):
        load_model(write_tern(tmp_path / "m.gguf", tensors))


def test_a_whole_file_is_found_whole(tmp_path) -> None:
    warnings = inspect_file(write_tern(tmp_path / "m.gguf", tern_tensors()))["warnings"]
    assert not [warning for warning in warnings if "tensor" in warning or "architecture" in warning]


def test_the_cost_counts_its_matrices(model) -> None:
    heads = 4 * 64 * HIDDEN * 2 + 2 * 64 * HIDDEN * 2
    assert matmul_params(model.config, 1) == heads + 3 * HIDDEN * FFN


def test_the_page_writes_a_random_model(tmp_path) -> None:
    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        exec(page_code()[-1], {})
    finally:
        os.chdir(here)
    assert inspect_file(tmp_path / "tiny-tern.gguf")["warnings"] == []
    model = load_model(tmp_path / "tiny-tern.gguf")
    assert (model.config.rope.pairing, model.config.layers) == ("interleaved", 2)
    ids = np.arange(20)
    assert 0.1 < prefill(model, ids, ids, model.new_cache(20)).std() < 10


WALK = """
import sys
sys.path[:0] = sys.argv[1:3]
import dry_device
dry_device.install()
import numpy as np
import outside_family
from sp.kernels import forced_path
from sp.models import Hooks, load_model, prefill, prefill_layer_major
from sp.models.run.tree import TreeReader
from sp.quant import F32
model, ids = load_model(sys.argv[3], device="cuda"), np.arange(200)
for path in ("sm_90a", "portable"):
    with forced_path(path):
        for kv, rotate in (("f16", False), ("q4_0", True)):
            cache = model.new_cache(220, kv, rotate=rotate)
            dry_device.launches.clear()
            prefill(model, ids, ids, cache, chunk=100)
            assert dry_device.launches["add_bias"] == 2 * model.config.layers, dry_device.launches
            reader = TreeReader(model, cache, most=16)
            assert len(reader.read_tree(ids[:16], ids[:16] - 1, ids[:16] + 200).choices) == 16
            reader.commit_path(ids[:3])
            cache.reset()
            prefill_layer_major(model, ids, ids, cache, chunk=100, rows=40, hooks=Hooks(lambda *call: None))
"""


def test_every_launch_fits(tmp_path) -> None:
    path = write_tern(tmp_path / "tern.gguf", tern_tensors())
    walked(WALK, str(Path(__file__).parents[1]), str(path))


@dataclass(frozen=True)
class Shared:
    """Half of what each of two experts says; no `Block` knows of it."""

    experts: tuple[GatedMLP, GatedMLP]

    @classmethod
    def build(cls, store, index):
        first = GatedMLP.build(store, index)
        hidden, ffn, blk = store.config.hidden, store.config.ffn[index], f"blk.{index}."
        second = GatedMLP(
            store.matrix(f"{blk}ffn_gate_b.weight", (ffn, hidden)),
            store.matrix(f"{blk}ffn_up_b.weight", (ffn, hidden)),
            store.matrix(f"{blk}ffn_down_b.weight", (hidden, ffn)),
        )
        return cls((first, second))

    down = None

    def __call__(self, x, norm, reader):
        return sum(project(expert(x, norm, None), (expert.down,))[0] for expert in self.experts) / np.float32(2)


def test_another_feed_forward_needs_no_other_block(tmp_path, prompt, expected) -> None:
    """Two experts that are one and the same say what it alone would say."""
    tensors = tern_tensors()
    for i in range(LAYERS):
        for part in ("gate", "up", "down"):
            tensors[f"blk.{i}.ffn_{part}_b.weight"] = tensors[f"blk.{i}.ffn_{part}.weight"]
    tern = ARCHITECTURES["tern"]
    path = write_tern(tmp_path / "m.gguf", tensors)
    with pytest.raises(ModelError, match="9 tensors are not part of"):
        load_model(path)
    register_architecture(replace(tern, name="tern-shared", layer=replace(tern.layer, ffn=Shared.build)))
    model = load_model(renamed(path, tmp_path / "shared.gguf"))
    assert distance(all_logits(model, *prompt), expected) < TOLERANCE
    cache = model.new_cache(N, "f32")
    prefill(model, prompt[0][:-2], prompt[1][:-2], cache)
    found = TreeReader(model, cache, most=2).read_tree(prompt[0][-2:], np.array([-1, 0]), prompt[1][-2:])
    assert distance(found.logits, expected[-2:]) < TOLERANCE


def renamed(source: Path, target: Path) -> Path:
    """A file of tern as one of tern-shared, whose name is longer."""
    with GGUFFile.open(source) as file:
        tensors = {name: file.weight(name).dense().copy() for name in file.tensors}
        keys = {name.removeprefix("tern."): value for name, value in file.metadata.items() if name[:5] == "tern."}
    named = {f"tern-shared.{name}": value for name, value in keys.items()}
    writer = GGUFWriter(target, {"general.architecture": "tern-shared"} | named)
    for name, value in tensors.items():
        writer.add(name, value.shape, F32, F32.encode(value))
    return writer.write()


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ConfigError, match="architecture 'qwen3' is registered twice"):
        register_architecture(Architecture("qwen3", LayerSpec(), ("qwen2",)))


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_a_record_names_tokenizers_there_are(name) -> None:
    record = ARCHITECTURES[name]
    assert record.name == name
    assert record.tokenizers
    assert set(record.tokenizers) <= {*PRE_TOKENIZERS, SENTENCEPIECE, MERGED_PIECES}


def test_a_broken_file_is_sketched_not_believed(tmp_path) -> None:
    """What the metadata claim costs no more than the most blocks there are, whatever else makes no sense."""
    keys = {"block_count": (1 << 31) - 1, "attention__head_count": [1, 2], "embedding_length": "wide"}
    path = write_tern(tmp_path / "m.gguf", {"token_embd.weight": np.ones((4, 32), np.float32)}, **keys)
    warnings = inspect_file(path)["warnings"]
    assert warnings[0].startswith(f"{12 * 4096 + 1} expected tensors are missing: output_norm.weight, blk.0.attn_norm")
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match=r"tern\.block_count"):
        read_config(file)
