"""Which tensors a file of a known architecture should hold; `sp inspect` warns of those that are not there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sp.gguf.keys import Value

_FFN = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
_ATTENTION = ("attn_output.weight", "attn_q_norm.weight", "attn_k_norm.weight")
_SPLIT_QKV = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
_FUSED_QKV = "attn_qkv.weight"
_DELTA = (
    *(_FUSED_QKV, "attn_gate.weight", "ssm_conv1d.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias"),
    *("ssm_a", "ssm_norm.weight", "ssm_out.weight"),
)
_NORMS = {
    "qwen3": ("attn_norm.weight", "ffn_norm.weight"),
    "qwen35": ("attn_norm.weight", "post_attention_norm.weight"),
}
ARCHITECTURES = tuple(_NORMS)
DRAFT_ARCHITECTURES = ("dflash", "dflash-draft", "qwen35-dflash-draft")
"""Of drafts that guess ahead for a target of their own."""
MAX_BLOCKS = 1 << 12


def integer(metadata: Mapping[str, Value], key: str) -> int | None:
    """The integer under `key`; None when it is absent or something else."""
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def missing_tensors(architecture: str, metadata: Mapping[str, Value], tensors: Mapping[str, object]) -> list[str]:
    """Names of tensors a forward pass needs and `tensors` lacks.

    ``output.weight`` may be absent (a tied head) and so may the blocks of multi-token prediction.

    Examples
    --------
    >>> missing_tensors("qwen3", {"qwen3.block_count": 0}, {"token_embd.weight": None})
    ['output_norm.weight']
    """
    blocks = min(integer(metadata, f"{architecture}.block_count") or 0, MAX_BLOCKS)
    trunk = blocks - (integer(metadata, f"{architecture}.nextn_predict_layers") or 0)
    wanted = ["token_embd.weight", "output_norm.weight"]
    for block in range(max(trunk, 0)):
        names = [*_NORMS[architecture], *_FFN]
        if _is_recurrent(architecture, metadata, block):
            names += _DELTA
        else:
            fused = f"blk.{block}.{_FUSED_QKV}" in tensors
            names += [*_ATTENTION, *((_FUSED_QKV,) if fused else _SPLIT_QKV)]
        wanted += [f"blk.{block}.{name}" for name in names]
    return [name for name in wanted if name not in tensors]


def _is_recurrent(architecture: str, metadata: Mapping[str, Value], block: int) -> bool:
    if architecture != "qwen35":
        return False
    flags = metadata.get("qwen35.attention.recurrent_layers")
    if isinstance(flags, np.ndarray) and block < len(flags):
        return bool(flags[block])
    interval = integer(metadata, "qwen35.full_attention_interval") or 4
    return (block + 1) % interval != 0
