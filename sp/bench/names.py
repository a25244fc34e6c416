"""What a model is called in the keys of records: its name, the shape it has, and the file type of its weights."""

from __future__ import annotations

from dataclasses import asdict
from math import isclose
from pathlib import Path
from typing import Any

from sp import values
from sp.errors import SpError
from sp.gguf import GGUFFile
from sp.models import ModelConfig
from sp.models.families.base import read_config
from sp.models.file.file_type import FILE_TYPES
from sp.models.synthetic.shapes import find_shape, list_shapes

FREE = ("context", "scaling", "magnitude", "retrieval")
"""Numbers of a configuration that change no speed."""


def model_facts(name: str, config: ModelConfig | None, file_type: str | None) -> dict[str, Any]:
    """Name, shape and type, as keys have them.

    Examples
    --------
    >>> model_facts("m.gguf", find_shape("qwen3.6-27b").config, "q4_k_m")
    {'model': 'm.gguf', 'shape': 'qwen3.6-27b', 'type': 'q4_k_m'}
    """
    return {"model": name, "shape": None if config is None else shape_name(config), "type": file_type}


def shape_name(config: ModelConfig) -> str | None:
    """The named shape a model has, whatever its context and the scaling of its RoPE; None for others."""
    return next((name for name in list_shapes() if _same(asdict(find_shape(name).config), asdict(config))), None)


def _same(one: Any, other: Any) -> bool:
    """Equal but for what costs nothing, numbers as near as a file keeps them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one if k not in FREE)
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def file_type_name(file: GGUFFile) -> str | None:
    """Name of the file type that a file says it has; None for those without a name here."""
    number = values.whole(file.metadata.get("general.file_type"))
    return next((name for name, known in FILE_TYPES.items() if known == number), None)


def file_facts(path: Path) -> dict[str, Any]:
    """`model_facts` of a GGUF file, also of one that another engine can read and this one cannot."""
    try:
        file = GGUFFile.open(path)
    except SpError:
        return model_facts(path.name, None, None)
    try:
        config = read_config(file)
    except SpError:
        config = None
    return model_facts(path.name, config, file_type_name(file))
