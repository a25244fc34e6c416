"""load_shards: a GGUF file as a model that several cards share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sp.errors import ConfigError, unknown_name
from sp.gguf import GGUFFile
from sp.kernels import device_errors
from sp.models.device.kept import keep_rounded
from sp.models.device.load import asked_config, taken_trunk
from sp.models.device.to_device import trunk_to_device
from sp.models.file.rope_keys import AskedScaling
from sp.models.file.weights import WeightStore
from sp.models.layer.share import BEHIND, Share, Shareable
from sp.models.network.arithmetic import arithmetic, attention_precision, read_precision, with_precision
from sp.models.network.model import Device
from sp.models.network.trunk import Trunk, mapped
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
    rope: AskedScaling | None = None,
    progress: Callable[[int], None] | None = None,
    precision: str = Math.BF16,
) -> Shards:
    """Build a model of which each card of a group holds its heads and columns.

    The cards are filled one after the other, each with all of the embedding and of the norms. Rows of a matrix are read
    from the file as they lie; columns, and rows of recurrent layers, are first copied together in host memory.

    Parameters
    ----------
    file, context, rope, precision
        See `load_model`.
    device : {"cpu", "cuda"}
        Where the cards are: a `HostGroup` has none of its own.
    progress : callable, optional
        Called with the bytes of each piece that has reached a card.

    Raises
    ------
    ConfigError
        When heads, feed-forward or blocks of a format cannot be shared by so many, or the family is not made for it;
        and as `load_model`.
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
    config = asked_config(file, context, rope)
    if device not in ("cpu", "cuda"):
        raise unknown_name("device", device, ("cpu", "cuda"))
    asked = read_precision(precision, "precision")
    shares = [Share(rank, group.size) for rank in range(group.size)]
    shares[0].config(config)  # refuses before anything is read
    whole = taken_trunk(WeightStore(file, config))
    models = []
    for share in shares:
        with group.device(share.rank):
            trunk, reason = with_precision(cut(whole, share), asked, device)
            attention, kept = attention_precision(asked, device, config.head_dim), 0
            made_in = arithmetic(trunk, asked, reason, attention)
            if device == "cuda":
                trunk, nbytes, again, _ = trunk_to_device(trunk, file, progress)
                with device_errors():
                    trunk, kept = keep_rounded(trunk)
            else:
                nbytes, again = held_bytes(trunk), ()
            made_in = replace(made_in, kept=kept)
            models.append(ShardModel(share.config(config), trunk, device, nbytes, again, made_in, share, group))
    return Shards(group, config, tuple(models))


def cut(trunk: Trunk, share: Share) -> Trunk:
    """What one card holds of the weights of a file."""
    assert trunk.output is not None, "cards share whole models"
    rows = share.vocabulary(trunk.output.shape[0])
    output = replace(
        trunk.output, shape=(rows.stop - rows.start, *trunk.output.shape[1:]), data=trunk.output.data[rows]
    )
    if any(block.spec.behind for block in trunk.blocks):
        raise ConfigError(BEHIND)
    blocks = tuple(
        replace(block, mixer=_half(block.mixer, share), ffn=_half(block.ffn, share)) for block in trunk.blocks
    )
    return replace(trunk, blocks=blocks, output=output)


def held_bytes(trunk: Trunk) -> int:
    """Bytes of weights and vectors as they are held; of what is tied, twice."""
    sizes: list[int] = []
    mapped(trunk, lambda leaf: sizes.append(int(leaf.nbytes)) or leaf)  # type: ignore[func-returns-value]
    return sum(sizes)


def _half(half: Any, share: Share) -> Any:
    if not isinstance(half, Shareable):
        raise ConfigError(f"several cards cannot share {type(half).__name__}, which has no method `cut`; use one card")
    return half.cut(share)
