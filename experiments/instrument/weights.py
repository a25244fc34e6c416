"""Weights put into the PyTorch models: of training checkpoints, and decoded from GGUF files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from layers import GGUFModule
from safetensors.torch import load_file

from sp.gguf.reader import GGUFFile


def load_weights(model: GGUFModule, path: Path) -> GGUFModule:
    """Put the weights of a training checkpoint into the PyTorch model."""
    with torch.no_grad():
        for name, value in load_file(path).items():
            model.p[name.replace(".", "/")].copy_(value.float())
    return model


def load_quantised(model: GGUFModule, path: Path) -> GGUFModule:
    """Put the decoded weights of a GGUF file back into the PyTorch model."""
    with GGUFFile.open(path) as file, torch.no_grad():
        for name, p in model.named().items():
            p.copy_(torch.from_numpy(np.array(file.weight(name).dense())))
    return model
