"""Operations on arrays, one file per operation: shapes and formula in the docstring, and the NumPy code that defines
it.

Activations are float32 unless a caller needs more: for float64 input an op computes in float64."""

from __future__ import annotations

from sp.ops.activations import sigmoid, silu, softplus, swiglu
from sp.ops.attention.kv_pages import kv_append, kv_gather
from sp.ops.delta.causal_conv1d import causal_conv1d
from sp.ops.delta.gated_delta_net import gated_delta_net, gated_delta_net_chunked, gated_delta_net_recurrent
from sp.ops.embedding import embedding
from sp.ops.hadamard import hadamard
from sp.ops.matmul.project import linear
from sp.ops.norms import l2norm, rms_norm
from sp.ops.rope import rope

__all__ = [
    "causal_conv1d",
    "embedding",
    "gated_delta_net",
    "gated_delta_net_chunked",
    "gated_delta_net_recurrent",
    "hadamard",
    "kv_append",
    "kv_gather",
    "l2norm",
    "linear",
    "rms_norm",
    "rope",
    "sigmoid",
    "silu",
    "softplus",
    "swiglu",
]
