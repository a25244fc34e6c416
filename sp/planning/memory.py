"""Device memory that models take: weights as they are packed, keys and values by pages, states; and bounds of the rest.

What is held is arithmetic: the very bytes that are reserved. What work takes besides is a bound fitted to recorded
peaks of requests (``results/*/ttft.jsonl``), which lie below the sum, by a tenth at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.kernels.specs.matmul.gemm_experts import BLOCK_SM90
from sp.models.cache.cache import ring_pages
from sp.models.cache.kv_type import checked_kv, known_kv
from sp.models.config import ModelConfig
from sp.models.file.weights import TensorSpec, layer_of
from sp.models.layer.cold_experts import ring_bytes
from sp.models.network.arithmetic import AUTO, is_eligible, read_precision
from sp.models.network.weights import model_tensors
from sp.models.run.chunked import chunk_tokens
from sp.models.run.layer_major import chunk_on_device
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.ops.matmul.byte_products import workspace_bytes
from sp.ops.matmul.fragment_order import plane_offsets
from sp.quant import F32, FORMATS, BlockFormat, Math
from sp.quant.repack import EXACT_TERMS, device_format, is_split

Stacks = tuple[tuple[int, ...], ...]  # bytes of every stack of experts, by layer
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
STREAMS = 16  # residual streams in float32 that the work on one chunk takes, at most
SCRATCH = 640 << 20  # what is left over between stages: partial sums, graphs, pieces of free memory


@dataclass
class Held:
    """Tensors of one format in a file, and what the device makes of them."""

    source: str  # format in the file
    targets: list[str]  # formats on the device, the first met first
    tensors: int = 0  # tensors, source_bytes, nbytes: how many, and their bytes in the file and on the device
    source_bytes: int = 0
    nbytes: int = 0


def held_weights(
    config: ModelConfig, formats: Mapping[str, BlockFormat], gpus: int = 1, depth: int | None = None
) -> list[Held]:
    """Return the weights that the device holds, one row per format of the file, the most bytes first; a head tied to
    the embedding is held once more, packed. Of `gpus` that share it, `config` says what one has, but for the head, of
    which a part is held; `depth`: layers without the head. KeyError: a tensor is missing; ModelError: a matrix has no
    packed form."""
    rows: dict[str, Held] = {}
    tied = depth is None and HEAD not in formats
    for tensor in model_tensors(config, formats, depth):
        fmt = formats[tensor.name]
        row = rows.setdefault(fmt.name, Held(fmt.name, []))
        row.tensors += 1
        row.source_bytes += fmt.nbytes(tensor.shape)
        for target, nbytes in _places(tensor, fmt, tied, gpus):
            row.nbytes += nbytes
            if target not in row.targets:
                row.targets.append(target)
    return sorted(rows.values(), key=lambda row: -row.nbytes)


def file_formats(file: GGUFFile) -> dict[str, BlockFormat]:
    """Formats of a file's tensors by their names, but for those that are not known."""
    return {name: FORMATS[info.ggml_type] for name, info in file.tensors.items() if info.ggml_type in FORMATS}


def stack_bytes(config: ModelConfig, formats: Mapping[str, BlockFormat]) -> Stacks:
    """Bytes of every stack of experts on the device, by layer; none of a model without experts. Parameters and errors
    as for `held_weights`."""
    if config.experts is None:
        return ()
    by_layer: list[list[int]] = [[] for _ in config.kinds]
    for tensor in model_tensors(config, formats):
        layer = layer_of(tensor.name)
        if tensor.kind == "stack" and layer is not None:
            by_layer[layer].append(sum(nbytes for _, nbytes in _places(tensor, formats[tensor.name], tied=False)))
    return tuple(tuple(sizes) for sizes in by_layer)


def streamed_bytes(config: ModelConfig, formats: Mapping[str, BlockFormat], gpus: int = 1) -> int:
    """Bytes of the weights that a pass reads: those that are held but the table of embeddings, of which it reads rows.
    Arguments and errors as for `held_weights`."""
    table = device_format(formats[EMBEDDING], config.hidden, table=True).row_bytes(config.hidden)
    return sum(row.nbytes for row in held_weights(config, formats, gpus)) - config.vocab * table


def _places(tensor: TensorSpec, fmt: BlockFormat, tied: bool, gpus: int = 1) -> list[tuple[str, int]]:
    """Format and bytes of each copy on one of so many devices."""
    if tensor.picked:
        parts = [replace(tensor, shape=shape, picked=()) for shape in tensor.parts]
        return [place for part in parts for place in _places(part, fmt, tied, gpus)]
    if tensor.kind not in ("matrix", "stack"):
        return [(F32.name, 4 * tensor.size)]
    copies, width = [], tensor.shape[-1]
    rows = tensor.size // width  # of a stack one matrix under the other
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
    """Bytes of the keys and values of so many tokens that are read once, in whole pages, all attention layers: those
    with a window keep what it reaches."""
    total, pages = 0, -(-tokens // PAGE_TOKENS)
    for layer in config.attention_layers:
        sizes, window = config.heads_of(layer), config.window_of(layer)
        kv_type = checked_kv(kv, sizes.head_dim, False, "cpu")
        row = kv_type.k.row_bytes(sizes.head_dim) + kv_type.v.row_bytes(sizes.head_dim)
        total += min(pages, ring_pages(window)) * sizes.kv_heads * row
    return PAGE_TOKENS * total


def widest(config: ModelConfig) -> tuple[int, int]:
    """Values that a token has of queries, and of keys, in the attention layer where they are most."""
    sizes = config.head_sizes
    return max(s.heads * s.head_dim for s in sizes), max(s.kv_heads * s.head_dim for s in sizes)


def state_bytes(config: ModelConfig) -> int:
    """Bytes of all recurrent states, whatever the length of the text."""
    d = config.delta
    if d is None:
        return 0
    return 4 * len(config.delta_layers) * ((d.conv_kernel - 1) * d.conv_dim + d.value_heads * d.head_dim**2)


def least_bytes(config: ModelConfig, weights: int, tokens: int, kv: str) -> int:
    """Bytes that a model cannot do without to hold so many tokens: weights as they are held, states, keys, values."""
    return weights + state_bytes(config) + kv_bytes(config, tokens, kv)


def unpacked_bytes(config: ModelConfig, tokens: int, kv: str) -> int:
    """Bytes that a prefill over packed pages takes to unpack them to float16: keys and values of all tokens that it
    reads, in whole pages, of the widest layer. Float16 pages are read as they are.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> [unpacked_bytes(find_shape("qwen3.6-27b").config, 1000, kv) for kv in ("f16", "5bit")]
    [0, 4194304]
    """
    if known_kv(kv).sides == ("f16", "f16"):
        return 0
    return 4 * widest(config)[1] * -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def reading_bytes(config: ModelConfig, tokens: int, precision: Math = Math.BF16, kv: str = "f16") -> int:
    """Bound of what a target's prefill of so many tokens takes beside weights, cache and states: streams of one chunk,
    what its experts are given and give, keys and values of one layer in 16 bits, which are packed pages of `kv` where
    they are unpacked, and what products in `precision` take."""
    together = min(tokens, chunk_tokens("cuda", precision))
    streams = STREAMS * 4 * config.hidden * together
    experts = expert_bytes(config, together)
    rounded = product_bytes(config, together, precision)
    layer = max(2 * 2 * tokens * widest(config)[1], unpacked_bytes(config, tokens, kv))
    return SCRATCH + streams + experts + rounded + layer


def product_bytes(config: ModelConfig, tokens: int, precision: Math) -> int:
    """Bytes that the largest product of a layer takes for its operands rounded to bytes; none in BF16. Gate and up of a
    feed-forward are one product."""
    if precision is Math.BF16 or tokens < ROUNDED_TOKENS:
        return 0
    shapes = [t.shape for t in layer_matrices(config) if is_eligible(t.name, t.shape)]
    gated = [(2 * rows, width) for rows, width in shapes if width == config.hidden and rows in config.ffn]
    return max((workspace_bytes(tokens, rows, width) for rows, width in (*shapes, *gated)), default=0)


def layer_matrices(config: ModelConfig) -> list[TensorSpec]:
    """Return the matrices of all layers without those of experts."""
    return [t for t in model_tensors(config) if t.kind == "matrix" and layer_of(t.name) is not None]


def expert_bytes(config: ModelConfig, tokens: int) -> int:
    """Bytes that experts of one layer take beside their weights: rows sorted by expert, each one's last block padded,
    in 16 bits; and scales of gate and up as the portable kernels read them, of eight values a byte."""
    e = config.experts
    if e is None:
        return 0
    rows = e.used * tokens + e.count * BLOCK_SM90
    return 2 * rows * (2 * config.hidden + 3 * e.width) + 2 * e.count * e.width * config.hidden // 8


def scoring_bytes(config: ModelConfig, tokens: int, precision: Math = Math.BF16) -> int:
    """Bound of what a drafter takes beside its weights to score so many tokens layer by layer: the prompt's stream in
    float32, twice, its queries in 16 bits, three times, keys and values, four times; and what products in `precision`
    take."""
    q, kv = widest(config)
    rounded = product_bytes(config, min(tokens, chunk_on_device(config)), precision)
    return SCRATCH + rounded + tokens * (2 * 4 * config.hidden + 3 * 2 * q + 4 * 2 * 2 * kv)


RESERVED = 32768
"""Tokens of prompt and answer that work and cache have room for beside the weights: a prompt's length is not known when
weights are placed, and they stay where they are."""


@dataclass(frozen=True)
class ColdPlacement:
    """Where the weights of a mixture lie."""

    layers: tuple[int, ...]  # whose experts wait in host memory, ascending
    host: int  # bytes of those
    device: int  # bytes of all other weights, and of the room that experts are brought to


def cold_layers(
    config: ModelConfig, weights: int, stacks: Stacks, room: int, precision: Math = Math.BF16
) -> ColdPlacement:
    """Choose as few offloaded layers as leave `room` for the work on `RESERVED` tokens, or all, evenly spaced,
    so that a copy overlaps with the layers between two of them. `weights`: bytes of all, if none waits; `stacks`:
    see `stack_bytes`."""
    most, room_left = len(stacks), room - work_bytes(config, precision)
    for number in range(most + 1):
        placement = _placed(weights, stacks, spaced_layers(number, most))
        if placement.device <= room_left or number == most:
            return placement
    raise AssertionError("no layers")


def cold_within(
    config: ModelConfig, formats: Mapping[str, BlockFormat], room: int | None, precision: str = Math.BF16
) -> tuple[int, ...]:
    """Layers whose experts have to wait in host memory for a model to have room; none of one without experts. What
    `auto` will choose is not known yet: int8 is assumed."""
    if room is None or config.experts is None:
        return ()
    try:
        weights = sum(row.nbytes for row in held_weights(config, formats))
        reckoned = Math.INT8 if (requested := read_precision(precision, "precision")) == AUTO else Math(requested)
        return cold_layers(config, weights, stack_bytes(config, formats), room, reckoned).layers
    except (ModelError, KeyError):  # what is wrong or missing is for loading to say
        return ()


def least_cold(config: ModelConfig, weights: int, stacks: Stacks, work: int) -> int | None:
    """Bytes of device memory from which on a mixture runs because its experts wait. None of a model without experts,
    and where the cache and the work of a request take more than was kept for them."""
    workspace = work_bytes(config)
    return (
        _placed(weights, stacks, tuple(range(len(stacks)))).device + workspace if stacks and work <= workspace else None
    )


def work_bytes(config: ModelConfig, precision: Math = Math.BF16) -> int:
    """Bytes that are kept for cache and work when weights are placed."""
    tokens = min(RESERVED, config.context)
    return state_bytes(config) + kv_bytes(config, tokens, "f16") + reading_bytes(config, tokens, precision)


def spaced_layers(number: int, most: int) -> tuple[int, ...]:
    """Return `number` of `most` layers, evenly spaced, the last one among them."""
    return tuple((i + 1) * most // number - 1 for i in range(number))


def _placed(weights: int, stacks: Stacks, layers: tuple[int, ...]) -> ColdPlacement:
    host = sum(sum(stacks[layer]) for layer in layers)
    return ColdPlacement(layers, host, weights - host + ring_bytes([stacks[layer] for layer in layers]))
