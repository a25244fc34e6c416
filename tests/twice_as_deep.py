"""Random models of a shape with all its layers twice: hybrids whose full attention is not the last layer alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sp.models.synthetic.shapes import ModelShape, find_shape
from sp.models.synthetic.synthetic import synthetic_metadata, write_random


def write_deep(folder: Path, name: str, file_type: str) -> Path:
    """A file of such a model; reads as those of `write_synthetic` do."""
    shape = find_shape(name)
    twice = {name: getattr(shape.config, name) * 2 for name in ("kinds", "ffn", "windows")}
    config = replace(shape.config, **twice)
    deep = ModelShape(f"{name}-deep", config, tied=shape.tied, text_tokens=shape.text_tokens)
    path = folder / f"{deep.name}.gguf"
    return write_random(
        path, synthetic_metadata(deep, file_type), deep.plan(file_type), seed=3, fixed=deep.fixed_tensors()
    )
