"""llama: Llama 2 and 3, Mistral, and other models of the same architecture.

No norms of heads, RoPE over neighbouring values, biases if present. Rows of q and k are in the order of Meta's own
files, in which pairs are neighbours; converters permute them back. Source: Touvron et al., "Llama 2", 2023; Jiang et
al., "Mistral 7B", 2023.
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
BASE = 1e4  # RoPE base of files without the key


@dataclass(frozen=True)
class FrequencyFactors:
    """A divisor for the frequency of every pair, as in files of Llama 3.1 and later."""

    by: tuple[float, ...]

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """Scale frequencies, see `sp.ops.rope.Scaling`."""
        scaled: Floats = frequencies / np.array(self.by)
        return scaled


def llama3_factors(base: float, dim: int, factor: float, original: int = 8192) -> FrequencyFactors:
    """Return the factors of Llama 3.1 and later.

    Pairs that rotate 4 times or more within `original` positions are unchanged, those that rotate less than once are
    slowed down by `factor`, and between the two the inverse of the divisor is linear in the number of rotations. `dim`:
    values of a head that are rotated. `factor`: 8 for Llama 3.1, 32 for the small models of Llama 3.2. `original`:
    context length of the first training. Source: Grattafiori et al., "The Llama 3 Herd of Models", 2024; ``rope_type:
    llama3`` of Hugging Face transformers.
    """
    low, high = 1.0, 4.0
    rotations = original * np.array([base ** (-2 * pair / dim) for pair in range(dim // 2)]) / (2 * np.pi)
    share = np.clip((rotations - low) / (high - low), 0, 1)
    return FrequencyFactors(tuple((1 / ((1 - share) / factor + share)).astype(np.float32).tolist()))


def llama_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    return with_factors(shared_config(keys, file, pairing="interleaved", base=BASE), keys, file)


def with_factors(config: ModelConfig, keys: Keys, file: TensorFile) -> ModelConfig:
    """Return the model with the frequency divisors of its file's tensor, if there is one. ModelError if the tensor does
    not fit the model, or if keys scale RoPE as well."""
    if FACTORS not in file.tensors:
        return config
    if config.rope.scaling is not None:
        keys.refuse(
            "rope.scaling.type", f"scales frequencies that tensor {FACTORS} scales already; sp applies only one"
        )
    pairs, shape = config.rope.dim // 2, tuple(file.tensors[FACTORS].shape)
    if shape != (pairs,):
        raise ModelError(f"{file.path}: tensor {FACTORS} has shape {shape}; the metadata asks for {(pairs,)}")
    values = file.weight(FACTORS).dense()
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ModelError(f"{file.path}: {FACTORS} holds values that are not positive numbers; the file is damaged")
    return replace(config, rope=replace(config.rope, scaling=FrequencyFactors(tuple(values.tolist()))))


def factors_of(config: ModelConfig) -> Floats | None:
    """Return the numbers of the factor tensor, see `Architecture.config_tensors`."""
    scaling = config.rope.scaling
    return np.array(scaling.by, np.float32) if isinstance(scaling, FrequencyFactors) else None


def llama_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`."""
    return shared_metadata(config) | {"rope.dimension_count": config.rope.dim}


register_architecture(
    Architecture(
        "llama",
        LayerSpec(qk_norm=False, bias=None),
        ("llama-bpe",),
        llama_config,
        llama_metadata,
        config_tensors={FACTORS: factors_of},
        about="Llama 2 and 3, Mistral, and other models of their architecture",
    )
)
