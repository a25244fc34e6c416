"""RandomStore: random weights in a real shape, made on the device, for timing without a file."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import device_errors, import_cupy
from sp.kernels.device import require_device
from sp.models.config import ModelConfig
from sp.models.device.parts import arrays_of
from sp.models.device.prequantized import prequantize
from sp.models.device.to_device import as_format, empty_matrix, empty_table, fill_rows, row_slices, with_cold
from sp.models.file.rope_keys import RopeScaling
from sp.models.file.weights import layer_of
from sp.models.layer.shard_spec import ShardSpec
from sp.models.network.arithmetic import (
    SAMPLED,
    arithmetic,
    attention_precision,
    check_precision,
    read_precision,
    with_precision,
)
from sp.models.network.model import Model
from sp.models.network.weights import ModelWeights
from sp.models.run.tensor_parallel import ShardModel
from sp.models.shards.shards import Shards
from sp.models.synthetic.shapes import Plan, find_shape
from sp.models.synthetic.synthetic import random_blocks, random_vector
from sp.parallel.group import ParallelGroup
from sp.quant import BlockFormat, Math
from sp.quant.repack import Repacked, count_repacked

POOL_BITS = 16  # Log2 of the distinct blocks drawn for each format and width; every matrix is a hash of their numbers
WHOLE = ShardSpec(0, 1)


def random_model(
    shape: str,
    file_type: str,
    seed: int = 0,
    rope: RopeScaling | None = None,
    cold: Sequence[int] = (),
    precision: str = Math.BF16,
    depth: int | None = None,
) -> Model:
    """A model of a named shape with random weights, on the current device.

    The weights have the formats and the spread of `write_synthetic`'s, but are drawn from few blocks, so that a large
    model takes a second. What it says is noise; what it costs is real. Experts of `cold` layers wait in host memory;
    products of a prompt are made in `precision`, and only `depth` layers are made, see `load_model`. ConfigError for an
    unknown shape or file type, or products that no kernel makes; DeviceError without a usable device or enough memory.
    """
    found, asked = find_shape(shape), read_precision(precision, "precision")
    require_device()
    check_precision(asked, "cuda")
    with device_errors():
        config = found.config if rope is None else rope.applied(found.config)
        store = RandomStore(config, found.plan(file_type), seed, cold)
        weights, reason = with_precision(store.weights(depth), asked, "cuda", store.sampled)
        weights, shared = with_cold(weights, cold)
        room = shared.ring.room if shared else 0
        weights, kept = prequantize(weights)
        made_in = arithmetic(weights, asked, reason, attention_precision(asked, "cuda", store.config.head_dim), kept)
        return Model(store.config, weights, "cuda", store.nbytes + room, store.repacked, shared, made_in)


class RandomStore:
    """Hands out random weights by name, packed on the device.

    Parameters
    ----------
    cold : sequence of int
        Layers whose experts are to lie in host memory.
    share : Share
        Of the model, what is handed out; by default all of it.

    Attributes
    ----------
    config : ModelConfig
        Of what is handed out.
    nbytes : int
        Bytes of the device handed out so far.
    """

    def __init__(
        self, config: ModelConfig, plan: Plan, seed: int = 0, cold: Sequence[int] = (), shard: ShardSpec = WHOLE
    ) -> None:
        self.config, self._cold = config if shard is WHOLE else shard.config(config), frozenset(cold)
        self._head = shard.vocabulary(config.vocab)
        self.nbytes = 0
        self._formats = {name: fmt for name, _, fmt in plan}
        self._rng = np.random.default_rng(seed)
        self._pools: dict[tuple[str, int], Any] = {}
        self._handed: list[tuple[BlockFormat, tuple[int, ...], bool]] = []

    @property
    def repacked(self) -> tuple[Repacked, ...]:
        """What was handed out so far in another format than the plan's."""
        return count_repacked(self._handed)

    def __contains__(self, name: str) -> bool:
        return name in self._formats

    def weights(self, depth: int | None = None) -> ModelWeights:
        """All weights, or those of `ModelWeights.build`; a head that is tied to the embedding is packed besides."""
        weights = ModelWeights.build(self, depth)
        if weights.output is not weights.embed:
            return weights
        table = weights.embed.data[self._head]
        return replace(weights, output=self.packed(weights.embed.name, (len(table), weights.embed.shape[1]), table))

    def matrix(self, name: str, shape: tuple[int, int]) -> Any:
        """A matrix, packed; the embedding table in the rows of a file, of the head what is asked for of it."""
        if name == "output.weight":
            return self.packed(name, (self._head.stop - self._head.start, shape[1]))
        if name != "token_embd.weight":
            return self.packed(name, shape)
        fmt = self._formats[name]
        table = empty_table(name, fmt, shape)
        for rows in row_slices(*table.data.shape):
            raw = self._rows(name, (rows.stop - rows.start, shape[1]), rows.start)
            table.data[rows] = as_format(raw, fmt, table.format)
        self._handed.append((fmt, shape, True))
        self.nbytes += table.nbytes
        return table

    def stack(self, name: str, shape: tuple[int, int, int]) -> Any:
        """Matrices of experts, packed one under the other."""
        return self.packed(name, (shape[0] * shape[1], shape[2]), pinned=layer_of(name) in self._cold)

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> list[Any]:
        """Matrices of as many rows, packed."""
        return [self.packed(name, (len(some), shape[1])) for some in rows]

    def packed(self, name: str, shape: tuple[int, ...], data: Any = None, *, pinned: bool = False) -> Any:
        """A packed matrix of random rows, or of those in `data`."""
        fmt = self._formats[name]
        made = empty_matrix(name, fmt, shape, pinned=pinned)
        for rows in row_slices(shape[0], fmt.row_bytes(shape[1])):
            raw = self._rows(name, (rows.stop - rows.start, int(shape[1])), rows.start) if data is None else data[rows]
            fill_rows(made, fmt, rows.start, raw)
        self._handed.append((fmt, shape, False))
        self.nbytes += sum(int(array.nbytes) for array in arrays_of(made))
        return made

    def sampled(self, weight: Any) -> Floats:
        """The first rows of a matrix, float32 on the host; all are alike."""
        rows = self._rows(weight.name, (min(SAMPLED, weight.shape[0]), int(weight.shape[1])), 0)
        return self._formats[weight.name].decode(rows.get())

    def vector(self, name: str, size: int) -> Floats:
        """A norm weight or bias."""
        return self._placed(random_vector(name, size, self._rng))

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Floats:
        """Convolution taps."""
        shape = shape if rows is None else (len(rows), shape[1])
        return self._placed(self._rng.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5))

    def _placed(self, values: Floats) -> Floats:
        placed: Floats = import_cupy().asarray(values)
        self.nbytes += int(placed.nbytes)
        return placed

    def _rows(self, name: str, shape: tuple[int, int], first: int) -> Any:
        """Rows as a file would hold them: blocks of the pool in a pseudo-random order."""
        cupy, fmt = import_cupy(), self._formats[name]
        key = fmt.name, shape[1]
        if key not in self._pools:
            blocks = random_blocks(self._rng, fmt, 1 << POOL_BITS, shape[1] ** -0.5)
            self._pools[key] = cupy.asarray(blocks.reshape(1 << POOL_BITS, fmt.block_bytes))
        count = shape[0] * shape[1] // fmt.block_size
        start = (zlib.crc32(name.encode()) + first) & 0xFFFFFFFF
        numbers = cupy.arange(count, dtype=np.uint32) + np.uint32(start)
        chosen = (numbers * np.uint32(2654435761)) >> np.uint32(32 - POOL_BITS)  # Knuth's multiplicative hash
        return self._pools[key][chosen].reshape(shape[0], fmt.row_bytes(shape[1]))


def random_shards(
    shape: str,
    file_type: str,
    group: ParallelGroup,
    precision: str = Math.BF16,
    seed: int = 0,
    rope: RopeScaling | None = None,
) -> Shards:
    """`sp.models.synthetic.random_store.random_model`, of which each GPU of a group holds its heads and columns. GPUs
    draw shares of their own, not those of one model: what it says is noise in any case. ConfigError, DeviceError: as
    `random_model` and `ShardSpec.config`."""
    found, asked = find_shape(shape), read_precision(precision, "precision")
    require_device()
    check_precision(asked, "cuda")
    config, models = found.config if rope is None else rope.applied(found.config), []
    for rank in range(group.size):
        shard = ShardSpec(rank, group.size)
        with group.device(rank), device_errors():
            store = RandomStore(config, found.plan(file_type), seed * group.size + rank, shard=shard)
            weights, reason = with_precision(store.weights(), asked, "cuda", store.sampled)
            weights, kept = prequantize(weights)
            made_in = arithmetic(weights, asked, reason, attention_precision(asked, "cuda", config.head_dim), kept)
            model = ShardModel(store.config, weights, "cuda", store.nbytes, store.repacked, made_in, shard, group)
        models.append(model)
    return Shards(group, config, tuple(models))
