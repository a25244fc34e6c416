"""Files of named shapes with all of the header and no weights: for what only looks, they need not be written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from sp.gguf import GGUFWriter
from sp.models.synthetic.shapes import find_shape
from sp.models.synthetic.synthetic import synthetic_metadata
from sp.quant import F32

FEW = 1000
"""Tokens that are words, where no test looks at them."""


def write_hollow(path: Path, shape: str, file_type: str, text_tokens: int | None = FEW) -> Path:
    """A file as large as the real one that takes only its header's room on the disk.

    Of its tokens so many are words and the others unused, for reading all the words takes longest; None: as published.
    """
    found = find_shape(shape)
    vocabulary = replace(found, text_tokens=text_tokens or found.text_tokens)
    writer, nbytes, told = GGUFWriter(path, synthetic_metadata(vocabulary, file_type)), 0, b""
    for name, size, fmt in found.plan(file_type):
        writer.add(name, size, fmt, lambda: ())
        if name in found.config_tensors():  # they come first
            assert len(told) == nbytes
            told += F32.encode(found.config_tensors()[name]).tobytes()
        nbytes += -(-fmt.nbytes(size) // 32) * 32
    header = writer._header()
    path.write_bytes(header + told)
    os.truncate(path, len(header) + nbytes)
    return path
