"""The mean of models that began as one: ``python mean.py ROLE OUT.safetensors FILE FILE ...``.

Trainings that share their beginning and differ in data, rate or length stay close enough for the mean of their weights
to work, and it reads phrases that none of them saw better than each does (model soups, arXiv 2203.05482).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from fit import save
from shapes import build
from weights import load_quantised, load_weights


@torch.no_grad()
def mean(role: str, files: list[Path]) -> torch.nn.Module:
    """The model of a role whose every weight is the mean over files, GGUF or safetensors."""
    models = [
        (load_quantised if file.suffix == ".gguf" else load_weights)(build(role, torch.float32), file) for file in files
    ]
    first, *others = (model.named() for model in models)
    for name, weight in first.items():
        weight.copy_(sum((other[name] for other in others), weight) / len(models))
    return models[0]


if __name__ == "__main__":
    save(mean(sys.argv[1], [Path(file) for file in sys.argv[3:]]), Path(sys.argv[2]))
