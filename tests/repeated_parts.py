"""How many parts of layers `sp.models.run.replay.RepeatedLayers` repeats, reckoned apart from it."""

from __future__ import annotations

from sp.models.cache.context_parallel_cache import ContextChunks

TAIL = 128
"""Fewest tokens of a prompt's last stripe, where no more rows are asked for."""


def repeated_parts(tokens: int, gpus: int, layers: int, eight_bits: bool, less: int) -> int:
    """Parts that are neither planned nor recorded, of all GPUs, where layers are of one format.

    All layers but the last attend and leave, and all are entered, by one GPU the last one for few queries. Attention
    is recorded once a stripe; what comes before it and what comes after it once for all stripes of a GPU that are
    equally long. In int8 or fp8 the first two layers stay in BF16: two of a part are recorded where two stripes share
    it, and planned otherwise. The last stripe has so many pages `less` than others.
    """
    if gpus == 1:
        lengths = [(tokens,)]
    else:
        stripes = ContextChunks(tokens, gpus, TAIL, less)
        lengths = [tuple(stop - start for start, stop in stripes.of(gpu)) for gpu in range(gpus)]
    found = 0
    for own in lengths:
        found += len(own) * (layers - 2)  # attention
        for times in (layers - (gpus == 1), layers - 1):
            for length in set(own):
                sharing = own.count(length)
                if not eight_bits:
                    found += sharing * times - 1
                else:
                    found += sharing * (times - 2) - 1 + (2 * sharing - 1 if sharing > 1 else 0)
    return found
