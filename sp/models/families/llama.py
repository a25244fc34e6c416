"""llama: Llama 2 and 3, Mistral, and what else was published in their shape.

No norms of heads, RoPE over neighbours, biases if there are any. Rows of q and k come in the order of Meta's own files,
in which pairs are neighbours; converters permute them back.
Source: Touvron et al., "Llama 2", 2023; Jiang et al., "Mistral 7B", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sp.arrays import Floats
from sp.errors import ModelError
from sp.gguf import Value
from sp.models.config import ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.shared import shared_config, shared_metadata
from sp.models.file.metadata_keys import Keys
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec

FACTORS = "rope_freqs.weight"
BASE = 1e4  # of RoPE in files that do not say


@dataclass(frozen=True)
class FrequencyFactors:
    """A divisor for the frequency of every pair, as files of Llama 3.1 and later have them."""

    by: tuple[float, ...]

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """See `sp.ops.rope.Scaling`."""
        scaled: Floats = frequencies / np.array(self.by)
        return scaled


def llama3_factors(base: float, dim: int, factor: float, original: int = 8192) -> FrequencyFactors:
    """The factors of Llama 3.1 and later.

    Pairs that turn 4 times or more within `original` positions stay, those that turn less than once are slowed down by
    `factor`, and between the two the inverse of the divisor is linear in the number of turns.
    `dim`: values of a head that are turned. `factor`: 8 for Llama 3.1, 32 for the small models of Llama 3.2.
    `original`: positions of the first training. Source: Grattafiori et al., "The Llama 3 Herd of Models", 2024;
    ``rope_type: llama3`` of Hugging Face transformers.
    """
    low, high = 1.0, 4.0
    turned = original * np.array([base ** (-2 * pair / dim) for pair in range(dim // 2)]) / (2 * np.pi)
    share = np.clip((turned - low) / (high - low), 0, 1)
    return FrequencyFactors(tuple((1 / ((1 - share) / factor + share)).astype(np.float32).tolist()))


def llama_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """See `Architecture`."""
    return with_factors(shared_config(keys, file, pairing="interleaved", base=BASE), keys, file)


def with_factors(config: ModelConfig, keys: Keys, file: TensorFile) -> ModelConfig:
    """A model with the frequencies that the tensor of its file divides, where there is one. ModelError where the tensor
    is none of this model, or keys scale RoPE as well."""
    if FACTORS not in file.tensors:
        return config
    if config.rope.scaling is not None:
        keys.refuse("rope.scaling.type", f"asks to scale frequencies that {FACTORS} divides already")
    pairs, shape = config.rope.dim // 2, tuple(file.tensors[FACTORS].shape)
    if shape != (pairs,):
        raise ModelError(f"{file.path}: tensor {FACTORS} has shape {shape}; the metadata asks for {(pairs,)}")
    values = file.weight(FACTORS).dense()
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ModelError(f"{file.path}: {FACTORS} holds values that are not positive numbers; the file is damaged")
    return replace(config, rope=replace(config.rope, scaling=FrequencyFactors(tuple(values.tolist()))))


def factors_of(config: ModelConfig) -> Floats | None:
    """See `Architecture.config_tensors`."""
    scaling = config.rope.scaling
    return np.array(scaling.by, np.float32) if isinstance(scaling, FrequencyFactors) else None


def llama_metadata(config: ModelConfig) -> dict[str, Value]:
    """See `Architecture`."""
    return shared_metadata(config) | {"rope.dimension_count": config.rope.dim}


register_architecture(
    Architecture(
        "llama",
        LayerSpec(qk_norm=False, bias=None),
        ("llama-bpe",),
        llama_config,
        llama_metadata,
        config_tensors={FACTORS: factors_of},
        about="Llama 2 and 3, Mistral, and what else was published in their shape",
    )
)
