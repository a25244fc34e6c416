"""All of a model of 27B against the same weights in float32 on the CPU: errors near what was measured.

Small models hide what many layers and wide sums add up to. The weights are those of a file of random blocks, no two of
them the same; the device unpacks them a layer at a time. Their values are float32, and the host's products are too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cupy
import numpy as np
import pytest
from bounds import within
from compare import nmse

from sp.models import Model, decode_step, load_model, stream_layer_major
from sp.models.network.weights import ModelWeights, map_leaves
from sp.models.run.tree import TreeReader
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.matmul.packed import unpack
from sp.quant import F32, Weight

pytestmark = pytest.mark.no_sanitizer  # far too much work
SHAPE, FILE_TYPE, TOKENS = "qwen3.6-27b", "q4_k_m", 48
MEMORY = Path("/dev/shm")
"""Where the file of 16.5 GB had best lie."""
VALUES = 1 << 29
"""Room for those of a layer."""


class HostBlocks:
    """Layers of a model on the device, each brought to the host when it is asked for and good until the next one is.

    They share one piece of pinned memory, which the device fills ten times as fast as any other.
    """

    def __init__(self, blocks: tuple[Any, ...]) -> None:
        self._blocks = blocks
        self._room = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * VALUES), np.float32, VALUES)
        self._at, self._used = -1, 0
        self._block: Any = None

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> Any:
        if index != self._at:
            self._at, self._used = index, 0
            self._block = map_leaves(self._blocks[index], self._brought)
        return self._block

    def _brought(self, leaf: Any) -> Any:
        values = leaf.astype(np.float32) if isinstance(leaf, cupy.ndarray) else unpack(leaf)
        to = self._room[self._used : self._used + values.size].reshape(values.shape)
        self._used += values.size
        values.get(out=to)
        return to if isinstance(leaf, cupy.ndarray) else dense(leaf.name, to)


def dense(name: str, values: np.ndarray) -> Weight:
    """A float32 weight that is a view of its values."""
    return Weight(name, F32, values.shape, values.view(np.uint8))


@cache
def models() -> tuple[Model, Model]:
    """On the device, and the same on the host."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        gpu = load_model(write_synthetic(Path(folder) / "large.gguf", SHAPE, FILE_TYPE), device="cuda")
    weights, table = gpu.weights, gpu.weights.embed
    embed = Weight(table.name, table.format, table.shape, table.data.get())
    output = dense(weights.output.name, unpack(weights.output).get())
    cupy.get_default_memory_pool().free_all_blocks()
    blocks: Any = HostBlocks(weights.blocks)
    return gpu, Model(gpu.config, ModelWeights(embed, blocks, weights.output_norm.get(), output), "cpu", 0)


def read(model: Model) -> np.ndarray:
    """The tokens."""
    return np.random.default_rng(0).integers(0, model.config.vocab, TOKENS)


def logits(model: Model, kv: str) -> Any:
    """Of every token."""
    store = model.new_cache(TOKENS, kv, rotate=kv == "q4_0")
    x = stream_layer_major(model, read(model), np.arange(TOKENS), store)
    return model.head(x)


@cache
def expected() -> np.ndarray:
    """In float32, its cache too."""
    return np.asarray(logits(models()[1], "f32"))


@pytest.fixture(scope="module", autouse=True)
def _memory_comes_back() -> Any:
    yield
    models.cache_clear()
    expected.cache_clear()
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("kv", ["f16", "q4_0"])
def test_logits_of_the_large_model(kv: str, path: str) -> None:
    found, want = logits(models()[0], kv), expected()
    close(f"27B {path} {kv}", found.get(), want)


@pytest.mark.parametrize("kv", ["f16", "q4_0"])
def test_logits_of_the_large_model_one_by_one(kv: str, path: str) -> None:
    """Products of one token round their inputs less than those of many."""
    model = models()[0]
    store = model.new_cache(TOKENS, kv, rotate=kv == "q4_0")
    found = [decode_step(model, int(token), at, store).get() for at, token in enumerate(read(model))]
    close(f"27B {path} {kv}, one by one", np.stack(found), expected())


@pytest.mark.parametrize("kv", ["f16", "q4_0"])
def test_logits_of_the_large_model_as_a_tree(kv: str, path: str) -> None:
    """A chain of guessed tokens, whose products keep 11 bits of their inputs on Hopper."""
    model, chain = models()[0], np.arange(TOKENS)
    store = model.new_cache(TOKENS, kv, rotate=kv == "q4_0")
    found = TreeReader(model, store, most=TOKENS).read_tree(read(model), chain - 1, chain)
    close(f"27B {path} {kv}, as a tree", found.logits.get(), expected())


def close(name: str, found: np.ndarray, want: np.ndarray) -> None:
    """Hold logits of all tokens to the bound of that name."""
    rows = np.sqrt([nmse(mine, its) for mine, its in zip(found, want, strict=True)])
    error = float(np.sqrt(nmse(found, want)))
    print(f"{name}: relative rms {error:.4f}, of a token {rows.min():.4f} to {rows.max():.4f}")
    within(name, error)
