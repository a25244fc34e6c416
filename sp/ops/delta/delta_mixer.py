"""A whole Gated DeltaNet layer between its input and output projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device, shared_bytes_per_block
from sp.kernels.kept import cache
from sp.kernels.path import current_path
from sp.kernels.specs import delta
from sp.kernels.tensor_map import tensor_map
from sp.ops.activations import sigmoid, silu, softplus
from sp.ops.delta.causal_conv1d import causal_conv1d
from sp.ops.delta.gated_delta_net import gated_delta_net
from sp.ops.norms import l2norm, rms_norm


class State(Protocol):
    """Recurrent state of the layer; both arrays are float32."""

    conv: Floats  # (taps - 1, conv_dim), the last inputs of the convolution, oldest first
    recurrent: Floats  # (value_heads, head_dim, head_dim), the state S, key axis before value axis


@dataclass(frozen=True)
class DeltaParams:
    """The small parameters of a layer, as stored in GGUF files (value heads in tiled order)."""

    conv: Floats  # float32 (conv_dim, taps), the last tap multiplies the current token
    a: Floats  # float32 (value_heads,), ``-exp(A_log)``, not positive
    dt_bias: Floats  # float32 (value_heads,)
    norm: Floats  # float32 (head_dim,), shared by all heads
    eps: float
    key_heads: int
    value_heads: int
    head_dim: int


def delta_mixer(
    qkv: Floats, z: Floats, alpha: Floats, beta: Floats, params: DeltaParams, state: State, rows: int
) -> Floats:
    """Apply convolution and SiLU, normalise q and k, run the delta rule, and apply the gated norm to the last `rows`
    tokens.

    ``g = a softplus(alpha + dt_bias)``, ``o = gated_delta_net(q, k, v, g, sigmoid(beta))`` and
    ``y = rms_norm(o, norm) * silu(z)``.

    On the device: qkv, z and the result are bf16 (uint16), all else float32, 4 taps, head_dim 64 or 128; `state` is
    updated in place. Up to 16 tokens take one launch, which can be captured in a CUDA graph. Longer runs are split into
    chunks of 64 tokens, whose products have float16 operands and float32 sums; the state between chunks is float32. The
    tests bound the squared error relative to float64 by 5e-6 of the result, including rounding to bf16, and by 2e-4 for
    keys that are nearly equal. Values beyond the range of float16 after the convolution are clipped. Returns float32
    (rows, value_heads * head_dim). Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024.

    Parameters
    ----------
    qkv : float32 (tokens, conv_dim), before the convolution: q, k, v concatenated
    z : float32 (rows, value_heads * head_dim)
    alpha, beta : float32 (tokens, value_heads)
    state : State, updated by all tokens
    rows : int, 0 to tokens
    """
    if is_device(qkv):
        run = _few if len(qkv) <= delta.MOST_TOKENS else _many
        out: Floats = run(qkv, z, alpha, beta, params, state, rows)
        return out
    p = params
    mixed, state.conv = causal_conv1d(qkv, p.conv, state.conv)
    out, state.recurrent = gated_delta_net(*mixer_inputs(mixed, alpha, beta, p), state.recurrent)
    return mixer_output(out[len(qkv) - rows :], z, p)


def mixer_inputs(
    mixed: Floats, alpha: Floats, beta: Floats, p: DeltaParams
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Convert convolved q, k, v (tokens, conv_dim) to q, k, v, g and beta of `gated_delta_net`; on the CPU."""
    n, key_dim = len(mixed), p.key_heads * p.head_dim
    q = l2norm(mixed[:, :key_dim].reshape(n, p.key_heads, p.head_dim), p.eps)
    k = l2norm(mixed[:, key_dim : 2 * key_dim].reshape(n, p.key_heads, p.head_dim), p.eps)
    v = mixed[:, 2 * key_dim :].reshape(n, p.value_heads, p.head_dim)
    return q, k, v, p.a * softplus(alpha + p.dt_bias), sigmoid(beta)


def mixer_output(out: Floats, z: Floats, p: DeltaParams) -> Floats:
    """Apply the gated norm to outputs (rows, value_heads, head_dim): (rows, value_heads * head_dim); on the CPU."""
    y: Floats = rms_norm(out, p.norm, p.eps).reshape(len(out), p.value_heads * p.head_dim)
    y *= silu(z)
    return y


def _few(qkv: Any, z: Any, alpha: Any, beta: Any, p: DeltaParams, state: State, rows: int) -> Any:
    """Run the small_m device path, token by token in one launch."""
    cupy, n = import_cupy(), len(qkv)
    _check(qkv, z, alpha, beta, p, state, rows)
    y = cupy.empty((rows, p.value_heads * p.head_dim), cupy.uint16)
    sizes = n, rows, p.key_heads, p.value_heads
    gates = p.a, p.dt_bias, p.norm, state.conv, state.recurrent
    delta.DELTA_RECURRENT.launch(
        (p.value_heads if n else 0,),
        *(qkv, z, alpha, beta, p.conv, *gates, y, _arrivals(current_device(), p.key_heads), *sizes, p.eps),
        defines={"HEAD_DIM": p.head_dim, "TOKENS": delta.MOST_TOKENS},
    )
    return y


def _many(qkv: Any, z: Any, alpha: Any, beta: Any, p: DeltaParams, state: State, rows: int) -> Any:
    """Run the chunked device path: convolution, chunk matrices, scan over the chunks, gated norm."""
    cupy, n = import_cupy(), len(qkv)
    _check(qkv, z, alpha, beta, p, state, rows)
    dim = {"HEAD_DIM": p.head_dim}
    chunks = -(-n // delta.CHUNK)
    q, k = (cupy.empty((n, p.key_heads * p.head_dim), cupy.float16) for _ in range(2))
    values = cupy.empty((n, p.value_heads * p.head_dim), cupy.float16)
    T, P = (cupy.empty((p.value_heads, chunks, delta.CHUNK, delta.CHUNK), cupy.float16) for _ in range(2))
    decay = cupy.empty((p.value_heads, chunks, 2, delta.CHUNK), cupy.float32)
    y = cupy.empty((rows, p.value_heads * p.head_dim), cupy.uint16)

    # An item is a run of tokens of one head; a thread has 4 channels of it, a block 256 threads.
    items = -(-n // delta.CONV_RUN) * (2 * p.key_heads + p.value_heads)
    delta.CAUSAL_CONV1D.launch(
        (-(-items * p.head_dim // 1024),),
        *(qkv, p.conv, state.conv, q, k, values, n, p.key_heads, p.value_heads, p.eps),
        defines={**dim, "RUN": delta.CONV_RUN},
    )
    delta.DELTA_CHUNK.launch(
        (chunks, p.key_heads),
        *(q, k, alpha, beta, p.a, p.dt_bias, T, P, decay, qkv, state.conv, n, p.key_heads),
        defines={**dim, "REPEAT": p.value_heads // p.key_heads},
    )
    _scan(q, k, values, T, P, decay, p, state)
    # A thread has 8 values of a head, a block 256 threads.
    items = rows * p.value_heads
    delta.GATED_NORM.launch(
        (-(-items * p.head_dim // 2048),), values[n - rows :], z, p.norm, y, items, p.eps, defines=dim
    )
    return y


def _scan(q: Any, k: Any, values: Any, T: Any, P: Any, decay: Any, p: DeltaParams, state: State) -> None:
    """Scan over the chunks: `values` contains V before and O after."""
    n, key_dim, value_dim = len(q), p.key_heads * p.head_dim, p.value_heads * p.head_dim
    sizes = n, p.key_heads, p.value_heads
    if current_path() == "sm_90a" and p.head_dim == 128:
        c = delta.CHUNK
        heads = [tensor_map(a, (64, n, 2 * p.key_heads), (2 * key_dim, 128), (64, c, 2)) for a in (k, q)]
        value_map = tensor_map(values, (value_dim, n), (2 * value_dim,), (64, c))
        squares = [tensor_map(a, (c, a.size // c), (2 * c,), (c, c)) for a in (T, P)]
        delta.DELTA_SCAN_SM90.launch(
            (2, p.value_heads), *heads, value_map, *squares, decay, state.recurrent, n, p.key_heads
        )
        return
    delta.DELTA_SCAN.launch(
        (p.head_dim // 64, p.value_heads),
        *(q, k, values, T, P, decay, state.recurrent, *sizes),
        defines={"HEAD_DIM": p.head_dim, "WARPS": 4, "WIDE": int(_wide(current_device()))},
    )


def _check(qkv: Any, z: Any, alpha: Any, beta: Any, p: DeltaParams, state: State, rows: int) -> None:
    n, value_dim = len(qkv), p.value_heads * p.head_dim
    channels = 2 * p.key_heads * p.head_dim + value_dim
    shapes = [a.shape for a in (qkv, z, alpha, beta, p.conv, state.conv, state.recurrent)]
    gates, square = (n, p.value_heads), (p.value_heads, p.head_dim, p.head_dim)
    assert shapes == [(n, channels), (rows, value_dim), gates, gates, (channels, 4), (3, channels), square], shapes
    assert p.value_heads % p.key_heads == 0, f"{p.value_heads} value heads on {p.key_heads} key heads"
    assert p.head_dim in (64, 128), f"heads of {p.head_dim}"
    assert 0 <= rows <= n, f"{rows} rows of {n} tokens"


@cache
def _arrivals(device: int, key_heads: int) -> Any:
    """Return the counters of `DELTA_RECURRENT`, zero between launches. One set per device: the layers of a model run in
    turn."""
    return import_cupy().zeros(key_heads, "uint32")


@cache
def _wide(device: int) -> bool:
    """Return True if a block may have the shared memory of the double-buffered scan."""
    return shared_bytes_per_block(device) >= delta.scan_smem({"HEAD_DIM": 128, "WARPS": 4, "WIDE": 1})
