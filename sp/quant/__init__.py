"""Block formats: how the values of a weight are packed, in NumPy, one file per family of formats.

These decoders are the reference for every kernel that reads packed weights; they agree bit for bit with the `gguf`
package. The formats are those of ggml (https://github.com/ggml-org/ggml). Every file of `sp.quant.formats` registers
its formats; other packages call `register_format` themselves."""

from __future__ import annotations

from sp.config import import_modules
from sp.quant.base import BlockFormat
from sp.quant.formats.fp4 import MXFP4
from sp.quant.formats.iquants.iq3 import IQ3_S
from sp.quant.formats.iquants.iq4 import IQ4_NL, IQ4_XS
from sp.quant.formats.kquants import Q3_K, Q4_K, Q5_K, Q6_K
from sp.quant.formats.legacy import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from sp.quant.formats.plain import BF16, F16, F32
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import (
    FORMATS,
    format_bits,
    format_by_name,
    kernel_formats,
    packing_of,
    packings_in,
    register_format,
)
from sp.quant.repack import Repacked, repacked_tensors
from sp.quant.weight import Math, Weight

__all__ = [
    "BF16", "F16", "F32", "FORMATS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0",
    "Q5_1", "Q5_K", "Q6_K", "Q8_0", "BlockFormat", "Math", "Packing", "Plane", "Repacked", "Scales", "Weight",
    "format_bits", "format_by_name", "kernel_formats", "packing_of", "packings_in", "register_format",
    "repacked_tensors",
]  # fmt: skip

import_modules("sp.quant.formats")
