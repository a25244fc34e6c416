"""Decoding after the prefill: greedily, or with a draft whose guesses the target verifies, one file a way.

Importing this package registers them all.
"""

from sp.config import import_modules
from sp.decode.base import DECODERS, Decoder, Greedy, Speculative
from sp.decode.ddtree import DDTree
from sp.decode.dflash import DFlash

__all__ = ["DECODERS", "DDTree", "DFlash", "Decoder", "Greedy", "Speculative"]

import_modules(__name__)
