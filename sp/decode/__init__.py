"""Decoding after the prefill: greedily, by sampling, or with a draft whose guesses the target verifies, one file a way.

Importing this package registers them all.
"""

from sp.config import import_modules
from sp.decode.base import DECODERS, Choice, Chooser, Constraint, Decoder, Greedy, Sample
from sp.decode.dflash import DDTree, DFlash
from sp.decode.speculate import Speculative

__all__ = [
    "DECODERS", "Choice", "Chooser", "Constraint", "DDTree", "DFlash", "Decoder", "Greedy", "Sample", "Speculative",
]  # fmt: skip

import_modules(__name__)
