"""A Gated DeltaNet layer that hands on earlier tokens, written down instead of trained."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sp.models.config import DeltaConfig
from sp.models.synthetic.retriever_parts import OPEN, Residual, Tensors

AMPLITUDE = 4.0  # of a code entry where the convolution meets it
OUTPUT_GATE = 8.0  # large enough for silu to be linear to 0.03 %, small enough for f16


def _silu(x: float) -> float:
    return x / (1.0 + math.exp(-x))


def delta_layer(
    stream: Residual, energy: float, sizes: DeltaConfig, writes: Mapping[int, str], rng: np.random.Generator
) -> Tensors:
    """Gated DeltaNet whose value head p carries the code of p tokens ago; `writes` names the slot of each lag.

    Lags come from one-tap convolutions. Code entries enter twice, with both signs, since silu(x) - silu(-x) = x.
    Keys are constants and beta is 1, so each delta-rule step replaces the whole memory, whatever the decay; the
    decay is therefore left to chance, a different one for every token, and only the right order of decay, delta
    and read-out cancels it. The query of key head 1 points against its key, so that value heads read with the
    wrong key head come out with the wrong sign. Entries of a code have one magnitude, so the gated norm divides
    by a known number.

    Parameters
    ----------
    stream : Residual
        Its codes have entries of equal magnitude; ``2 * code_dim <= head_dim``.
    energy : float
        Squared norm of the stream that enters the layer.
    sizes : DeltaConfig
        Two key heads.
    writes : mapping of int to str
        Lag, below the number of value heads and of taps, to slot.
    rng : Generator
        Draws keys, queries and decays.

    Returns
    -------
    dict of str to float64 array
        Tensors by GGUF name, without the ``blk.N.`` prefix.
    """
    m, hidden, dim = stream.code_dim, stream.hidden, sizes.head_dim
    assert 2 * m <= dim, f"code_dim {m}, head_dim {dim}"
    assert sizes.key_heads == 2, f"key_heads {sizes.key_heads}"
    constant, current = stream.read_constant(energy), stream.read(stream.slots[0], energy)
    lags = range(sizes.value_heads)
    signs = [1.0 if p % sizes.key_heads == 0 else -1.0 for p in lags]

    values = np.zeros((sizes.value_heads, dim, hidden))
    values[:, :m] = current * math.sqrt(m) * AMPLITUDE
    values[:, m : 2 * m] = -values[:, :m]
    q = rng.uniform(1.0, AMPLITUDE, (sizes.key_heads, dim))
    q[1] = -rng.uniform(0.5, 2.0, dim)
    k = rng.uniform(1.0, AMPLITUDE, (sizes.key_heads, dim))
    taps = np.zeros((sizes.conv_dim, sizes.conv_kernel))
    taps[: 2 * sizes.key_dim, -1] = 1.0
    for p in lags:
        start = 2 * sizes.key_dim + p * dim
        taps[start : start + dim, -1 - p] = 1.0

    high, low = _silu(AMPLITUDE), _silu(-AMPLITUDE)
    normed = AMPLITUDE / math.sqrt((high**2 + low**2) * m / dim)  # an entry (both signs joined) after the gated norm
    undo = 1.0 / (normed * math.sqrt(m) * _silu(OUTPUT_GATE))
    out = np.zeros((hidden, sizes.value_heads, dim))
    for lag, slot in writes.items():
        out[:, lag, :m] = stream.write(slot, np.eye(m) * undo * signs[lag])
    out[..., m : 2 * m] = -out[..., :m]
    return {
        "attn_qkv.weight": np.concatenate(
            [q.reshape(-1, 1) * constant, k.reshape(-1, 1) * constant, values.reshape(-1, hidden)]
        ),
        "attn_gate.weight": np.repeat(OUTPUT_GATE * constant, sizes.value_dim, axis=0),
        "ssm_alpha.weight": rng.standard_normal((sizes.value_heads, m)) @ current,
        "ssm_beta.weight": np.repeat(OPEN * constant, sizes.value_heads, axis=0),
        "ssm_conv1d.weight": taps,
        "ssm_a": -rng.uniform(0.2, 1.0, sizes.value_heads),
        "ssm_dt.bias": rng.uniform(-1.0, 1.0, sizes.value_heads),
        "ssm_norm.weight": np.ones(dim),
        "ssm_out.weight": out.reshape(hidden, -1),
    }
