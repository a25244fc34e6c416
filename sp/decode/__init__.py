"""Decoding after the prefill: greedy, sampled, or speculative with a draft whose guesses the target verifies."""

from sp.decode.base import DECODERS, Chooser, Constraint, Decoder, Greedy, SamplingDecoder, TokenChoice
from sp.decode.dflash import DDTree, DFlash
from sp.decode.speculate import Speculative

__all__ = [
    "DECODERS", "Chooser", "Constraint", "DDTree", "DFlash", "Decoder", "Greedy", "SamplingDecoder", "Speculative",
    "TokenChoice",
]  # fmt: skip
