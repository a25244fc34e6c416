"""load_model: a GGUF file as a model ready to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sp.errors import ConfigError, unknown_name
from sp.gguf import GGUFFile
from sp.kernels import device_errors
from sp.keywords import names_keywords
from sp.models.config import ModelConfig
from sp.models.device.kept import keep_rounded
from sp.models.device.to_device import trunk_to_device
from sp.models.families.base import find_architecture, read_config
from sp.models.file.rope_keys import AskedScaling
from sp.models.file.weights import WeightStore
from sp.models.network.arithmetic import arithmetic, attention_precision, read_precision, with_precision
from sp.models.network.model import Device, Model
from sp.models.network.trunk import Trunk
from sp.quant import Math


@names_keywords
def load_model(
    file: GGUFFile | str | Path,
    *,
    device: Device = "cpu",
    context: int | None = None,
    rope: AskedScaling | None = None,
    progress: Callable[[int], None] | None = None,
    cold: Sequence[int] = (),
    precision: str = Math.BF16,
    depth: int | None = None,
) -> Model:
    """Build a model from a GGUF file of a known architecture.

    Parameters
    ----------
    file : GGUFFile or path
        On the CPU weights are views of the open file, so a `GGUFFile` passed in must stay open.
    device : {"cpu", "cuda"}
        Where it runs. On the device weights lie in the order its kernels read (see `sp.ops.matmul.packed`), and the
        file may be closed afterwards.
    context : int, optional
        Longest prompt to allow, in place of what the file and `rope` say; RoPE is extrapolated past that.
    rope : AskedScaling, optional
        In place of the file's own scaling.
    progress : callable, optional
        Called with the bytes of each piece that has reached the device; ``file.nbytes`` in all, nearly.
    cold : sequence of int
        On the device: layers whose experts wait in pinned memory of the host; see
        `sp.planning.memory.cold_layers`.
    precision : {"bf16", "int8", "fp8", "auto"}
        Of matrix products in prefill; see `sp.models.network.arithmetic.with_precision`, and for what is kept on the
        device for it `sp.models.device.to_device`.
    depth : int, optional
        Load only so many layers, and no head, for whoever reads no further; the configuration stays that of the file.

    Raises
    ------
    GGUFError
        When the file cannot be read or uses an unsupported tensor type.
    ModelError
        When its metadata and tensors do not describe a supported model.
    DeviceError
        When there is no usable device, or too little memory on it.
    ConfigError
        Kernels of the device make no products in `precision`, or the file has fewer layers than `depth`.
    """
    if not isinstance(file, GGUFFile):
        file = GGUFFile.open(file)
    config = asked_config(file, context, rope)
    if device not in ("cpu", "cuda"):
        raise unknown_name("device", device, ("cpu", "cuda"))
    asked = read_precision(precision, "precision")
    if depth is not None and not 1 <= depth <= config.layers:
        raise ConfigError(f"depth is {depth}; the model has layers 1 to {config.layers}")
    store = WeightStore(file, config, depth)
    trunk, reason = with_precision(taken_trunk(store), asked, device)
    attention = attention_precision(asked, device, config.head_dim)
    if device == "cpu":
        return Model(config, trunk, device, store.nbytes, arithmetic=arithmetic(trunk, asked, reason, attention))
    trunk, nbytes, repacked, shared = trunk_to_device(trunk, file, progress, cold)
    with device_errors():
        trunk, kept = keep_rounded(trunk)
    return Model(config, trunk, device, nbytes, repacked, shared, arithmetic(trunk, asked, reason, attention, kept))


def asked_config(file: GGUFFile, context: int | None, rope: AskedScaling | None) -> ModelConfig:
    """The configuration of a file with what `load_model` is asked for instead."""
    config = read_config(file)
    if rope is not None:
        config = rope.applied(config)
    if context is not None:
        if context < 1:
            raise ConfigError(f"context is {context}; it must be at least 1")
        config = replace(config, context=context)
    return config


def taken_trunk(store: WeightStore) -> Trunk:
    """All weights of a store's file, to its depth; ModelError for one that holds others besides."""
    trunk = Trunk.take(store, store.depth)
    store.finish(find_architecture(store.config.architecture).config_tensors)
    return trunk
