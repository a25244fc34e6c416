"""load_shards: a GGUF file as a model that several GPUs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sp.errors import ConfigError, unknown_name
from sp.gguf import GGUFFile
from sp.kernels import device_errors
from sp.models.device.load import config_with_overrides, read_weights
from sp.models.device.prequantized import prequantize
from sp.models.device.to_device import weights_to_device
from sp.models.file.rope_keys import RopeScaling
from sp.models.file.weights import WeightStore
from sp.models.layer.shard_spec import POST_NORMS_REFUSAL, Shardable, ShardSpec
from sp.models.network.arithmetic import arithmetic, attention_precision, read_precision, with_precision
from sp.models.network.model import Device
from sp.models.network.weights import ModelWeights, map_leaves
from sp.models.run.tensor_parallel import ShardModel
from sp.models.shards.shards import Shards
from sp.parallel.group import ParallelGroup
from sp.quant import Math


def load_shards(
    file: GGUFFile | str | Path,
    group: ParallelGroup,
    *,
    device: Device = "cpu",
    context: int | None = None,
    rope: RopeScaling | None = None,
    progress: Callable[[int], None] | None = None,
    precision: str = Math.BF16,
) -> Shards:
    """Build a model whose heads and columns are sharded over the GPUs of a group.

    The GPUs are filled one after the other, each with the whole embedding and all norms. Rows of a matrix are read
    directly from the file; columns, and rows of recurrent layers, are first gathered in host memory.

    Parameters
    ----------
    file, context, rope, precision
        See `load_model`.
    device : {"cpu", "cuda"}
        Device of the group's members: a `HostGroup` has no GPUs of its own.
    progress : callable, optional
        Called with the bytes of each piece that has reached a GPU.

    Raises
    ------
    ConfigError
        If heads, feed-forward or blocks of a format cannot be split over so many GPUs, or the family does not support
        it; and as `load_model`.
    GGUFError, ModelError, DeviceError
        As `load_model`.

    References
    ----------
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019.

    Examples
    --------
    >>> from sp.models import load_model
    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.loaded import embedded
    >>> shards = load_shards(embedded("target"), HostGroup(2))
    >>> shards.config.kv_heads, [model.config.kv_heads for model in shards.models]
    (2, [1, 1])
    """
    if not isinstance(file, GGUFFile):
        file = GGUFFile.open(file)
    config = config_with_overrides(file, context, rope)
    if device not in ("cpu", "cuda"):
        raise unknown_name("device", device, ("cpu", "cuda"))
    requested = read_precision(precision, "precision")
    shard_specs = [ShardSpec(rank, group.size) for rank in range(group.size)]
    shard_specs[0].config(config)  # refuses before anything is read
    whole = read_weights(WeightStore(file, config))
    models = []
    for shard in shard_specs:
        with group.device(shard.rank):
            weights, reason = with_precision(shard_weights(whole, shard), requested, device)
            attention, prequantized_bytes = attention_precision(requested, device, config), 0
            description = arithmetic(weights, requested, reason, attention)
            if device == "cuda":
                weights, nbytes, again, _ = weights_to_device(weights, file, progress)
                with device_errors():
                    weights, prequantized_bytes = prequantize(weights)
            else:
                nbytes, again = held_bytes(weights), ()
            description = replace(description, kept=prequantized_bytes)
            models.append(ShardModel(shard.config(config), weights, device, nbytes, again, description, shard, group))
    return Shards(group, config, tuple(models))


def shard_weights(weights: ModelWeights, shard: ShardSpec) -> ModelWeights:
    """Return one GPU's shard of the weights of a file."""
    assert weights.output is not None, "GPUs share whole models"
    rows = shard.vocabulary(weights.output.shape[0])
    output = replace(
        weights.output, shape=(rows.stop - rows.start, *weights.output.shape[1:]), data=weights.output.data[rows]
    )
    if any(block.spec.post_norms for block in weights.blocks):
        raise ConfigError(POST_NORMS_REFUSAL)
    blocks = tuple(
        replace(block, mixer=_sharded(block.mixer, shard), ffn=_sharded(block.ffn, shard)) for block in weights.blocks
    )
    return replace(weights, blocks=blocks, output=output)


def held_bytes(weights: ModelWeights) -> int:
    """Return the bytes of weights and vectors as stored; tied weights count twice."""
    sizes: list[int] = []
    map_leaves(weights, lambda leaf: sizes.append(int(leaf.nbytes)) or leaf)  # type: ignore[func-returns-value]
    return sum(sizes)


def _sharded(sublayer: Any, shard: ShardSpec) -> Any:
    if not isinstance(sublayer, Shardable):
        raise ConfigError(
            f"several GPUs cannot share {type(sublayer).__name__}, which has no method `shard`; use one GPU"
        )
    return sublayer.shard(shard)
