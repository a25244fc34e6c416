"""Models for the device tests, each beside its NumPy twin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from sp.gguf import GGUFFile, Tokenizer
from sp.models import Model, load_model
from sp.models.synthetic.synthetic import write_synthetic
from sp.session.loaded import embedded
from sp.studies.sample import sample

EMBEDDED = ("target", "drafter")
RANDOM = ("tiny-qwen3:q4_k_m", "tiny-qwen35:q4_k_m", "tiny-qwen3:bf16", "tiny-qwen35:q8_0")
FAMILIES = (
    "tiny-llama:q4_k_m",
    "tiny-llama:bf16",
    "tiny-qwen2:q4_k_m",
    "tiny-qwen2:q8_0",
    "tiny-gemma3:q4_k_m",
    "tiny-gemma3:bf16",
    "tiny-mistral3:q4_k_m",
    "tiny-mistral3:bf16",
    "tiny-muse-glimmer:q4_k_m",
    "tiny-muse-glimmer:bf16",
    "tiny-gemma2:q4_k_m",
    "tiny-gemma2:bf16",
    "tiny-gemma4:q4_k_m",
    "tiny-gemma4:bf16",
)
"""Without norms of heads, of 64 values: RoPE over neighbours in four query heads a key head; biases, and seven;
windows; queries that grow; layers without RoPE, gates apart, sixteen query heads a key head; scores within a bound;
heads of two sizes, one of 512 values."""
EXPERTS = (
    "tiny-qwen3moe:q4_k_m",
    "tiny-qwen35moe:q4_k_m",
    "tiny-qwen35moe:ud-q4_k_xl",
    "tiny-qwen3next:q4_k_m",
    "tiny-gpt-oss:mxfp4_moe",
)
"""Of mixtures; held to bounds of their own, since routers send a token elsewhere for a rounding."""
NAMES = (*EMBEDDED, *RANDOM, *FAMILIES)


@dataclass(frozen=True)
class Case:
    """One model twice, and tokens to read."""

    path: Path
    cpu: Model
    gpu: Model
    ids: np.ndarray


@cache
def case(name: str) -> Case:
    """The embedded model of that role, or a random one called shape:type."""
    if name in EMBEDDED:
        path = embedded(name)
        ids = Tokenizer.from_gguf(GGUFFile.open(path)).encode(sample()[0][:6000]).ids
    else:
        shape, _, file_type = name.partition(":")
        path = write_synthetic(Path(mkdtemp()) / "model.gguf", shape, file_type, seed=3)
        ids = np.random.default_rng(1).integers(0, 2000, 1200)
    cpu = load_model(path)
    return Case(path, cpu, load_model(path, device="cuda"), np.asarray(ids))
