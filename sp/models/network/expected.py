"""Which tensors a file should hold for a forward pass, by what building its blocks asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models.families.base import find_architecture
from sp.models.file.metadata_keys import SketchKeys, TensorShape
from sp.models.network.trunk import trunk_tensors
from sp.quant import Weight


class _NoTensors:
    """Stands for the file while its configuration is sketched: names are wanted, and no data is read for them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: Mapping[str, TensorShape] = {}

    def weight(self, name: str) -> Weight:
        raise ModelError(f"{self.path}: tensor {name} is not read to sketch a model")


def missing_tensors(architecture: str, file: GGUFFile) -> list[str]:
    """Names of tensors that a forward pass needs and `file` lacks; blocks come last.

    ``output.weight`` may be absent (a tied head) and so may the blocks of multi-token prediction. The metadata need
    not be complete or sound.

    Raises
    ------
    ModelError
        When the architecture can make nothing of the metadata.
    """
    record = find_architecture(architecture)
    config = record.config(SketchKeys(record.name, file.metadata, str(file.path)), _NoTensors(file.path))
    wanted = sorted((one.name for one in trunk_tensors(config, file.tensors)), key=lambda name: name.startswith("blk."))
    return [name for name in wanted if name not in file.tensors]
