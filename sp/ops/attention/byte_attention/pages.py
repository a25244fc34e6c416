"""byte_pages: keys and values of a sequence on the device, once more as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.specs.attention.attention_bytes import HEAD_DIM, KEY_CENTRE, KV_BYTES, TILE, VALUE_PEAKS
from sp.ops.attention.byte_attention.codes import sampled_blocks
from sp.ops.attention.kv_pages import PagedKV, is_packed, page_head_dim


@dataclass(frozen=True)
class BytePages:
    """Keys and values as `attention_bytes` reads them; see `Codes` for what the scales are of."""

    k: Any  # uint8 (kv_heads, blocks, 128, 128), signed bytes, tokens by values; zeros past the last token
    key_scales: Any  # float32 (kv_heads, blocks)
    v: Any  # uint8 (kv_heads, blocks, 128, 128), e4m3, values by tokens, of 32 tokens in the order of kv_bytes.cu
    value_peaks: Any  # float32 (kv_heads,), 448 times the scales of values
    tokens: int


def byte_pages(at: PagedKV, centre: Any = None) -> BytePages:
    """Round what a sequence has stored: keys less `centre` to signed bytes, values to e4m3. `at`: on the device, heads
    of 128 values, at least one token; F16 or Q4_0; `centre`: cupy float32 (kv_heads, 128), optional, by default the
    mean of some of the keys, as `key_centre` samples them."""
    cupy = import_cupy()
    head_dim, blocks = page_head_dim(at.k, at.fmt), -(-at.tokens // TILE)
    assert head_dim == HEAD_DIM, f"heads of {head_dim} values"
    assert 0 < blocks <= len(at.table), f"{at.tokens} tokens in {len(at.table)} pages"
    assert at.k.shape == at.v.shape, f"{at.k.shape}, {at.v.shape}"
    shape = at.kv_heads, blocks, TILE, HEAD_DIM
    k, v = cupy.empty(shape, np.uint8), cupy.empty(shape, np.uint8)
    key_scales, peaks = cupy.empty(shape[:2], np.float32), cupy.zeros(at.kv_heads, np.float32)
    centre = sampled_centre(at) if centre is None else centre
    assert centre.shape == (at.kv_heads, HEAD_DIM), f"centre {centre.shape}"
    grid, defines = (at.kv_heads, blocks), {"Q4": int(is_packed(at.fmt))}
    VALUE_PEAKS.launch(grid, at.v, at.table, peaks.view(np.uint32), at.tokens, at.kv_heads, defines=defines)
    KV_BYTES.launch(
        grid, at.k, at.v, at.table, centre, peaks, k, key_scales, v, at.tokens, at.kv_heads, defines=defines
    )
    return BytePages(k, key_scales, v, peaks, at.tokens)


def sampled_centre(at: PagedKV) -> Any:
    """`key_centre` of the keys of `at`: float32 (kv_heads, head_dim)."""
    centre, sampled = import_cupy().empty((at.kv_heads, HEAD_DIM), np.float32), sampled_blocks(at.tokens)
    count = len(range(sampled.start, sampled.stop, sampled.step))
    defines = {"Q4": int(is_packed(at.fmt))}
    KEY_CENTRE.launch((at.kv_heads,), at.k, at.table, centre, count, sampled.step, at.kv_heads, defines=defines)
    return centre
