"""Per-tensor block format of the shipped files."""

from __future__ import annotations


def use_more(layer: int, layers: int) -> bool:
    """llama.cpp's choice of the layers that get more bits: the first and last eighth and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def q4_k_m(name: str, layers: int) -> str:
    """Format of a matrix in a Q4_K_M file (``attn_v``, ``ffn_down``, GDN's ``attn_qkv`` get Q6_K in some layers)."""
    if name == "output.weight":
        return "Q6_K"
    if name.startswith("blk."):
        layer, tensor = int(name.split(".")[1]), name.split(".", 2)[2]
        if tensor in ("attn_v.weight", "attn_qkv.weight", "ffn_down.weight") and use_more(layer, layers):
            return "Q6_K"
    return "Q4_K"
