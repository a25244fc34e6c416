"""A file that is target and drafter lies in memory once, and each reads it as it would alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sp.models import prefill
from sp.session.loaded import embedded, load
from sp.session.pipeline import Pipeline

IDS = np.arange(40)


@pytest.mark.parametrize("named", ["path", "link", "both"])
def test_weights_and_tokenizer_are_shared(named: str, tmp_path: Path) -> None:
    path = embedded("drafter")
    link = tmp_path / "drafter.gguf"
    os.symlink(path, link)
    first, second = {"path": (path, path), "link": (path, link), "both": (link, link)}[named]
    pair = Pipeline.open(first, second, device="cpu")
    assert pair.drafter is not None
    target, drafter = pair.target.model, pair.drafter.model
    assert drafter is not target
    assert drafter.weights is target.weights
    assert pair.drafter.tokenizer is pair.target.tokenizer
    alone = load(path, extrapolate=True, device="cpu").model
    assert drafter.config == alone.config != target.config
    found, want = (prefill(one, IDS, IDS, one.new_cache(40)) for one in (drafter, alone))
    np.testing.assert_array_equal(found, want)


def test_other_files_and_other_products_are_not() -> None:
    path = embedded("drafter")
    for options in ({"precision": "int8"}, {"drafter_precision": "int8"}):
        pair = Pipeline.open(path, path, device="cpu", **options)
        assert pair.drafter is not None
        assert pair.drafter.model.weights is not pair.target.model.weights
        assert pair.drafter.tokenizer is not pair.target.tokenizer
    pair = Pipeline.open(None, path, device="cpu")
    assert pair.drafter is not None
    assert pair.drafter.model.weights is not pair.target.model.weights
