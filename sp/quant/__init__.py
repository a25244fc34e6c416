"""Block formats: how the values of a weight are packed, in NumPy, one file a format.

These decoders are the ground truth of every kernel that reads packed weights; they agree bit for bit with the
`gguf` package. The formats are those of ggml (https://github.com/ggml-org/ggml).
"""

from __future__ import annotations

from sp.errors import unknown_name
from sp.quant.base import BlockFormat
from sp.quant.formats.bf16 import BF16
from sp.quant.formats.f16 import F16
from sp.quant.formats.f32 import F32
from sp.quant.formats.q4_0 import Q4_0
from sp.quant.formats.q4_k import Q4_K
from sp.quant.formats.q5_k import Q5_K
from sp.quant.formats.q6_k import Q6_K
from sp.quant.formats.q8_0 import Q8_0
from sp.quant.weight import Weight

__all__ = [
    "BF16",
    "F16",
    "F32",
    "FORMATS",
    "Q4_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "BlockFormat",
    "Weight",
    "format_by_name",
]

FORMATS: dict[int, BlockFormat] = {fmt.ggml_type: fmt for fmt in (F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K)}
"""Every supported format by its ggml type id."""


def format_by_name(name: str) -> BlockFormat:
    """Find a format by its name, in any case; ConfigError with the nearest names when there is none.

    >>> format_by_name("q8_0").block_bytes
    34
    """
    known = {fmt.name: fmt for fmt in FORMATS.values()}
    if name.upper() not in known:
        raise unknown_name("weight format", name.upper(), known)
    return known[name.upper()]
