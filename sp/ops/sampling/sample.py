"""argmax and sample: the next token from logits, greedy or drawn under temperature, top-k and top-p.

Everything that decides the outcome is an integer (ranks, weights in units of 2^-40, sums, the random bits), so a draw
depends on nothing but the logits, the options, the seed and the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.kept import cache
from sp.kernels.specs.sample import ARGMAX, BINS, CAPACITY, SAMPLE_BINS, SAMPLE_TOKEN

MOST_ROWS = 64  # rows of logits on the device
ARGMAX_BLOCKS = 1024  # of all rows
ARGMAX_LOGITS = 2048  # fewest of a block
BINS_BLOCKS = 128
DRAW_BLOCKS = 64
UNIT = 2.0**40  # weight of the most likely token; sums over any vocabulary stay below 2^63


@dataclass(frozen=True)
class Sampling:
    """How to draw a token."""

    temperature: float = 1.0  # above 0. Logits are divided by it
    top_k: int = 0  # keep the most likely `top_k` tokens; 0 keeps all
    top_p: float = 1.0  # of those keep the fewest, most likely first, whose share reaches `top_p`; 1 keeps all


def argmax(logits: Floats) -> Any:
    """Id of the largest logit of each row, the lowest id among equals. `logits`: float32 (n, vocab), at most 64 rows on
    the device. Returns int32 (n,), on the device where `logits` is; nothing waits for it.

    >>> argmax(np.array([[1.0, 3.0, 3.0]], np.float32))
    array([1], dtype=int32)
    """
    if not is_device(logits):
        return np.argmax(logits, axis=-1).astype(np.int32)
    return _argmax(logits, None)


def _argmax(logits: Any, bins: Any) -> Any:
    cupy = import_cupy()
    rows, vocab = logits.shape
    assert 1 <= rows <= MOST_ROWS, f"{rows} rows of logits; 1 to {MOST_ROWS} fit"
    blocks = min(ARGMAX_BLOCKS // rows, -(-vocab // ARGMAX_LOGITS))
    token = cupy.empty(rows, cupy.int32)
    best = cupy.empty((rows, blocks), cupy.uint64)
    ARGMAX.launch((blocks, rows), logits, best, arrivals(current_device())[:rows], token, bins, vocab)
    return token


def sample(logits: Floats, options: Sampling, seed: Any, step: Any) -> Any:
    """Draw a token; `step` moves on by one, in place. Tokens are ranked by logit, lowest id first among equals. The
    draw takes the first token in id order, among those kept, whose running sum of weights
    ``exp((logit - max) / temperature)`` exceeds u times their sum. Returns int32 (1,). Source: Salmon et al., "Parallel
    Random Numbers: As Easy as 1, 2, 3", 2011 (Philox4x32-10); Holtzman et al., "The Curious Case of Neural Text
    Degeneration", 2020 (top-p).

    Parameters
    ----------
    logits : float32 (1, vocab)
    seed, step : int64 (1,)
        u is a function of the two alone; on the device if `logits` is, so that a CUDA graph can be replayed.

    Examples
    --------
    >>> step = np.zeros(1, np.int64)
    >>> logits = np.array([[0.0, 9.0, 8.0]], np.float32)
    >>> sample(logits, Sampling(top_k=1), np.zeros(1, np.int64), step).item(), step.item()
    (1, 1)
    """
    if is_device(logits):
        return _sample(logits, options, seed, step)
    best = argmax(logits)
    row = logits[0]
    with np.errstate(under="ignore", over="ignore"):
        weights = np.exp((row - row[best[0]]) * np.float32(1 / options.temperature), dtype=np.float32) * UNIT
    weights = weights.astype(np.uint64)
    ranked = np.argsort(-row, kind="stable")[: options.top_k or None]
    if options.top_p < 1:
        sums = np.cumsum(weights[ranked])
        wanted = max(int(float(np.float32(options.top_p)) * float(sums[-1])), 1)
        ranked = ranked[: int(np.searchsorted(sums, np.uint64(wanted))) + 1]
    kept = np.sort(ranked)
    sums = np.cumsum(weights[kept])
    target = philox(int(seed[0]), int(step[0])) * int(sums[-1]) >> 64
    step += 1
    return kept[[np.searchsorted(sums, np.uint64(target), side="right")]].astype(np.int32)


def philox(seed: int, step: int) -> int:
    """The first 64 bits of Philox4x32-10 with key `seed` at counter `step`, both taken modulo 2^64.

    >>> hex(philox(0, 0))
    '0xe169c58d6627e8d5'
    """
    word, mask = 32, (1 << 32) - 1
    counter = [step & mask, step >> word & mask, 0, 0]
    key = [seed & mask, seed >> word & mask]
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            right >> word ^ counter[1] ^ key[0],
            right & mask,
            left >> word ^ counter[3] ^ key[1],
            left & mask,
        ]
        key = [key[0] + 0x9E3779B9 & mask, key[1] + 0xBB67AE85 & mask]
    return counter[1] << word | counter[0]


def _sample(logits: Any, options: Sampling, seed: Any, step: Any) -> Any:
    cupy = import_cupy()
    bins, candidates, slices = (cupy.empty(size, cupy.uint64) for size in (2 * BINS, CAPACITY, DRAW_BLOCKS))
    best = _argmax(logits, bins)
    token = cupy.empty(1, cupy.int32)
    if options.top_k or options.top_p < 1:
        SAMPLE_BINS.launch((BINS_BLOCKS,), logits, best, bins, logits.size, options.temperature)
    scratch = bins, candidates, slices, arrivals(current_device())[-2:]
    picked = options.temperature, options.top_k, options.top_p
    SAMPLE_TOKEN.launch((DRAW_BLOCKS,), logits, best, *scratch, seed, step, token, logits.size, *picked)
    return token


@cache
def arrivals(device: int) -> Any:
    """Arrivals at a row of `ARGMAX` or `TOP_LOGPROBS`, and the last two at `SAMPLE_TOKEN`. Zero between launches, which
    run in turn."""
    return import_cupy().zeros(MOST_ROWS + 2, "uint32")
