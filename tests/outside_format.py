"""The format of docs/extending/format.md, taken from the page, and a model of it."""

from __future__ import annotations

import re
from pathlib import Path

from sp.gguf import GGUFFile, GGUFWriter
from sp.quant import FORMATS, BlockFormat
from sp.session.loaded import embedded

PAGE = Path(__file__).parents[1] / "docs" / "extending" / "format.md"


def outside_format() -> BlockFormat:
    """Register the page's format, if that was not done before in this process."""
    if 41 not in FORMATS:
        text = re.search(r"```python\n(# sp/quant/formats/q1_0\.py\n.*?)```", PAGE.read_text(), re.S)
        assert text is not None, "the page has no file"
        exec(compile(text[1], str(PAGE), "exec"), {"__name__": "q1_0"})
    return FORMATS[41]


def write_outside(path: Path, role: str = "target") -> Path:
    """The embedded model of a role with its matrices in that format."""
    fmt = outside_format()
    with GGUFFile.open(embedded(role)) as file:
        writer = GGUFWriter(path, dict(file.metadata))
        for name in file.tensors:
            weight = file.weight(name)
            whole = len(weight.shape) == 2 and weight.shape[-1] % fmt.block_size == 0
            own = fmt if whole else weight.format
            writer.add(name, weight.shape, own, own.encode(weight.dense()))
        return writer.write()
