"""delta_mixer: a whole Gated DeltaNet layer between its input and output matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sp.arrays import Floats
from sp.ops.activations import sigmoid, silu, softplus
from sp.ops.causal_conv1d import causal_conv1d
from sp.ops.gated_delta_net import gated_delta_net
from sp.ops.norms import l2norm, rms_norm


class State(Protocol):
    """Memory of the layer; both arrays are float32.

    conv : (taps - 1, conv_dim), the last inputs of the convolution, oldest first.
    recurrent : (value_heads, head_dim, head_dim), the state S, key axis before value axis.
    """

    conv: Floats
    recurrent: Floats


@dataclass(frozen=True)
class DeltaParams:
    """The small parameters of a layer, as GGUF files hold them (value heads in tiled order).

    Attributes
    ----------
    conv : float32 (conv_dim, taps)
        The last tap meets the current token.
    a : float32 (value_heads,)
        ``-exp(A_log)``, not positive.
    dt_bias : float32 (value_heads,)
    norm : float32 (head_dim,)
        Shared by all heads.
    eps : float
    key_heads, value_heads, head_dim : int
    """

    conv: Floats
    a: Floats
    dt_bias: Floats
    norm: Floats
    eps: float
    key_heads: int
    value_heads: int
    head_dim: int


def delta_mixer(
    qkv: Floats, z: Floats, alpha: Floats, beta: Floats, params: DeltaParams, state: State, rows: int
) -> Floats:
    """Convolution and SiLU, unit q and k, the delta rule, then the gated norm of the last `rows` tokens.

    ``g = a softplus(alpha + dt_bias)``, ``o = gated_delta_net(q, k, v, g, sigmoid(beta))`` and
    ``y = rms_norm(o, norm) * silu(z)``.

    Parameters
    ----------
    qkv : float32 (tokens, conv_dim)
        Before the convolution: q, k, v side by side.
    z : float32 (rows, value_heads * head_dim)
    alpha, beta : float32 (tokens, value_heads)
    params : DeltaParams
    state : State
        Moves on by all tokens.
    rows : int
        0 to tokens.

    Returns
    -------
    float32 (rows, value_heads * head_dim)
    """
    p, n = params, len(qkv)
    key_dim = p.key_heads * p.head_dim
    mixed, state.conv = causal_conv1d(qkv, p.conv, state.conv)
    q = l2norm(mixed[:, :key_dim].reshape(n, p.key_heads, p.head_dim), p.eps)
    k = l2norm(mixed[:, key_dim : 2 * key_dim].reshape(n, p.key_heads, p.head_dim), p.eps)
    v = mixed[:, 2 * key_dim :].reshape(n, p.value_heads, p.head_dim)
    g = p.a * softplus(alpha + p.dt_bias)
    out, state.recurrent = gated_delta_net(q, k, v, g, sigmoid(beta), state.recurrent)
    last = rms_norm(out[n - rows :], p.norm, p.eps).reshape(rows, p.value_heads * p.head_dim)
    last *= silu(z)
    return last
