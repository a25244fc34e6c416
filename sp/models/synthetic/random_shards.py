"""random_shards: random weights in a real shape, shared by several cards, for timing without a file."""

from __future__ import annotations

from sp.kernels import device_errors
from sp.kernels.device import require_device
from sp.models.device.kept import keep_rounded
from sp.models.file.asked_scaling import AskedScaling
from sp.models.layer.share import Share
from sp.models.network.arithmetic import arithmetic, attention_math, check_math, read_math, with_math
from sp.models.run.tensor_parallel import ShardModel
from sp.models.shards.shards import Shards
from sp.models.synthetic.random_store import RandomStore
from sp.models.synthetic.shapes import find_shape
from sp.parallel.group import Group
from sp.quant import Math


def random_shards(
    shape: str,
    file_type: str,
    group: Group,
    math: str = Math.BF16,
    seed: int = 0,
    rope: AskedScaling | None = None,
) -> Shards:
    """`sp.models.synthetic.random_store.random_model`, of which each card of a group holds its heads and columns.

    Cards draw shares of their own, not those of one model: what it says is noise in any case.

    Raises
    ------
    ConfigError, DeviceError
        As `random_model` and `Share.config`.
    """
    found, asked = find_shape(shape), read_math(math, "math")
    require_device()
    check_math(asked, "cuda")
    config, models = found.config if rope is None else rope.applied(found.config), []
    for rank in range(group.size):
        share = Share(rank, group.size)
        with group.at(rank), device_errors():
            store = RandomStore(config, found.plan(file_type), seed * group.size + rank, share=share)
            trunk, reason = with_math(store.trunk(), asked, "cuda", store.sampled)
            trunk, kept = keep_rounded(trunk)
            made_in = arithmetic(trunk, asked, reason, attention_math(asked, "cuda", config.head_dim), kept)
            model = ShardModel(store.config, trunk, "cuda", store.nbytes, store.repacked, made_in, share, group)
        models.append(model)
    return Shards(group, config, tuple(models))
