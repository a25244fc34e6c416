"""Sample: tokens drawn from the target's distribution, one pass of the target each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sp.config import check_fields
from sp.decode.base import DECODERS, Decoder
from sp.decode.choose import Chooser
from sp.errors import ConfigError
from sp.ops.sampling.sample import Sampling

COLDEST, HOTTEST = 1e-5, 100.0
"""Temperatures between which the weights of tokens can be told apart."""


@DECODERS.register("sample")
@dataclass(frozen=True)
class Sample(Decoder):
    """Tokens drawn at a temperature, of those that filters leave; no draft guesses ahead.

    Filters follow each other as in vLLM: temperature, `min_p`, `top_k`, `top_p`, each on what the one before left.
    (llama.cpp has top-k, top-p, min-p and then the temperature, unless told otherwise.)

    Parameters
    ----------
    temperature : float
        Above 0.
    top_k : int
        Draw from that many of the likeliest; 0 for all.
    top_p : float
        Draw from the fewest that have this share.
    min_p : float
        Draw from none that is less than `min_p` times as likely as the likeliest.
    seed : int, optional
        Of the draws; that of the run if left out.

    Examples
    --------
    >>> import numpy as np
    >>> chooser = Sample(0.8, top_p=0.5).chooser(0)
    >>> chooser.choose(np.log(np.array([[0.1, 0.6, 0.3]], np.float32))).tolist()
    [1]
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "decoder sample")
        ranges = {
            "temperature": (COLDEST <= self.temperature <= HOTTEST, f"{COLDEST:g} to {HOTTEST:g}, or decode greedily"),
            "top_k": (0 <= self.top_k < 2**31, "0 (all) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0, at most 1"),
            "min_p": (0 <= self.min_p <= 1, "0 to 1"),
            "seed": (self.seed is None or 0 <= self.seed < 2**63, "0 or more"),
        }
        for name, (right, wanted) in ranges.items():
            if not right:
                raise ConfigError(f"decoder sample: {name} is {getattr(self, name)}; give {wanted}")

    def chooser(self, seed: int, **watched: Any) -> Chooser:
        sampling = Sampling(self.temperature, self.top_k, self.top_p)
        return Chooser(sampling, seed if self.seed is None else self.seed, min_p=self.min_p, **watched)
