"""The work of a pass by kind of kernel: operations, bytes and launches, derived from the configuration alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil

from sp.models.architectures.base import find_architecture
from sp.models.config import ModelConfig
from sp.models.cost import prefill_cost
from sp.models.inspect.memory import kv_bytes, streamed_bytes
from sp.models.passes.forward import chunk_tokens
from sp.models.passes.layerwise import CHUNK_BY_LAYER
from sp.models.recording import RecordingStore, Tensor
from sp.models.synthetic.shapes import find_shape
from sp.models.timing.rounded import NOTHING, Rounded
from sp.models.timing.tiles import Product
from sp.ops.attention.byte_attention.attend import BYTE_QUERIES
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.byte_rows.rows import ROUNDED_TOKENS

NORMED, ADDED, STORED, GATED = 2 * 6, 2 * 8, 4, 6
"""Bytes a value that surrounds products: two norms of a block read float32 and write bf16; two sums read and write
float32; q, k and v are read and stored in 16 bits; a gate is read beside the output, which is read and written."""
ROUNDING = 4
"""Bytes a key or value that is rounded for attention in eight bits, as records of that count them."""
AROUND = 2
"""Launches of a product in int8, with what finds loud channels, rounds its inputs and gathers what meets these: of
three that share inputs there are four, and as many of gate and up."""
IN_BYTES = ("matmul int8", "attention int8")
"""Kinds whose operations are those of int8 (of attention the second half e4m3, at the same rate). The kernel of such
attention reads all blocks or those of lists; what it is fitted to are lists."""


@dataclass(frozen=True)
class Work:
    """What all launches of one kind of kernel do together in a pass.

    Attributes
    ----------
    kind : str
        ``"matmul"``, ``"attention"``, ``"sparse"``, ``"select"``, ``"importance"``, ``"delta"``, ``"traffic"``; in
        eight bits ``"matmul int8"`` (with what rounds its operands), ``"attention int8"`` and ``"rounding"`` of keys
        and values for it; of a decoded token ``"vector"``, ``"keys f16"``, ``"keys q4_0"``, ``"delta step"``.
    flops : float
        Tensor operations.
    nbytes : float
        Read from and written to the card's memory.
    launches : int
    exponentials : float
        Of attention in 16 bits, one a pair and head; that in eight asks for none.
    products : tuple of (Product, int)
        What `flops` are of, and how often, where that is known: see `sp.models.timing.tiles`.
    blocks : int
        Of threads that do it side by side, where that may be fewer than a card has multiprocessors; 0 if it never is.
    """

    kind: str
    flops: float
    nbytes: float
    launches: int
    exponentials: float = 0.0
    products: tuple[tuple[Product, int], ...] = ()
    blocks: int = 0


@dataclass(frozen=True)
class Weights:
    """A model as far as time goes.

    Attributes
    ----------
    config : ModelConfig
    nbytes : int
        Of the weights that a pass reads, see `streamed_bytes`.
    rounded : Rounded
        What is made in int8 where prompts are read.
    """

    config: ModelConfig
    nbytes: int
    rounded: Rounded = NOTHING

    @classmethod
    def of_shape(cls, name: str, file_type: str) -> Weights:
        """A named shape in a file type; ConfigError where either is unknown."""
        shape = find_shape(name)
        formats = {tensor: fmt for tensor, _, fmt in shape.plan(file_type)}
        return cls(shape.config, streamed_bytes(shape.config, formats))


def reading(model: Weights, tokens: int) -> list[Work]:
    """The work of a prefill of so many tokens, chunk by chunk; the last layer's is that of one row, and left out.

    Examples
    --------
    >>> work = reading(Weights.of_shape("qwen3.6-27b", "q4_k_m"), 8192)
    >>> [(one.kind, one.launches) for one in work]
    [('matmul', 426), ('delta', 192), ('traffic', 160), ('attention', 15)]
    """
    chunk = chunk_tokens("cuda", model.rounded.math)
    return [*_common(model, tokens, chunk), *_attention(model, tokens, "attention", 1.0, chunk)]


def scoring(model: Weights, tokens: int, density: float | None = None) -> list[Work]:
    """The work of a drafter's reading, layer by layer, that takes the attention of the last tokens for importance.

    With a `density` attention reads that share of its causal blocks, once the strongest are chosen; else all of them.

    Examples
    --------
    >>> work = scoring(Weights.of_shape("qwen3-0.6b", "bf16"), 131072, 0.05)
    >>> [one.kind for one in work]
    ['matmul', 'delta', 'traffic', 'importance', 'sparse', 'select']
    """
    c, layers = model.config, len(model.config.attention_layers)
    read = layers * 2.0 * tokens * c.kv_heads * c.head_dim
    found = [*_common(model, tokens, CHUNK_BY_LAYER["cuda"]), Work("importance", 0.0, read, 4 * layers)]
    if density is None:
        return [*found, *_attention(model, tokens, "attention", 1.0, tokens)]
    scores = 4.0 * c.head_dim * _pairs(c, tokens, 1.0) / (2 * BLOCK)  # of mean keys, and no values
    return [*found, *_attention(model, tokens, "sparse", density, tokens), Work("select", scores, 0.0, _attending(c))]


def step(model: Weights, context: int, kv: str) -> list[Work]:
    """The work of decoding one token after `context` others, with keys and values cached as `kv`.

    Examples
    --------
    >>> work = step(Weights.of_shape("qwen3.6-27b", "q4_k_m"), 8192, "f16")
    >>> [(one.kind, one.launches) for one in work]
    [('vector', 257), ('keys f16', 16), ('delta step', 48)]
    """
    c, d = model.config, model.config.delta
    found = [
        Work("vector", 0.0, model.nbytes, 4 * c.layers + 1),
        Work(f"keys {kv}", 0.0, kv_bytes(c, context, kv), len(c.attention_layers)),
    ]
    if d is None:
        return found
    state = 2 * 4.0 * d.value_heads * d.head_dim**2  # read and written, float32
    return [*found, Work("delta step", 0.0, state * len(c.delta_layers), len(c.delta_layers))]


def _common(model: Weights, tokens: int, chunk: int) -> Iterator[Work]:
    """What a prefill and a scoring have in common: all but attention and what chooses for it."""
    c, chunks = model.config, ceil(tokens / chunk)
    attending, recurrent = len(c.attention_layers), len(c.delta_layers)
    yield from _products(model, tokens, chunk)
    yield Work("delta", prefill_cost(c, tokens).delta, 0.0, 4 * chunks * recurrent, blocks=scan_blocks(c))
    q, kv = c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim
    around = c.layers * (NORMED + ADDED) * c.hidden + attending * (STORED * (q + kv) + (GATED * q if c.gated else 0))
    yield Work("traffic", 0.0, float(tokens * around), chunks * (2 * c.layers + attending * (2 if c.gated else 1)))


def scan_blocks(config: ModelConfig) -> int:
    """Blocks that go through a recurrent layer's tokens one after the other: two a head, each with half its values."""
    return 0 if config.delta is None else 2 * config.delta.value_heads


def _products(model: Weights, tokens: int, chunk: int) -> Iterator[Work]:
    """Products with the matrices of all layers but the last, those in int8 apart; short runs have none of these."""
    matrices = [one for layer in _matrices(model.config)[:-1] for one in layer]
    marked: list[Tensor] = []
    others: list[Tensor] = []
    for one in matrices:
        (marked if model.rounded.takes(one) else others).append(one)
    runs = [n for _, n in _runs(tokens, chunk)]
    long = [n for n in runs if n >= ROUNDED_TOKENS] if marked else []
    size, chunks = sum(one.size for one in matrices), ceil(tokens / chunk)
    rounded = sum(one.size for one in marked)
    flops, nbytes, launches = 2.0 * sum(long) * rounded, len(long) * model.nbytes * rounded / size, _launches(marked)
    yield Work(
        "matmul", 2.0 * tokens * size - flops, chunks * model.nbytes - nbytes,
        chunks * _launches(matrices) - len(long) * launches,
        products=_made([(long, others), ([n for n in runs if n not in long], matrices)]),
    )  # fmt: skip
    if long:
        yield Work("matmul int8", flops, nbytes, AROUND * len(long) * launches, products=_made([(long, marked)]))


def _made(all_of_them: Iterable[tuple[list[int], list[Tensor]]]) -> tuple[tuple[Product, int], ...]:
    """Runs of so many tokens times matrices, each with how often it comes; gate and up go together."""
    found: Counter[Product] = Counter()
    for runs, matrices in all_of_them:
        shapes = Counter((one.shape, one.name.endswith("ffn_up.weight")) for one in matrices)
        shapes -= Counter((one.shape, False) for one in matrices if one.name.endswith("ffn_gate.weight"))
        for tokens, often in Counter(runs).items():
            for (shape, gated), count in shapes.items():
                found[Product(tokens, shape[0], shape[1], gated)] += often * count
    return tuple(found.items())


def _launches(matrices: list[Tensor]) -> int:
    """Gate and up of a feed-forward go together."""
    return sum(not one.name.endswith("ffn_gate.weight") for one in matrices)


def _attention(model: Weights, tokens: int, kind: str, share: float, chunk: int) -> Iterator[Work]:
    """Attention of all layers but the last over a share of the causal pairs, long runs in eight bits if they may be."""
    c, layers, runs = model.config, _attending(model.config), list(_runs(tokens, chunk))
    long = [(start, n) for start, n in runs if model.rounded.attention and n >= BYTE_QUERIES]
    in_bytes = sum(_pairs(c, start + n, share) - _pairs(c, start, share) for start, n in long)
    others = _pairs(c, tokens, share) - in_bytes
    if len(long) < len(runs):
        yield Work(kind, 4.0 * c.head_dim * others, 0.0, (len(runs) - len(long)) * layers, others)
    if long:
        read = sum(start + n for start, n in long) * 2.0 * c.kv_heads * c.head_dim
        yield Work("attention int8", 4.0 * c.head_dim * in_bytes, 0.0, len(long) * layers)
        yield Work("rounding", 0.0, ROUNDING * layers * read, len(long) * layers)


def _pairs(config: ModelConfig, tokens: int, share: float) -> float:
    """A share of the causal pairs, of all heads and of all layers but the last."""
    return _attending(config) * config.heads * share * tokens * (tokens + 1) / 2


def _attending(config: ModelConfig) -> int:
    """Layers with attention, the last left out."""
    return len(config.attention_layers) - (config.kinds[-1] == "attention")


def _runs(tokens: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Where every chunk starts, and its tokens."""
    return ((start, min(chunk, tokens - start)) for start in range(0, tokens, chunk))


@cache
def _matrices(config: ModelConfig) -> tuple[tuple[Tensor, ...], ...]:
    """Every layer's matrices."""
    found = []
    for layer in range(config.layers):
        store = RecordingStore(config)
        find_architecture(config.architecture).block(store, layer)
        found.append(tuple(one for one in store.tensors.values() if one.kind == "matrix"))
    return tuple(found)
