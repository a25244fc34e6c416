"""Retrievers with parts that a test chooses or spoils, and how many tasks a model answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from retriever_files import ARCHS, TokenTask, answer, token_task

from sp.arrays import Floats
from sp.gguf import GGUFWriter
from sp.models import Model, load_model
from sp.models.synthetic.retriever import retriever_tensors
from sp.quant import F32

both = pytest.mark.parametrize("arch", ARCHS)
Tensors = dict[str, Floats]


def build(folder: Path, arch: str, change: Callable[[Tensors], None] = lambda tensors: None, **options: float) -> Model:
    """A model of 256 tokens from tensors that `change` may spoil first."""
    metadata, tensors = retriever_tensors(arch, 256, seed=5, **options)  # type: ignore[arg-type]
    change(tensors)
    writer = GGUFWriter(folder / "model.gguf", metadata)
    for name, values in tensors.items():
        writer.add(name, values.shape, F32, F32.encode(values))
    return load_model(writer.write())


def accuracy(model: Model, tasks: list[TokenTask]) -> float:
    """Share of tasks whose whole value is answered."""
    return float(np.mean([answer(model, task.ids, len(task.value)) == task.value for task in tasks]))


def tasks_of(tokens: int, needles: int, count: int, **options: int) -> list[TokenTask]:
    return [token_task(tokens, needles, seed, **options) for seed in range(count)]
