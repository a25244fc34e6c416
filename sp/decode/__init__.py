"""Decoding after the prefill: greedily, or with a draft whose guesses the target verifies."""

from __future__ import annotations

from sp.decode.base import DECODERS, Decoder, Greedy, Speculative
from sp.decode.ddtree import DDTree
from sp.decode.dflash import DFlash

__all__ = ["DECODERS", "DDTree", "DFlash", "Decoder", "Greedy", "Speculative"]
