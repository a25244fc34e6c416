"""Models in every weight format on the device against NumPy: those with kernels, and those held in 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compare import nmse

from sp.gguf import GGUFFile, GGUFWriter
from sp.models import load_model, prefill
from sp.models.file.file_type import FILE_TYPES
from sp.models.synthetic.synthetic import write_synthetic
from sp.quant import FORMATS, Q8_0

N = 300
BOUNDS = {"q8_0": 3e-3, "mxfp4_moe": 3e-3}
"""As in test_model.py, but for a random model that makes more of rounding: 1.7e-3 measured, others up to 7.4e-4.
A model without experts has Q8_0 alone in a file of type mxfp4_moe."""
WITHOUT = [fmt.name for fmt in FORMATS.values() if fmt.packing is None]


def as_held(path: Path) -> Path:
    """A copy whose tensors of formats without kernels are what the device makes of them, Q8_0."""
    with GGUFFile.open(path) as file:
        writer = GGUFWriter(path.with_suffix(".held.gguf"), dict(file.metadata))
        for name in file.tensors:
            weight = file.weight(name)
            fmt = Q8_0 if weight.format.name in WITHOUT else weight.format
            writer.add(name, weight.shape, fmt, fmt.encode(weight.dense()) if fmt is Q8_0 else weight.data)
        return writer.write()


@pytest.mark.parametrize("file_type", [name for name in FILE_TYPES if name != "f32"])
def test_logits_and_what_is_told(file_type: str, tmp_path: Path, path: str) -> None:
    file, ids = write_synthetic(tmp_path / "m.gguf", "tiny-qwen35", file_type), np.arange(N)
    twin, model = load_model(as_held(file)), load_model(file, device="cuda")
    assert [each.source for each in model.repacked] == [name for name in WITHOUT if name.lower() == file_type]
    want = prefill(twin, ids, ids, twin.new_cache(N, "f16"))
    found = nmse(prefill(model, ids, ids, model.new_cache(N)), want)
    print(f"{file_type} {path}: nmse {found:.2e}")
    assert found < BOUNDS.get(file_type, 1e-3)
