"""Choose the next token from logits: greedily, drawn under filters, or by random numbers from the host; and mask
logits.

Everything that decides the outcome of `sample` is an integer (ranks, weights in units of 2^-40, sums, the random bits),
so a draw depends only on the logits, the options, the seed and the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sp.arrays import Doubles, Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.kept import cache
from sp.kernels.specs.allowed_logits import ALLOWED_LOGITS
from sp.kernels.specs.draw_tokens import DRAW_TOKENS, TOKEN_SHARES
from sp.kernels.specs.likely_logits import LIKELY_LOGITS
from sp.kernels.specs.sample import ARGMAX, BINS, CAPACITY, MOST_SLICES, SAMPLE_BINS, SAMPLE_TOKEN, SLICE, TOP_LOGPROBS

MOST_ROWS = 64  # most rows of logits on the device
ARGMAX_BLOCKS = 1024  # most blocks of all rows
ARGMAX_LOGITS = 2048  # fewest logits per block
BINS_BLOCKS = 128
DRAW_BLOCKS = 64
UNIT = 2.0**40  # weight of the most likely token; sums over any vocabulary stay below 2^63


@dataclass(frozen=True)
class Sampling:
    """Options of sampling."""

    temperature: float = 1.0  # above 0; logits are divided by it
    top_k: int = 0  # select the most likely `top_k` tokens; 0 selects all
    top_p: float = 1.0  # of those select the fewest, most likely first, whose share reaches `top_p`; 1 selects all


def argmax(logits: Floats) -> Any:
    """Return the id of the largest logit of each row, the lowest id on a tie. `logits`: float32 (n, vocab), at most 64
    rows on the device. Returns int32 (n,), on the device of `logits`; nothing waits for it.

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
    """Draw a token, and increment `step` in place. Tokens are ranked by logit, the lowest id first on a tie. The draw
    returns the first of the selected tokens, in id order, whose running sum of weights
    ``exp((logit - max) / temperature)`` exceeds u times their sum. Returns int32 (1,). Source: Salmon et al., "Parallel
    Random Numbers: As Easy as 1, 2, 3", 2011 (Philox4x32-10); Holtzman et al., "The Curious Case of Neural Text
    Degeneration", 2020 (top-p).

    Parameters
    ----------
    logits : float32 (1, vocab)
    seed, step : int64 (1,)
        u is a function of these two only; on the device if `logits` is, so that a CUDA graph can be replayed.

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
    """Return the first 64 bits of Philox4x32-10 with key `seed` at counter `step`, both taken modulo 2^64.

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
    """Return counters of arrivals at each row of `ARGMAX` or `TOP_LOGPROBS`, and, in the last two, at `SAMPLE_TOKEN`.
    They are zero between launches, which run in turn."""
    return import_cupy().zeros(MOST_ROWS + 2, "uint32")


BITS = 53  # bits of a random number in [0, 1), as drawn by NumPy


def draw_tokens(logits: Floats, temperature: float, numbers: Doubles, less: Floats | None = None) -> Ints:
    """Draw a token per row, the first at which the running sum of weights exceeds its random number times their total.
    Weights are ``p = softmax(logits / temperature)``, or with `less` ``max(p - q, 0)``, with q its softmax; p itself if
    that is 0 everywhere, because p and q differ by rounding only. All in float64. Returns int64 (n,), on the host.
    Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023 (the residual).

    Parameters
    ----------
    logits : float32 (n, vocab)
    temperature : float, above 0
    numbers : float64 (n,), in [0, 1), on the host
    less : float32 (n, vocab), optional

    Examples
    --------
    >>> rows = np.log(np.array([[0.5, 0.25, 0.25]] * 3, np.float32))
    >>> draw_tokens(rows, 1.0, np.array([0.1, 0.6, 0.9])).tolist()
    [0, 1, 2]
    >>> draw_tokens(rows[:1], 1.0, np.array([0.0]), less=np.log(np.array([[0.9, 0.05, 0.05]], np.float32))).tolist()
    [1]
    """
    if is_device(logits):
        return _drawn(logits, temperature, numbers, less)
    weights = softmax(logits, temperature)
    if less is not None:
        rest = np.maximum(weights - softmax(less, temperature), 0)
        weights = np.where(rest.any(axis=-1, keepdims=True), rest, weights)
    ends = weights.cumsum(axis=-1)
    found = [np.searchsorted(row, u * row[-1], side="right") for row, u in zip(ends, numbers, strict=True)]
    return np.array(found, np.int64)


def token_shares(logits: Floats, temperature: float, tokens: Ints) -> Doubles:
    """Return the probability of one token per row under ``softmax(logits / temperature)``. `logits`: float32 (n,
    vocab); `tokens`: int64 (n,), on the host. Returns float64 (n,), on the host.

    >>> token_shares(np.log(np.array([[0.5, 0.25, 0.25]], np.float32)), 1.0, np.array([2])).round(6).tolist()
    [0.25]
    """
    if is_device(logits):
        return _shares(logits, temperature, tokens)
    found: Doubles = softmax(logits, temperature)[np.arange(len(tokens)), tokens]
    return found


def softmax(logits: Floats, temperature: float) -> Doubles:
    """Return probabilities over the last axis, in float64; on the CPU."""
    weights = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights /= np.float32(temperature)  # the kernel's argument is a float32
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    found: Doubles = weights
    return found


def _drawn(logits: Any, temperature: float, numbers: Doubles, less: Any) -> Ints:
    cupy, (rows, vocab) = import_cupy(), logits.shape
    assert numbers.shape == (rows,), f"{numbers.shape} numbers for {rows} rows"
    assert less is None or less.shape == logits.shape, f"{less.shape} from {logits.shape}"
    bits = cupy.asarray((numbers * 2.0**BITS).astype(np.uint64))
    tokens = cupy.empty(rows, np.int32)
    DRAW_TOKENS.launch((rows,), logits, less, bits, tokens, vocab, temperature)
    found: Ints = tokens.get().astype(np.int64)
    return found


def _shares(logits: Any, temperature: float, tokens: Ints) -> Doubles:
    cupy, (rows, vocab) = import_cupy(), logits.shape
    assert tokens.shape == (rows,), f"{tokens.shape} tokens for {rows} rows"
    shares = cupy.empty(rows, np.uint64)  # bits of float64 numbers
    TOKEN_SHARES.launch((rows,), logits, cupy.asarray(tokens, np.int32), shares, vocab, temperature)
    found: Doubles = shares.get().view(np.float64)
    return found


def likely_logits(logits: Floats, best: Any, temperature: float, min_p: float) -> Any:
    """Mask logits to -inf where ``softmax(logits / temperature)`` is below `min_p` times its maximum. Returns float32
    (1, vocab), on the device of `logits`. Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and
    Coherent LLM Outputs", 2024.

    Parameters
    ----------
    logits : float32 (1, vocab)
    best : int32 (1,), the likeliest token, on the device of `logits`
    temperature : float, above 0
    min_p : float, above 0, at most 1

    Examples
    --------
    >>> row = np.log(np.array([[0.5, 0.26, 0.24]], np.float32))
    >>> likely_logits(row, np.array([0], np.int32), 1.0, 0.5).tolist()[0][2]
    -inf
    """
    vocab, bound = logits.shape[1], np.float32(temperature * math.log(min_p))
    if is_device(logits):
        left = import_cupy().empty_like(logits)
        LIKELY_LOGITS.launch((-(-vocab // 256),), logits, best, left, vocab, bound)
        return left
    return np.where(logits >= logits[0, best[0]] + bound, logits, np.float32(-np.inf))


Words = npt.NDArray[np.uint32]  # a bit per token, starting with the lowest bit of the first word; 1 allows it


def allowed_logits(logits: Floats, words: Words) -> Any:
    """Mask logits to -inf where the bit of a token is not set. Returns float32 (1, vocab), on the device of `logits`.

    Parameters
    ----------
    logits : float32 (1, vocab)
    words : uint32 (m,), on the host; tokens after its last bit, such as a head's padding, are not allowed

    Examples
    --------
    >>> allowed_logits(np.array([[1.0, 2.0, 3.0]], np.float32), np.array([0b101], np.uint32)).tolist()
    [[1.0, -inf, 3.0]]
    """
    vocab = logits.shape[1]
    wanted = -(-vocab // 32)
    words = np.pad(words[:wanted], (0, max(0, wanted - len(words))))
    if is_device(logits):
        cupy = import_cupy()
        left = cupy.empty_like(logits)
        ALLOWED_LOGITS.launch((-(-vocab // 256),), logits, cupy.asarray(words), left, vocab)
        return left
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")[:vocab].astype(bool)
    return np.where(bits, logits, np.float32(-np.inf))


MOST_TOP = 16  # most tokens per row on the device


def top_logprobs(logits: Floats, k: int) -> tuple[Any, Any]:
    """Return the `k` best tokens of each row and their log-softmax, best first, the lowest id first on a tie: `tokens`:
    int32 (n, k); `log_probs`: float32 (n, k), on the device of `logits`; nothing waits for them.

    Parameters
    ----------
    logits : float32 (n, vocab), at most 64 rows on the device
    k : int, 1 to 16 on the device, at most `vocab`

    Examples
    --------
    >>> tokens, log_probs = top_logprobs(np.log(np.array([[0.2, 0.3, 0.2, 0.3]], np.float32)), 3)
    >>> tokens.tolist(), np.exp(log_probs.astype(float)).round(3).tolist()
    ([[1, 3, 0]], [[0.3, 0.3, 0.2]])
    """
    assert 1 <= k <= (min(MOST_TOP, logits.shape[1]) if is_device(logits) else logits.shape[1]), (
        f"{k} of {logits.shape}"
    )
    if is_device(logits):
        return _top_on_device(logits, k)
    tokens = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return tokens.astype(np.int32), np.take_along_axis(shifted, tokens, axis=-1).astype(np.float32)


def _top_on_device(logits: Any, k: int) -> tuple[Any, Any]:
    cupy = import_cupy()
    rows, vocab = logits.shape
    slices = -(-vocab // SLICE)
    assert 1 <= rows <= MOST_ROWS, f"{rows} rows of logits; 1 to {MOST_ROWS} fit"
    assert slices <= MOST_SLICES, f"{vocab} logits a row; {MOST_SLICES * SLICE} fit"
    tokens, log_probs = cupy.empty((rows, k), np.int32), cupy.empty((rows, k), np.float32)
    candidates, sums = cupy.empty((rows, slices, k), np.uint64), cupy.empty((rows, slices, 2), np.float32)
    scratch = candidates, sums, arrivals(current_device())[:rows]
    TOP_LOGPROBS.launch((slices, rows), logits, *scratch, tokens, log_probs, vocab, k)
    return tokens, log_probs
