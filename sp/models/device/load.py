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
from sp.models.device.prequantized import prequantize
from sp.models.device.to_device import weights_to_device
from sp.models.families.base import find_architecture, read_config
from sp.models.file.rope_keys import RopeScaling
from sp.models.file.weights import WeightStore
from sp.models.network.arithmetic import arithmetic, attention_precision, read_precision, with_precision
from sp.models.network.model import Device, Model
from sp.models.network.weights import ModelWeights
from sp.quant import Math


@names_keywords
def load_model(
    file: GGUFFile | str | Path,
    *,
    device: Device = "cpu",
    context: int | None = None,
    rope: RopeScaling | None = None,
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
        Where it runs. On the device weights are stored in the order that its kernels read (see `sp.ops.matmul.packed`),
        and the file may be closed afterwards.
    context : int, optional
        Longest prompt to allow, instead of what the file and `rope` say; RoPE is extrapolated beyond that.
    rope : RopeScaling, optional
        Replaces the file's own scaling.
    progress : callable, optional
        Called with the bytes of each piece that has reached the device; approximately ``file.nbytes`` in total.
    cold : sequence of int
        On the device: layers whose experts wait in pinned host memory; see `sp.planning.memory.cold_layers`.
    precision : {"bf16", "int8", "fp8", "auto"}
        Precision of the products of a prompt; see `sp.models.network.arithmetic.with_precision`, and
        `sp.models.device.prequantized` for the weights that stay quantised on the device.
    depth : int, optional
        Load only so many layers, and no head, for callers that read no further; the configuration stays that of the
        file.

    Raises
    ------
    GGUFError
        If the file cannot be read or uses an unsupported tensor type.
    ModelError
        If its metadata and tensors do not describe a supported model.
    DeviceError
        If there is no usable device, or too little memory on it.
    ConfigError
        If no kernel of the device makes products in `precision`, or if the file has fewer layers than `depth`.
    """
    if not isinstance(file, GGUFFile):
        file = GGUFFile.open(file)
    config = config_with_overrides(file, context, rope)
    if device not in ("cpu", "cuda"):
        raise unknown_name("device", device, ("cpu", "cuda"))
    # Everything that can be refused is checked before a weight is read.
    requested = read_precision(precision, "precision")
    if depth is not None and not 1 <= depth <= config.layers:
        raise ConfigError(f"depth is {depth}; the model has layers 1 to {config.layers}")
    store = WeightStore(file, config, depth)
    # The marks stay with the weights when these move to the device.
    weights, reason = with_precision(read_weights(store), requested, device)
    attention = attention_precision(requested, device, config)
    if device == "cpu":
        return Model(
            config, weights, device, store.nbytes, arithmetic=arithmetic(weights, requested, reason, attention)
        )
    weights, nbytes, repacked, shared = weights_to_device(weights, file, progress, cold)
    with device_errors():
        weights, prequantized_bytes = prequantize(weights)
    return Model(
        config,
        weights,
        device,
        nbytes,
        repacked,
        shared,
        arithmetic(weights, requested, reason, attention, prequantized_bytes),
    )


def config_with_overrides(file: GGUFFile, context: int | None, rope: RopeScaling | None) -> ModelConfig:
    """Return the configuration of a file with the overrides of `load_model`."""
    config = read_config(file)
    if rope is not None:
        config = rope.applied(config)
    if context is not None:
        if context < 1:
            raise ConfigError(f"context is {context}; it must be at least 1")
        config = replace(config, context=context)
    return config


def read_weights(store: WeightStore) -> ModelWeights:
    """Take all weights of a store's file, to its depth; ModelError if the file holds tensors that no layer uses."""
    weights = ModelWeights.build(store, store.depth)
    store.finish(find_architecture(store.config.architecture).config_tensors)
    return weights
