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

POOL_BITS = 16  # log2 of the distinct blocks drawn per format and width; matrices pick blocks by a hash
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
    """Create a model of a named shape with random weights, on the current device.

    The weights have the formats and the distribution of `write_synthetic`, but are drawn from few blocks, so that a
    large model takes a second. Its outputs are noise; its costs are real. Experts of `cold` layers wait in host memory;
    products of a prompt use `precision`, and only `depth` layers are made, see `load_model`. ConfigError for an unknown
    shape or file type, or a precision that no kernel supports; DeviceError without a usable device or enough memory.
    """
    model_shape, requested = find_shape(shape), read_precision(precision, "precision")
    require_device()
    check_precision(requested, "cuda")
    with device_errors():
        config = model_shape.config if rope is None else rope.applied(model_shape.config)
        store = RandomStore(config, model_shape.plan(file_type), seed, cold)
        weights, reason = with_precision(store.weights(depth), requested, "cuda", store.sampled)
        weights, shared = with_cold(weights, cold)
        room = shared.ring.room if shared else 0
        weights, prequantized_bytes = prequantize(weights)
        description = arithmetic(
            weights,
            requested,
            reason,
            attention_precision(requested, "cuda", store.config),
            prequantized_bytes,
        )
        return Model(store.config, weights, "cuda", store.nbytes + room, store.repacked, shared, description)


class RandomStore:
    """Hands out random weights by name, packed on the device.

    Parameters
    ----------
    cold : sequence of int
        Layers whose experts are to be in host memory.
    shard : ShardSpec
        Shard of the model to hand out; by default the whole model.

    Attributes
    ----------
    config : ModelConfig
        Configuration of what is handed out.
    nbytes : int
        Bytes on the device handed out so far.
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
        """Weights handed out so far in another format than the plan's."""
        return count_repacked(self._handed)

    def __contains__(self, name: str) -> bool:
        return name in self._formats

    def weights(self, depth: int | None = None) -> ModelWeights:
        """Return all weights, as `ModelWeights.build`; a head that is tied to the embedding is packed separately."""
        weights = ModelWeights.build(self, depth)
        # The device stores a tied embedding twice: as a table, and packed as the head.
        if weights.output is not weights.embed:
            return weights
        table = weights.embed.data[self._head]
        return replace(weights, output=self.packed(weights.embed.name, (len(table), weights.embed.shape[1]), table))

    def matrix(self, name: str, shape: tuple[int, int]) -> Any:
        """Return a packed matrix; the embedding table keeps the rows of a file, and of the head only this shard is
        returned."""
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
        """Return the matrices of experts, packed one below the other."""
        return self.packed(name, (shape[0] * shape[1], shape[2]), pinned=layer_of(name) in self._cold)

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> list[Any]:
        """Return matrices with as many rows, packed."""
        return [self.packed(name, (len(indices), shape[1])) for indices in rows]

    def packed(self, name: str, shape: tuple[int, ...], data: Any = None, *, pinned: bool = False) -> Any:
        """Return a packed matrix of random rows, or of the rows in `data`."""
        fmt = self._formats[name]
        matrix = empty_matrix(name, fmt, shape, pinned=pinned)
        for rows in row_slices(shape[0], fmt.row_bytes(shape[1])):
            raw = self._rows(name, (rows.stop - rows.start, int(shape[1])), rows.start) if data is None else data[rows]
            fill_rows(matrix, fmt, rows.start, raw)
        self._handed.append((fmt, shape, False))
        self.nbytes += sum(int(array.nbytes) for array in arrays_of(matrix))
        return matrix

    def sampled(self, weight: Any) -> Floats:
        """Return the first rows of a matrix, float32 on the host; all rows have the same distribution."""
        rows = self._rows(weight.name, (min(SAMPLED, weight.shape[0]), int(weight.shape[1])), 0)
        return self._formats[weight.name].decode(rows.get())

    def vector(self, name: str, size: int) -> Floats:
        """Return a norm weight or bias."""
        return self._placed(random_vector(name, size, self._rng))

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Floats:
        """Return convolution taps."""
        shape = shape if rows is None else (len(rows), shape[1])
        return self._placed(self._rng.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5))

    def _placed(self, values: Floats) -> Floats:
        placed: Floats = import_cupy().asarray(values)
        self.nbytes += int(placed.nbytes)
        return placed

    def _rows(self, name: str, shape: tuple[int, int], first: int) -> Any:
        """Return rows as a file would store them: blocks of the pool in pseudo-random order."""
        cupy, fmt = import_cupy(), self._formats[name]
        key = fmt.name, shape[1]
        if key not in self._pools:
            blocks = random_blocks(self._rng, fmt, 1 << POOL_BITS, shape[1] ** -0.5)
            self._pools[key] = cupy.asarray(blocks.reshape(1 << POOL_BITS, fmt.block_bytes))
        count = shape[0] * shape[1] // fmt.block_size
        # Blocks depend on name and row only, so that a matrix can be made in pieces.
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
    """Create a `random_model` whose heads and columns are sharded over the GPUs of a group. GPUs draw shards of their
    own, not those of one model: the outputs are noise in any case. ConfigError, DeviceError: as `random_model` and
    `ShardSpec.config`."""
    model_shape, requested = find_shape(shape), read_precision(precision, "precision")
    require_device()
    check_precision(requested, "cuda")
    config, models = model_shape.config if rope is None else rope.applied(model_shape.config), []
    for rank in range(group.size):
        shard = ShardSpec(rank, group.size)
        with group.device(rank), device_errors():
            store = RandomStore(config, model_shape.plan(file_type), seed * group.size + rank, shard=shard)
            weights, reason = with_precision(store.weights(), requested, "cuda", store.sampled)
            weights, prequantized_bytes = prequantize(weights)
            description = arithmetic(
                weights, requested, reason, attention_precision(requested, "cuda", config), prequantized_bytes
            )
            model = ShardModel(store.config, weights, "cuda", store.nbytes, store.repacked, description, shard, group)
        models.append(model)
    return Shards(group, config, tuple(models))
