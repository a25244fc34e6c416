"""The linear-attention recurrence of Qwen3.5 (Gated DeltaNet), token by token and in parallel chunks.

Per value head, with decay ``a = exp(g)``, write strength `beta` and a state S (key_dim, value_dim):

    S <- a S;   d = beta (v - Sᵀ k);   S <- S + k dᵀ;   o = Sᵀ q / sqrt(key_dim)

Value head p uses key head ``p % key_heads`` (the tiled order of GGUF files). Source: Yang, Kautz, Hatamizadeh,
"Gated Delta Networks", 2024; Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
2024 (the chunked WY form)."""

from __future__ import annotations

import math

import numpy as np

from sp.arrays import Floats
from sp.ops.threads import run_parallel

CHUNK = 64  # tokens solved together; the work inside a chunk grows with its square
SLAB_CHUNKS = 16  # chunks prepared at once, which bounds the workspace of a long prompt
RECURRENT_BELOW = 16  # shorter calls are faster token by token
DIAGONAL = 16  # blocks inverted by substitution before they are merged by matrix products


def gated_delta_net(q: Floats, k: Floats, v: Floats, g: Floats, beta: Floats, state: Floats) -> tuple[Floats, Floats]:
    """Run the recurrence over a run of tokens, in the form that is faster for its length.

    Parameters
    ----------
    q, k : float32 (tokens, key_heads, key_dim)
        After convolution, SiLU and `l2norm`; q is scaled by ``1 / sqrt(key_dim)`` here.
    v : float32 (tokens, value_heads, value_dim)
        ``value_heads % key_heads == 0``.
    g : float32 (tokens, value_heads)
        Log decay, at most 0.
    beta : float32 (tokens, value_heads)
        In (0, 1).
    state : float32 (value_heads, key_dim, value_dim)
        Not changed; zeros at the start of a sequence.

    Returns
    -------
    o : float32 (tokens, value_heads, value_dim)
    state : float32 (value_heads, key_dim, value_dim)

    Examples
    --------
    >>> one = np.ones((1, 1, 1), np.float32)
    >>> o, state = gated_delta_net(one, one, 5 * one, 0 * one[0], one[0], 0 * one)
    >>> o.item(), state.item()
    (5.0, 5.0)
    """
    run = gated_delta_net_recurrent if len(q) < RECURRENT_BELOW else gated_delta_net_chunked
    return run(q, k, v, g, beta, state)


def gated_delta_net_recurrent(
    q: Floats, k: Floats, v: Floats, g: Floats, beta: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """Run the recurrence as written, one token at a time: the reference, and the form for decoding.

    Parameters and returns are those of `gated_delta_net`.

    Examples
    --------
    >>> one = np.ones((2, 1, 1), np.float32)
    >>> gated_delta_net_recurrent(one, one, one, 0 * one[:, 0], one[:, 0], 0 * one[:1])[0].ravel().tolist()
    [1.0, 1.0]
    """
    tokens, key_heads, key_dim, value_heads = _check(q, k, v, g, beta, state)
    repeat = value_heads // key_heads
    state = state.copy()
    out = np.empty_like(v)
    q = q * q.dtype.type(1 / math.sqrt(key_dim))
    decay = np.exp(g)[..., None, None]
    for t in range(tokens):
        query, key = np.tile(q[t], (repeat, 1)), np.tile(k[t], (repeat, 1))  # (value_heads, key_dim)
        state *= decay[t]
        delta = v[t] - np.matmul(key[:, None], state)[:, 0]
        delta *= beta[t, :, None]
        state += key[:, :, None] * delta[:, None]
        out[t] = np.matmul(query[:, None], state)[:, 0]
    return out, state


def gated_delta_net_chunked(
    q: Floats, k: Floats, v: Floats, g: Floats, beta: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """Run the same recurrence in chunks of 64 tokens: matrix products inside a chunk, a scan over chunks.

    With G the running sum of g inside the chunk and ``M[i, j] = exp(G_i - G_j)`` for j <= i:

    ``A = strict_lower(diag(beta) K Kᵀ * M)``, ``T = (I + A)⁻¹``, ``U = T (beta V)``, ``W = T (beta exp(G) K)``,
    then per chunk ``D = U - W S``, ``O = (exp(G) Q) S + lower(Q Kᵀ * M) D`` and
    ``S <- exp(G_end) S + (exp(G_end - G) K)ᵀ D``. Every exponent is at most 0, so nothing overflows.

    Parameters and returns are those of `gated_delta_net`. Any number of tokens; the last chunk is padded with
    tokens that leave the state unchanged.

    Examples
    --------
    >>> one = np.ones((2, 1, 1), np.float32)
    >>> gated_delta_net_chunked(one, one, one, 0 * one[:, 0], one[:, 0], 0 * one[:1])[0].ravel().tolist()
    [1.0, 1.0]
    """
    tokens, key_heads, _, _ = _check(q, k, v, g, beta, state)
    after = np.empty_like(state)
    out = np.empty_like(v)
    slab = CHUNK * SLAB_CHUNKS

    def run(head: int) -> None:
        one, readers = slice(head, head + 1), slice(head, None, key_heads)  # a key head, its value heads
        S = state[readers].copy()  # contiguous, because _slab updates it in place
        for start in range(0, tokens, slab):
            part = slice(start, start + slab)
            values = v[part, readers], g[part, readers], beta[part, readers]
            out[part, readers] = _slab(q[part, one], k[part, one], *values, S)
        after[readers] = S

    run_parallel(run, range(key_heads))
    return out, after


def _check(q: Floats, k: Floats, v: Floats, g: Floats, beta: Floats, state: Floats) -> tuple[int, int, int, int]:
    """Check that the shapes agree, and return the sizes (tokens, key_heads, key_dim, value_heads)."""
    tokens, key_heads, key_dim = q.shape
    value_heads, value_dim = v.shape[1:]
    shapes = (k.shape, v.shape, g.shape, beta.shape, state.shape)
    assert shapes == (
        (tokens, key_heads, key_dim),
        (tokens, value_heads, value_dim),
        (tokens, value_heads),
        (tokens, value_heads),
        (value_heads, key_dim, value_dim),
    ), f"q {q.shape} and k, v, g, beta, state {shapes}"
    assert value_heads % key_heads == 0, f"{value_heads} value heads on {key_heads} key heads"
    return tokens, key_heads, key_dim, value_heads


def _chunks(x: Floats, chunks: int, heads: tuple[int, int]) -> Floats:
    """Reshape (tokens, heads, ...) -> (repeat, key_heads, chunks, CHUNK, ...), zero-padded, contiguous."""
    padded = np.zeros((chunks * CHUNK, *x.shape[1:]), x.dtype)
    padded[: len(x)] = x
    split = padded.reshape(chunks, CHUNK, *heads, *x.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, (2, 3), (0, 1)))


def _slab(q: Floats, k: Floats, v: Floats, g: Floats, beta: Floats, state: Floats) -> Floats:
    """Return the outputs (tokens, value_heads, value_dim) of one slab; `state` is updated in place."""
    tokens, key_heads, key_dim = q.shape
    value_heads, value_dim = v.shape[1:]
    heads = (value_heads // key_heads, key_heads)  # value head p = (p // key_heads, p % key_heads)
    chunks = -(-tokens // CHUNK)
    Q = _chunks(q * q.dtype.type(1 / math.sqrt(key_dim)), chunks, (1, key_heads))
    K = _chunks(k, chunks, (1, key_heads))
    V = _chunks(v, chunks, heads)
    G = np.cumsum(_chunks(g, chunks, heads), axis=-1)
    b = _chunks(beta, chunks, heads)

    lower = np.tri(CHUNK, dtype=bool)
    M = np.exp(np.where(lower, G[..., :, None] - G[..., None, :], -np.inf), dtype=G.dtype)
    Kt = np.swapaxes(K, -1, -2)
    within = (Q @ Kt) * M  # lower(Q Kᵀ * M)
    M *= K @ Kt
    M *= b[..., None]
    T = _unit_lower_inverse(M)
    grown = np.exp(G)[..., None]
    UW = T @ np.concatenate([V * b[..., None], K * (b[..., None] * grown)], axis=-1)
    U, W = UW[..., :value_dim], UW[..., value_dim:]
    WQ = np.concatenate([W, Q * grown], axis=-2)  # both are multiplied by the state, so in one product
    last = G[..., -1:]
    tail = np.swapaxes(K * np.exp(last - G)[..., None], -1, -2)
    decay = np.exp(last)[..., None]

    S = state.reshape(*heads, key_dim, value_dim)
    out = np.empty_like(V)
    for chunk in range(chunks):
        both = WQ[:, :, chunk] @ S
        D = U[:, :, chunk] - both[:, :, :CHUNK]
        np.matmul(within[:, :, chunk], D, out=out[:, :, chunk])
        out[:, :, chunk] += both[:, :, CHUNK:]
        S *= decay[:, :, chunk]
        S += tail[:, :, chunk] @ D
    return np.moveaxis(out, (0, 1), (2, 3)).reshape(chunks * CHUNK, value_heads, value_dim)[:tokens]


def _unit_lower_inverse(A: Floats) -> Floats:
    """(I + strict_lower(A))⁻¹ over the last two axes, by substitution on small blocks and block merges. Not by powers
    of A: with repeated keys their binomial coefficients exceed float32's precision, while substitution is as accurate
    as the result."""
    shape, n = A.shape, A.shape[-1]
    A = A.reshape(-1, n, n)
    T = np.zeros_like(A)
    starts = range(0, n, DIAGONAL)
    # Substitution with the batch on the fast axis, all diagonal blocks of all matrices together.
    blocks = np.stack([A[:, s : s + DIAGONAL, s : s + DIAGONAL] for s in starts])
    L = np.ascontiguousarray(np.moveaxis(blocks, (2, 3), (0, 1)))  # (row, column, block, batch)
    X = np.zeros_like(L)
    X[0, 0] = 1
    for row in range(1, DIAGONAL):
        X[row, :row] = -np.einsum("j...,jc...->c...", L[row, :row], X[:row, :row])
        X[row, row] = 1
    for i, s in enumerate(starts):
        T[:, s : s + DIAGONAL, s : s + DIAGONAL] = np.moveaxis(X[:, :, i], 2, 0)
    size = DIAGONAL
    while size < n:
        for s in range(0, n, 2 * size):
            top, bottom = slice(s, s + size), slice(s + size, s + 2 * size)
            T[:, bottom, top] = -(T[:, bottom, bottom] @ (A[:, bottom, top] @ T[:, top, top]))
        size *= 2
    return T.reshape(shape)
