"""Synthetic drafts: random weights in a named shape, as a file or made on the device, for timing and tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sp.kernels import device_errors
from sp.kernels.device import require_device
from sp.models.drafts.dflash import Draft, load_draft, take_draft
from sp.models.drafts.dflash_config import DraftKeys, draft_config
from sp.models.file.file_type import file_type_id
from sp.models.network.model import Model
from sp.models.synthetic.dflash_shapes import find_draft_shape
from sp.models.synthetic.random_store import RandomStore
from sp.models.synthetic.synthetic import write_random


def write_synthetic_draft(
    path: str | Path, shape: str, file_type: str, seed: int = 0, progress: Callable[[int], None] | None = None
) -> Path:
    """Write a GGUF file of a named draft shape with random weights; arguments and errors as for `write_synthetic`.

    Examples
    --------
    >>> import tempfile
    >>> from sp.gguf import GGUFFile
    >>> path = write_synthetic_draft(Path(tempfile.mkdtemp()) / "draft.gguf", "dflash-tiny-qwen35", "q8_0")
    >>> with GGUFFile.open(path) as file:
    ...     file.architecture, len(file.tensors)
    ('dflash', 36)
    """
    found = find_draft_shape(shape)
    metadata = found.metadata() | {"general.file_type": file_type_id(file_type), "general.quantization_version": 2}
    return write_random(path, metadata, found.plan(file_type), seed, progress)


def synthetic_draft(shape: str, file_type: str, target: Model, seed: int = 0) -> Draft:
    """A draft of a named shape with random weights, where its target is; on the GPU no file is written.

    Parameters
    ----------
    shape : str
        One of `sp.models.synthetic.dflash_shapes.list_draft_shapes`.
    file_type : str
        One of `sp.models.file.file_type.FILE_TYPES`.
    target : Model
    seed : int

    Raises
    ------
    ConfigError
        For an unknown shape or file type.
    ModelError
        When the shape is that of another target's draft.
    DeviceError
        Without enough memory on the device.
    """
    found, name = find_draft_shape(shape), Path(f"{shape}-{file_type}.synthetic")
    config = draft_config(DraftKeys(found.metadata(), str(name), "dflash"), target.config)
    if target.device == "cpu":
        with TemporaryDirectory() as folder:
            file = write_synthetic_draft(Path(folder) / "draft.gguf", shape, file_type, seed)
            return replace(load_draft(file, target), path=name)
    require_device()
    with device_errors():
        store = RandomStore(config.model, found.plan(file_type), seed)
        return Draft(name, config, *take_draft(store, config), target.device, store.nbytes, store.repacked)
