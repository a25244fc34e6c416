"""File types: which block format each tensor of a model gets, by llama.cpp's rules.

``q4_k_m`` spends more bits where they matter: the output matrix, and the value projections and feed-forward
outputs of the first eighth, the last eighth and every third layer between. Source: ``llama_tensor_get_type`` in
llama.cpp, as of 2026 also for the joint projection of recurrent layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sp.errors import unknown_name
from sp.quant import F16, F32, Q4_K, Q6_K, Q8_0, BlockFormat, format_by_name

FILE_TYPES: Mapping[str, int] = {"f32": 0, "f16": 1, "q8_0": 7, "q4_k_m": 15, "bf16": 32}
"""File types by name, with the number GGUF keeps in ``general.file_type``; but for one, names of formats."""
_MIXED = "q4_k_m"

_MORE_BITS = ("ffn_down.weight", "attn_v.weight", "attn_qkv.weight")
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


def file_type_id(file_type: str) -> int:
    """Number of a file type; ConfigError with the nearest names when there is none.

    >>> file_type_id("q4_k_m")
    15
    """
    if file_type not in FILE_TYPES:
        raise unknown_name("file type", file_type, FILE_TYPES)
    return FILE_TYPES[file_type]


def tensor_format(file_type: str, name: str, shape: tuple[int, ...], *, layers: int, tied: bool) -> BlockFormat:
    """Format of one tensor.

    Parameters
    ----------
    file_type : str
        One of `FILE_TYPES`.
    name : str
        GGUF name, e.g. ``"blk.3.ffn_down.weight"``.
    shape : tuple of int
        Fastest axis last.
    layers : int
        Layers of the trunk, which the rule of ``q4_k_m`` divides.
    tied : bool
        Whether the embedding also serves as output matrix and so takes its format.

    Returns
    -------
    BlockFormat
        F32 for vectors and convolution taps. Where a row is not whole blocks of the chosen format, Q8_0, or F16
        when it is not a multiple of 32 either (llama.cpp would take Q5_0 for Q4_K).

    Raises
    ------
    ConfigError
        When the file type is unknown.

    Examples
    --------
    >>> tensor_format("q4_k_m", "blk.7.ffn_down.weight", (5120, 17408), layers=64, tied=False).name
    'Q6_K'
    >>> tensor_format("q4_k_m", "blk.8.ffn_down.weight", (5120, 17408), layers=64, tied=False).name
    'Q4_K'
    """
    file_type_id(file_type)
    if len(shape) < 2 or name.endswith("ssm_conv1d.weight"):
        return F32
    fmt = _mixed(name, layers, tied) if file_type == _MIXED else format_by_name(file_type)
    if shape[-1] % fmt.block_size == 0:
        return fmt
    return Q8_0 if shape[-1] % Q8_0.block_size == 0 else F16


def _mixed(name: str, layers: int, tied: bool) -> BlockFormat:
    if name == ("token_embd.weight" if tied else "output.weight"):
        return Q6_K
    match = _LAYER.fullmatch(name)
    more = match is not None and match[2] in _MORE_BITS and _use_more_bits(int(match[1]), layers)
    return Q6_K if more else Q4_K


def _use_more_bits(layer: int, layers: int) -> bool:
    first, last = layers // 8, 7 * layers // 8
    return layer < first or layer >= last or (layer - first) % 3 == 2
