"""Formats that no kernel reads, on the device: the numbers of the file in 8 bits; models say what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cupy
import numpy as np
import pytest
from compare import nmse
from outside_format import outside_format, write_outside

from sp.gguf import GGUFFile
from sp.models import Model, load_model, prefill
from sp.ops.embedding import embedding
from sp.ops.matmul.packed import unpack
from sp.quant import Q8_0, registry
from sp.session.loaded import embedded

N = 300


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The embedded target in signs."""
    known = dict(registry._formats)
    outside_format()
    yield write_outside(tmp_path_factory.mktemp("outside") / "m.gguf")
    registry._formats.clear()
    registry._formats.update(known)


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load_model(path, device="cuda")


def test_matrices_are_their_values_in_8_bits(path: Path, model: Model) -> None:
    with GGUFFile.open(path) as file:
        head, table = file.weight("output.weight").dense(), file.weight("token_embd.weight").dense()
    held, ids = model.weights.output, np.random.default_rng(0).integers(0, len(table), 50)
    assert held.format is Q8_0
    np.testing.assert_array_equal(cupy.asnumpy(unpack(held)), Q8_0.decode(Q8_0.encode(head)))
    rows = cupy.asnumpy(embedding(cupy.asarray(ids.astype(np.int32)), model.weights.embed))
    np.testing.assert_array_equal(rows, Q8_0.decode(Q8_0.encode(table))[ids])


def test_logits(path: Path, model: Model) -> None:
    twin, ids = load_model(path), np.arange(N)
    want = prefill(twin, ids, ids, twin.new_cache(N, "f16"))
    found = nmse(prefill(model, ids, ids, model.new_cache(N)), want)
    print(f"nmse {found:.2e}")
    assert found < 1e-3  # as for formats with kernels, see test_model.py: signs lose nothing but scale bits


def test_the_model_says_so(model: Model) -> None:
    said = [str(each) for each in model.repacked]
    assert said == ["95 tensors of Q1_0 are re-packed as Q8_0 for the GPU: 4.1 MB -> 31.3 MB"]
    assert load_model(embedded("drafter"), device="cuda").repacked == ()
