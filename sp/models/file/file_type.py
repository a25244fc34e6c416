"""File types: the block format of each tensor of a model.

A type named after a format uses it for all matrices. Three types are mixes, which spend more bits where they matter.
``q4_k_m`` is llama.cpp's rule: Q6_K for the output matrix, and for the value projections and feed-forward outputs of
the first eighth, the last eighth and every third layer between, Q4_K elsewhere. Source: ``llama_tensor_get_type`` in
llama.cpp, as of 2026 also for the joint projection of recurrent layers.

``ud-q4_k_xl`` imitates the dynamic mixes that are published under that name, with eight formats and a choice for every
tensor. Their choices come from measurements of each model and follow no rule. The ones here are ours: the same formats
in the places where published lists have them, assigned to layers with a period of sixteen, so that the 27B file is as
large as the published one of 17.6 GB. Shares of its bytes: Q5_K 34 %, Q6_K 32 %, IQ4_XS 14 %, Q4_K 14 %, Q3_K 2.6 %,
IQ4_NL 2.3 %, IQ3_S 1.7 %, Q8_0 0.1 %.

``mxfp4_moe`` is how gpt-oss is published: experts in MXFP4, in which they were trained, and Q8_0 elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gguf.constants import LlamaFileType

from sp.errors import unknown_name
from sp.quant import F16, F32, FORMATS, MXFP4, Q4_K, Q6_K, Q8_0, BlockFormat, format_by_name

_MIXES = {
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
    "ud-q4_k_xl": LlamaFileType.MOSTLY_Q4_K_M,
    "mxfp4_moe": LlamaFileType.MOSTLY_MXFP4_MOE,
}


def _file_types() -> dict[str, int]:
    """Return every format of the package that a file can have, with the number of the closest GGUF file type."""
    numbers = {kind.name: int(kind) for kind in LlamaFileType}
    types: dict[str, int] = {}
    for fmt in FORMATS.values():
        names = (f"ALL_{fmt.name}", f"MOSTLY_{fmt.name}", f"MOSTLY_{fmt.name}_S", f"MOSTLY_{fmt.name}_MOE")
        types |= {fmt.name.lower(): numbers[name] for name in names if name in numbers}
    return types


FILE_TYPES: Mapping[str, int] = {name: int(kind) for name, kind in _MIXES.items()} | _file_types()
"""File types by name, with their number in ``general.file_type``; all but the mixes are names of formats."""

_NARROW = {
    "IQ4_NL": ("Q2_K", "Q3_K", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M"),
    "Q4_0": ("TQ1_0", "TQ2_0"),
    "Q5_0": ("Q4_K",),
    "Q5_1": ("Q5_K",),
    "Q8_0": ("Q6_K",),
}  # formats of 32 values for rows that are not whole blocks of 256, and the formats each replaces, as in llama.cpp

_MORE_BITS = (
    "ffn_down.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
    "attn_v.weight",
    "attn_qkv.weight",
)
_PLAIN = ("ssm_conv1d.weight", "ffn_gate_inp.weight", ".bias")
"""Matrices that no file type packs: convolution taps, routers, biases of experts."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")

_TURN = 16
_DYNAMIC: Mapping[str, tuple[str, Mapping[str, tuple[int, ...]]]] = {
    "token_embd.weight": ("Q6_K", {}),
    "output.weight": ("Q6_K", {}),
    "attn_q.weight": ("Q5_K", {}),
    "attn_k.weight": ("Q6_K", {}),
    "attn_v.weight": ("Q6_K", {}),
    "attn_qkv.weight": ("Q5_K", {}),
    "attn_gate.weight": ("Q5_K", {}),
    "attn_output.weight": ("Q6_K", {}),
    "ssm_out.weight": ("Q6_K", {}),
    "ssm_alpha.weight": ("Q8_0", {}),
    "ssm_beta.weight": ("Q8_0", {}),
    "ffn_gate.weight": ("Q4_K", {"IQ3_S": (3, 11), "IQ4_XS": (1, 5, 9, 13), "Q5_K": (6, 7, 14, 15)}),
    "ffn_up.weight": ("Q4_K", {"Q3_K": (0, 5, 10), "IQ4_XS": (2, 4, 8, 12, 14), "Q5_K": (7, 15)}),
    "ffn_down.weight": ("Q5_K", {"IQ4_XS": (0, 4, 8, 12), "IQ4_NL": (3, 11), "Q6_K": (1, 5, 6, 9, 13, 14)}),
    "ffn_gate_exps.weight": ("Q4_K", {}),
    "ffn_up_exps.weight": ("Q4_K", {}),
    "ffn_down_exps.weight": ("Q5_K", {"Q6_K": (0, 15)}),
    "ffn_gate_shexp.weight": ("Q6_K", {}),
    "ffn_up_shexp.weight": ("Q6_K", {}),
    "ffn_down_shexp.weight": ("Q8_0", {}),
}  # of ``ud-q4_k_xl``: the usual format of a tensor, and other formats by layer number modulo 16


def file_type_id(file_type: str) -> int:
    """Return the GGUF number of a file type; ConfigError with the nearest names if there is none."""
    if file_type not in FILE_TYPES:
        raise unknown_name("file type", file_type, FILE_TYPES)
    return FILE_TYPES[file_type]


def tensor_format(file_type: str, name: str, shape: tuple[int, ...], *, layers: int, tied: bool) -> BlockFormat:
    """Return the format of one tensor.

    `file_type`: one of `FILE_TYPES`. `name`: GGUF name, e.g. ``"blk.3.ffn_down.weight"``. `shape`: fastest axis last.
    `layers`: layers of the main model, which the rule of ``q4_k_m`` divides. `tied`: True if the embedding is also the
    output matrix and so takes its format. Vectors and `_PLAIN` are F32. If a row is not whole blocks of the chosen
    format, the format of 32 values that llama.cpp uses instead is returned (Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for
    Q6_K, IQ4_NL for formats of fewer bits), or F16 if it is not a multiple of 32 either. ConfigError if the file type
    is unknown.
    """
    file_type_id(file_type)
    if len(shape) < 2 or name.endswith(_PLAIN):
        return F32
    if file_type == "q4_k_m":
        fmt = _mixed(name, layers, tied)
    elif file_type == "ud-q4_k_xl":
        fmt = _dynamic(name)
    elif file_type == "mxfp4_moe":
        fmt = MXFP4 if name.endswith("_exps.weight") else Q8_0
    else:
        fmt = format_by_name(file_type)
    return fmt if shape[-1] % fmt.block_size == 0 else _narrow(fmt, shape[-1])


def _narrow(fmt: BlockFormat, width: int) -> BlockFormat:
    for other, wide in _NARROW.items():
        if fmt.name in wide and width % (narrow := format_by_name(other)).block_size == 0:
            return narrow
    return F16


def _mixed(name: str, layers: int, tied: bool) -> BlockFormat:
    if name == ("token_embd.weight" if tied else "output.weight"):
        return Q6_K
    match = _LAYER.fullmatch(name)
    more = match is not None and match[2] in _MORE_BITS and _use_more_bits(int(match[1]), layers)
    return Q6_K if more else Q4_K


def _use_more_bits(layer: int, layers: int) -> bool:
    first, last = layers // 8, 7 * layers // 8
    return layer < first or layer >= last or (layer - first) % 3 == 2


def _dynamic(name: str) -> BlockFormat:
    match = _LAYER.fullmatch(name)
    layer, part = (int(match[1]) % _TURN, match[2]) if match else (-1, name)
    usual, others = _DYNAMIC.get(part, ("Q4_K", {}))
    return format_by_name(next((other for other, turns in others.items() if layer in turns), usual))
