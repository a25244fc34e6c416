"""Device memory of models: packed weights, pages of keys and values, recurrent states; and bounds of the workspace.

Weights, pages and states are computed exactly, as the bytes that are allocated. The workspace is a bound fitted to
recorded peaks of requests (``results/*/ttft.jsonl``): they are below the sum, by a tenth at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.kernels.specs.attention.attention_bytes import HEAD_DIMS
from sp.kernels.specs.matmul.gemm_experts import BLOCK_SM90
from sp.models.cache.cache import ring_pages
from sp.models.cache.kv_type import checked_kv, known_kv
from sp.models.config import ModelConfig
from sp.models.file.weights import TensorSpec, layer_of
from sp.models.layer.cold_experts import ring_bytes
from sp.models.network.arithmetic import AUTO, byte_layers, is_eligible, read_precision
from sp.models.network.weights import model_tensors
from sp.models.run.chunked import chunk_tokens
from sp.models.run.layer_major import chunk_on_device
from sp.ops.attention.attention import BYTE_QUERIES
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.ops.matmul.byte_products import workspace_bytes
from sp.ops.matmul.fragment_order import plane_offsets
from sp.quant import F16, F32, FORMATS, BlockFormat, Math
from sp.quant.repack import EXACT_TERMS, device_format, is_split

Stacks = tuple[tuple[int, ...], ...]  # bytes of every stack of experts, by layer
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
STREAMS = 16  # most residual streams in float32 that one chunk needs at a time
SCRATCH = 640 << 20  # partial sums, graphs and fragmentation that remain between stages


@dataclass
class DeviceFormat:
    """Tensors of one format in a file, and their formats on the device."""

    source: str  # format in the file
    targets: list[str]  # formats on the device, in order of appearance
    tensors: int = 0  # tensors, source_bytes, nbytes: count, bytes in the file, bytes on the device
    source_bytes: int = 0
    nbytes: int = 0


def device_weights(
    config: ModelConfig, formats: Mapping[str, BlockFormat], gpus: int = 1, depth: int | None = None
) -> list[DeviceFormat]:
    """Compute the weights on the device, one row per format of the file, the most bytes first.

    A head tied to the embedding is stored a second time, packed. With several `gpus`, `config` is the shard of one of
    them; the head, which it has in full, is divided here. `depth`: count that many layers, without the head. KeyError:
    a tensor is missing; ModelError: a matrix has no packed form."""
    rows: dict[str, DeviceFormat] = {}
    tied = depth is None and HEAD not in formats
    for tensor in model_tensors(config, formats, depth):
        fmt = formats[tensor.name]
        row = rows.setdefault(fmt.name, DeviceFormat(fmt.name, []))
        row.tensors += 1
        row.source_bytes += fmt.nbytes(tensor.shape)
        for target, nbytes in _places(tensor, fmt, tied, gpus):
            row.nbytes += nbytes
            if target not in row.targets:
                row.targets.append(target)
    return sorted(rows.values(), key=lambda row: -row.nbytes)


def file_formats(file: GGUFFile) -> dict[str, BlockFormat]:
    """Return the known formats of a file's tensors by their names."""
    return {name: FORMATS[info.ggml_type] for name, info in file.tensors.items() if info.ggml_type in FORMATS}


def stack_bytes(config: ModelConfig, formats: Mapping[str, BlockFormat]) -> Stacks:
    """Compute the bytes of every stack of experts on the device, by layer; empty without experts. Parameters and errors
    as for `device_weights`."""
    if config.experts is None:
        return ()
    by_layer: list[list[int]] = [[] for _ in config.kinds]
    for tensor in model_tensors(config, formats):
        layer = layer_of(tensor.name)
        if tensor.kind == "stack" and layer is not None:
            by_layer[layer].append(sum(nbytes for _, nbytes in _places(tensor, formats[tensor.name], tied=False)))
    return tuple(tuple(sizes) for sizes in by_layer)


def streamed_bytes(config: ModelConfig, formats: Mapping[str, BlockFormat], gpus: int = 1) -> int:
    """Compute the bytes of the weights that a pass reads: all but the embedding table, of which it reads single rows.
    Arguments and errors as for `device_weights`."""
    table = device_format(formats[EMBEDDING], config.hidden, table=True).row_bytes(config.hidden)
    return sum(row.nbytes for row in device_weights(config, formats, gpus)) - config.vocab * table


def _places(tensor: TensorSpec, fmt: BlockFormat, tied: bool, gpus: int = 1) -> list[tuple[str, int]]:
    """Return format and bytes of each copy of a tensor on one of `gpus` devices."""
    if tensor.picked:
        parts = [replace(tensor, shape=shape, picked=()) for shape in tensor.parts]
        return [place for part in parts for place in _places(part, fmt, tied, gpus)]
    if tensor.kind not in ("matrix", "stack"):
        return [(F32.name, 4 * tensor.size)]
    copies, width = [], tensor.shape[-1]
    rows = tensor.size // width  # the matrices of a stack follow each other
    if tensor.name == EMBEDDING:
        table = device_format(fmt, width, table=True)
        copies.append((table.name, rows * table.row_bytes(width)))
    if tensor.name != EMBEDDING or tied:
        rows = -(-rows // gpus) if tensor.name in (EMBEDDING, HEAD) else rows
        packed = device_format(fmt, width)
        nbytes, terms = plane_offsets(tensor.name, packed, (rows, width)).end, EXACT_TERMS
        split = is_split(fmt, (rows, width))
        copies.append((f"{terms} x {packed.name}", terms * nbytes) if split else (packed.name, nbytes))
    return copies


def kv_bytes(config: ModelConfig, tokens: int, kv: str) -> int:
    """Compute the bytes of keys and values of `tokens` tokens in all attention layers, in whole pages. Layers with a
    window only have the pages in its reach. With keys in `K4` each layer has a page in float16 too, for the newest
    tokens."""
    total, pages, known = 0, -(-tokens // PAGE_TOKENS), known_kv(kv)
    for layer in config.attention_layers:
        sizes, window = config.heads_of(layer), config.window_of(layer)
        kv_type = checked_kv(known, sizes.head_dim, False, "cpu")
        row = kv_type.k.row_bytes(sizes.head_dim) + kv_type.v.row_bytes(sizes.head_dim)
        newest = 2 * F16.row_bytes(sizes.head_dim) if kv_type.keeps_recent else 0
        total += (min(pages, ring_pages(window)) * row + newest) * sizes.kv_heads
    return PAGE_TOKENS * total


def widest(config: ModelConfig) -> tuple[int, int]:
    """Return the most values of a token's queries, and of its keys, over the attention layers."""
    sizes = config.head_sizes
    return max(s.heads * s.head_dim for s in sizes), max(s.kv_heads * s.head_dim for s in sizes)


def state_bytes(config: ModelConfig) -> int:
    """Compute the bytes of all recurrent states, which do not depend on the length of the text."""
    d = config.delta
    if d is None:
        return 0
    return 4 * len(config.delta_layers) * ((d.conv_kernel - 1) * d.conv_dim + d.value_heads * d.head_dim**2)


def least_bytes(config: ModelConfig, weights: int, tokens: int, kv: str) -> int:
    """Sum the bytes of weights, states, and keys and values of `tokens` tokens: the least that a model needs."""
    return weights + state_bytes(config) + kv_bytes(config, tokens, kv)


def unpacked_bytes(config: ModelConfig, tokens: int, kv: str) -> int:
    """Compute the bytes that a prefill needs to unpack quantised pages to float16: keys and values of all its tokens,
    in whole pages, of the widest layer. Float16 pages need none.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> [unpacked_bytes(find_shape("qwen3.6-27b").config, 1000, kv) for kv in ("f16", "5bit")]
    [0, 4194304]
    """
    if known_kv(kv).sides == ("f16", "f16"):
        return 0
    return 4 * widest(config)[1] * -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def prefill_bytes(config: ModelConfig, tokens: int, precision: Math = Math.BF16, kv: str = "f16") -> int:
    """Bound the workspace of a target's prefill of `tokens` tokens: residual streams of one chunk, inputs and outputs
    of its experts, keys and values of one layer in 16 bits (or its unpacked pages, if `kv` is quantised), and operands
    of products and attention in `precision`."""
    together = min(tokens, chunk_tokens("cuda", precision))
    streams = STREAMS * 4 * config.hidden * together
    experts = expert_bytes(config, together)
    rounded = product_bytes(config, together, precision)
    layer = max(2 * 2 * tokens * widest(config)[1], unpacked_bytes(config, tokens, kv))
    codes = 0 if precision is Math.BF16 or together < BYTE_QUERIES else code_bytes(config, tokens)
    return SCRATCH + streams + experts + rounded + layer + codes


def code_bytes(config: ModelConfig, tokens: int) -> int:
    """Compute the bytes of one layer's 8-bit keys, with heads of 64 and 128 also values, of the widest layer with
    them."""
    sizes = map(config.heads_of, byte_layers(config))
    return max((tokens * s.kv_heads * s.head_dim * (1 + (s.head_dim in HEAD_DIMS)) for s in sizes), default=0)


def product_bytes(config: ModelConfig, tokens: int, precision: Math) -> int:
    """Compute the bytes of the 8-bit operands of a layer's largest product; 0 in BF16. Gate and up of a feed-forward
    are one product."""
    if precision is Math.BF16 or tokens < ROUNDED_TOKENS:
        return 0
    shapes = [t.shape for t in layer_matrices(config) if is_eligible(t.name, t.shape)]
    gated = [(2 * rows, width) for rows, width in shapes if width == config.hidden and rows in config.ffn]
    return max((workspace_bytes(tokens, rows, width) for rows, width in (*shapes, *gated)), default=0)


def layer_matrices(config: ModelConfig) -> list[TensorSpec]:
    """Return the matrices of all layers without those of experts."""
    return [t for t in model_tensors(config) if t.kind == "matrix" and layer_of(t.name) is not None]


def expert_bytes(config: ModelConfig, tokens: int) -> int:
    """Compute the workspace of the experts of one layer: 16-bit rows sorted by expert, with each expert's last block
    padded; and scales of gate and up as the portable kernels read them, eight values per byte."""
    e = config.experts
    if e is None:
        return 0
    rows = e.used * tokens + e.count * BLOCK_SM90
    return 2 * rows * (2 * config.hidden + 3 * e.width) + 2 * e.count * e.width * config.hidden // 8


def scoring_bytes(config: ModelConfig, tokens: int, precision: Math = Math.BF16) -> int:
    """Bound the workspace of a drafter that scores `tokens` tokens layer by layer: two float32 residual streams of the
    prompt, its queries three times in 16 bits, keys and values four times, and operands of products in `precision`."""
    q, kv = widest(config)
    rounded = product_bytes(config, min(tokens, chunk_on_device(config)), precision)
    return SCRATCH + rounded + tokens * (2 * 4 * config.hidden + 3 * 2 * q + 4 * 2 * 2 * kv)


RESERVED = 32768
"""Tokens of prompt and answer for which cache and workspace are reserved next to the weights: the length of a prompt is
unknown when weights are placed, and they are not moved later."""


@dataclass(frozen=True)
class ColdPlacement:
    """Placement of the weights of a mixture of experts."""

    layers: tuple[int, ...]  # layers whose experts are offloaded, ascending
    host: int  # bytes of offloaded experts
    device: int  # bytes of all other weights, and of the ring into which experts are copied


def cold_layers(
    config: ModelConfig, weights: int, stacks: Stacks, room: int, precision: Math = Math.BF16
) -> ColdPlacement:
    """Choose the layers whose experts are offloaded: as few as leave `room` for `RESERVED` tokens, or all.

    They are evenly spaced, so that each copy overlaps with the layers before it. `weights`: bytes of all weights;
    `stacks`: see `stack_bytes`.
    """
    most, room_left = len(stacks), room - work_bytes(config, precision)
    for number in range(most + 1):
        placement = _placed(weights, stacks, spaced_layers(number, most))
        if placement.device <= room_left or number == most:
            return placement
    raise AssertionError("no layers")


def cold_within(
    config: ModelConfig, formats: Mapping[str, BlockFormat], room: int | None, precision: str = Math.BF16
) -> tuple[int, ...]:
    """Return the layers whose experts must be offloaded for a model to fit in `room`; empty without experts. For the
    precision `auto`, whose choice is not known before the weights are loaded, int8 is assumed."""
    if room is None or config.experts is None:
        return ()
    try:
        weights = sum(row.nbytes for row in device_weights(config, formats))
        assumed = Math.INT8 if (requested := read_precision(precision, "precision")) == AUTO else Math(requested)
        return cold_layers(config, weights, stack_bytes(config, formats), room, assumed).layers
    except (ModelError, KeyError):  # loading reports what is wrong or missing
        return ()


def least_cold(config: ModelConfig, weights: int, stacks: Stacks, work: int) -> int | None:
    """Compute the least device memory of a mixture with the experts of all layers offloaded. None for a model without
    experts, and if cache and workspace of the request exceed what is reserved for them."""
    workspace = work_bytes(config)
    return (
        _placed(weights, stacks, tuple(range(len(stacks)))).device + workspace if stacks and work <= workspace else None
    )


def work_bytes(config: ModelConfig, precision: Math = Math.BF16) -> int:
    """Compute the bytes that are reserved for cache and workspace when weights are placed."""
    tokens = min(RESERVED, config.context)
    return state_bytes(config) + kv_bytes(config, tokens, "f16") + prefill_bytes(config, tokens, precision)


def spaced_layers(number: int, most: int) -> tuple[int, ...]:
    """Return `number` of `most` layers, evenly spaced, the last one among them."""
    return tuple((i + 1) * most // number - 1 for i in range(number))


def _placed(weights: int, stacks: Stacks, layers: tuple[int, ...]) -> ColdPlacement:
    host = sum(sum(stacks[layer]) for layer in layers)
    return ColdPlacement(layers, host, weights - host + ring_bytes([stacks[layer] for layer in layers]))
