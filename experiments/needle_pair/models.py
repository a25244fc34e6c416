"""The two PyTorch models by role, and the block format every weight of theirs has in the shipped files."""

from __future__ import annotations

import torch
from drafter import Drafter, DrafterConfig
from layers import GGUFModule
from target import Target, TargetConfig

from sp.models.file_type import tensor_format
from sp.quant import BlockFormat

FILE_TYPES = {"drafter": "q8_0", "target": "q4_k_m"}


def build(role: str, compute: torch.dtype) -> GGUFModule:
    return Drafter(DrafterConfig(), compute) if role == "drafter" else Target(TargetConfig(), compute)


def formats(model: GGUFModule, role: str) -> dict[str, BlockFormat]:
    """Block format of every weight."""
    named = model.named()
    tied = "output.weight" not in named
    return {
        name: tensor_format(FILE_TYPES[role], name, tuple(value.shape), layers=model.config.layers, tied=tied)
        for name, value in named.items()
    }
