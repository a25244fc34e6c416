"""Which weight formats of llama.cpp are missing, as the README and the page of models say."""

from __future__ import annotations

import re

import gguf
from pages import ROOT

from sp.quant import FORMATS

NO_WEIGHTS = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
"""What ggml rounds activations to, and numbers that no weight is written in."""


def test_the_formats_that_are_missing_are_named() -> None:
    missing = {kind.name for kind in gguf.GGMLQuantizationType if kind not in FORMATS} - NO_WEIGHTS
    readme, models = ((ROOT / path).read_text() for path in ("README.md", "docs/models.md"))
    named = re.search(r"every weight format but (.*?) \(", readme)
    also = re.search(r"Of llama\.cpp's weight formats only (.*?) is missing", models)
    assert named is not None
    assert also is not None
    assert set(re.findall(r"`(\w+)`", named[1])) == set(re.findall(r"`(\w+)`", also[1])) == missing
