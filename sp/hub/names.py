"""Which file a name or a path stands for: the one place where names of models become paths."""

from __future__ import annotations

import os
from pathlib import Path

from sp.errors import GGUFError, known_names, short
from sp.folders import cache_folder
from sp.hub.known import KNOWN, KnownModel

MODEL_SUFFIXES = (".gguf", ".safetensors")


def models_folder() -> Path:
    """Where fetched models lie: ``models`` in the cache folder."""
    return cache_folder() / "models"


def model_file(model: KnownModel) -> Path:
    """Where a known model lies once it is fetched."""
    return models_folder() / f"{model.name}.gguf"


def fetched(model: KnownModel) -> Path | None:
    """The file of a known model, or None where it is not here.

    Its contents were checked when it came; a file of another size is none.
    """
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
