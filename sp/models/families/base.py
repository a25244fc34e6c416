"""Architecture: everything specific to one family, in one record; and the registry of records by GGUF name.

A family is a file of this folder, or of anywhere else, that creates a record and registers it. Everything else is
derived from it: lists of tensors come from building a block with a store that only records names
(`sp.models.file.weights`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sp.arrays import Floats
from sp.errors import ConfigError, ModelError, unknown_name
from sp.gguf import GGUFFile, Value
from sp.models.config import ModelConfig
from sp.models.families.shared import shared_config, shared_metadata
from sp.models.file.metadata_keys import Keys
from sp.models.file.refusals import refuse_changed, refuse_prediction, unsupported
from sp.models.file.weights import TensorFile, WeightSource
from sp.models.layer.block import Block
from sp.models.layer.shard_spec import POST_NORMS_REFUSAL, ShardSpec
from sp.models.layer.spec import LayerSpec


@dataclass(frozen=True)
class Architecture:
    """A model family.

    Attributes
    ----------
    name : str
        ``general.architecture`` in its files, and the prefix of their keys.
    layer : LayerSpec or callable
        Computation of each layer, constant or as ``layer(config, index)``. It determines the tensors that a file must
        hold.
    tokenizers : tuple of str
        Values of ``tokenizer.ggml.pre`` in its files; synthetic files use the first.
    config : callable
        Reads the configuration: ``config(keys, file)``. Dense families can use `shared_config`, to which they may pass
        their RoPE's pairing. It raises ModelError, for a key by ``keys.refuse``.
    metadata : callable
        The inverse: from a configuration to keys without their prefix, in file order.
    config_tensors : mapping of str to callable
        Tensors that `config` reads, and blocks do not, each with its inverse: from a configuration to the numbers, or
        None if a file of that configuration has no such tensor.
    honours : tuple of str
        Keys of `sp.models.file.refusals.NEUTRAL` that the family supports; a file with any other of them is refused.
    usual_type : str
        File type in which its models are most often published; see `sp.models.file.file_type.FILE_TYPES`.
    about : str
        Description in `sp list families`.
    """

    name: str
    layer: LayerSpec | Callable[[ModelConfig, int], LayerSpec]
    tokenizers: tuple[str, ...]
    config: Callable[[Keys, TensorFile], ModelConfig] = shared_config
    metadata: Callable[[ModelConfig], Mapping[str, Value]] = shared_metadata
    config_tensors: Mapping[str, Callable[[ModelConfig], Floats | None]] = field(default_factory=dict)
    honours: tuple[str, ...] = ()
    usual_type: str = "q4_k_m"
    about: str = ""

    def spec(self, config: ModelConfig, index: int) -> LayerSpec:
        """Return the computation of a layer."""
        return self.layer if isinstance(self.layer, LayerSpec) else self.layer(config, index)

    def block(self, store: WeightSource, index: int) -> Block:
        """Build a layer from a source of weights, which is asked for all of its tensors."""
        return Block.build(store, index, self.spec(store.config, index))

    def keys(self, config: ModelConfig) -> dict[str, Value]:
        """Return the metadata of a file of this configuration, without tokenizer and file type."""
        named: dict[str, Value] = {f"{self.name}.{key}": value for key, value in self.metadata(config).items()}
        return {"general.architecture": self.name} | named


_records: dict[str, Architecture] = {}
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(_records)
"""Every record by its name, those registered later among them."""


HOMES: dict[str, str] = {}  # module that registered each family, to point readers to its file


def register_architecture(record: Architecture) -> Architecture:
    """Register a family; ConfigError if its name is taken."""
    if record.name in _records:
        raise ConfigError(f"architecture {record.name!r} is registered twice")
    _records[record.name] = record
    HOMES[record.name] = str(sys._getframe(1).f_globals.get("__name__", ""))
    return record


def find_architecture(name: str) -> Architecture:
    """Return the record of a family; ConfigError with the nearest names if there is none.

    >>> find_architecture("qwen3").tokenizers
    ('qwen2',)
    """
    if name not in _records:
        raise unknown_name("architecture", name, _records)
    return _records[name]


def read_config(file: GGUFFile) -> ModelConfig:
    """Read the configuration of a model file.

    Raises
    ------
    ModelError
        For an unsupported architecture, a missing or invalid key, a key that asks for an unsupported computation, or a
        file of multi-token prediction only; the message names key and file.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _records:
        raise ModelError(f"{file.path}: {unsupported(name, _records)}")
    record, keys = _records[name], Keys(name, file.metadata, str(file.path))
    refuse_prediction(keys.path, file.tensors)
    refuse_changed(keys, record.honours)
    return record.config(keys, file)


def shard_config(config: ModelConfig, gpus: int) -> ModelConfig:
    """Return the configuration of a target as one of so many GPUs has it; ConfigError if they cannot share it, with the
    numbers that can."""
    family = find_architecture(config.architecture)
    if gpus > 1 and any(family.spec(config, layer).post_norms for layer in range(config.layers)):
        raise ConfigError(POST_NORMS_REFUSAL)
    try:
        return ShardSpec(0, gpus).config(config)
    except ConfigError as error:
        raise ConfigError(f"{error}: --target-gpus says how many share the target") from error
