"""Decoding after the prefill: greedily, by sampling, or with a draft whose guesses the target verifies, one file a way.

Importing this package registers them all.
"""

from sp.config import import_modules
from sp.decode.base import DECODERS, Decoder, Greedy, Speculative
from sp.decode.choose import Choice, Chooser, Constraint
from sp.decode.ddtree import DDTree
from sp.decode.dflash import DFlash
from sp.decode.sample import Sample

__all__ = [
    "DECODERS", "Choice", "Chooser", "Constraint", "DDTree", "DFlash", "Decoder", "Greedy", "Sample", "Speculative",
]  # fmt: skip

import_modules(__name__)
