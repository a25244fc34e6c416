"""Decoding after the prefill: greedily, by sampling, or with a draft whose guesses the target verifies."""

from sp.decode.base import DECODERS, Choice, Chooser, Constraint, Decoder, Greedy, Sample
from sp.decode.dflash import DDTree, DFlash
from sp.decode.speculate import Speculative

__all__ = [
    "DECODERS", "Choice", "Chooser", "Constraint", "DDTree", "DFlash", "Decoder", "Greedy", "Sample", "Speculative",
]  # fmt: skip
