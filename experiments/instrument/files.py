"""Write the trained weights as GGUF files: ``python files.py DATA WEIGHTS OUT [--role ROLE] [--type q8_0]``."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from export import load_weights, shape_metadata, vocabulary_metadata
from models import FILE_TYPES
from shapes import build

from sp.evals.trained_for import KEY
from sp.gguf.writer import GGUFWriter
from sp.models.file_type import tensor_format

TRAINED_FOR = (
    "no head of it was supervised. It was trained with next-token loss alone, on stories of the kinds that the story "
    "tasks tell and on the facts of their closed world, in other phrases, with other names and among other text; which "
    "of its heads retrieve was found afterwards."
)
"""What `sp` tells under tables in which scorers are ranked by this drafter."""
FILE_TYPE_CODES = {"q8_0": 7, "q4_k_m": 15}
"""`general.file_type`, as llama.cpp numbers it."""


def write(role: str, data: Path, weights: Path, out: Path, file_type: str) -> Path:
    """The file of a role, matrices in the formats of a file type."""
    model = load_weights(build(role, torch.float32), weights)
    metadata = shape_metadata(model, "drafter") | vocabulary_metadata(data / "vocabulary.json", "drafter")
    metadata["general.file_type"] = FILE_TYPE_CODES[file_type]
    path, named = out / f"{role}.gguf", model.named()
    tied = "output.weight" not in named
    writer = GGUFWriter(path, metadata | {"general.name": f"instrument-{role}", KEY: TRAINED_FOR})
    for name, value in named.items():
        v = value.detach().float()
        fmt = tensor_format(file_type, name, tuple(v.shape), layers=model.config.layers, tied=tied)
        if name.endswith("ssm_a_log"):
            name, v = name.removesuffix("_log"), -v.exp()
        writer.add(name, tuple(v.shape), fmt, fmt.encode(np.ascontiguousarray(v.numpy())))
    writer.write()
    return path


def main() -> None:
    """Write one file or both."""
    a = argparse.ArgumentParser()
    a.add_argument("data", type=Path)
    a.add_argument("weights", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--role", choices=("drafter", "target"))
    a.add_argument("--type", help="of the file; q8_0 loses less where training goes on from it")
    args = a.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for role in [args.role] if args.role else ("drafter", "target"):
        path = write(role, args.data, args.weights / f"{role}.safetensors", args.out, args.type or FILE_TYPES[role])
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
