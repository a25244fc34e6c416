"""The work of a pass by kind of kernel: operations, bytes and launches, derived from the configuration alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil

from sp.models.architectures.base import find_architecture
from sp.models.config import ModelConfig
from sp.models.cost import prefill_cost
from sp.models.inspect.memory import kv_bytes, streamed_bytes
from sp.models.passes.forward import CHUNK
from sp.models.passes.layerwise import CHUNK_BY_LAYER
from sp.models.recording import RecordingStore
from sp.models.synthetic.shapes import find_shape
from sp.ops.attention.key_blocks import BLOCK

NORMED, ADDED, STORED, GATED = 2 * 6, 2 * 8, 4, 6
"""Bytes a value that surrounds products: two norms of a block read float32 and write bf16; two sums read and write
float32; q, k and v are read and stored in 16 bits; a gate is read beside the output, which is read and written."""


@dataclass(frozen=True)
class Work:
    """What all launches of one kind of kernel do together in a pass.

    Attributes
    ----------
    kind : str
        ``"matmul"``, ``"attention"``, ``"sparse"``, ``"select"``, ``"importance"``, ``"delta"``, ``"traffic"`` and,
        of a decoded token, ``"vector"``, ``"keys f16"``, ``"keys q4_0"``, ``"delta step"``.
    flops : float
        Tensor operations.
    nbytes : float
        Read from and written to the card's memory.
    launches : int
    exponentials : float
        Of attention, one a pair and head.
    """

    kind: str
    flops: float
    nbytes: float
    launches: int
    exponentials: float = 0.0


@dataclass(frozen=True)
class Weights:
    """A model as far as time goes.

    Attributes
    ----------
    config : ModelConfig
    nbytes : int
        Of the weights that a pass reads, see `streamed_bytes`.
    """

    config: ModelConfig
    nbytes: int

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
    c = model.config
    return [*_common(model, tokens, CHUNK["cuda"]), _attention(c, tokens, "attention", 1.0, CHUNK["cuda"])]


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
        return [*found, _attention(c, tokens, "attention", 1.0, tokens)]
    sparse = _attention(c, tokens, "sparse", density, tokens)
    scores = sparse.flops / density / (2 * BLOCK)  # of mean keys, and no values
    return [*found, sparse, Work("select", scores, 0.0, sparse.launches)]


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
    shapes = [shape for layer in _matrices(c)[:-1] for shape in layer]
    attending, recurrent = len(c.attention_layers), len(c.delta_layers)
    flops = 2.0 * tokens * sum(rows * width for rows, width in shapes)
    launches = len(shapes) - (c.layers - 1)  # gate and up go together
    yield Work("matmul", flops, chunks * model.nbytes, chunks * launches)
    yield Work("delta", prefill_cost(c, tokens).delta, 0.0, 4 * chunks * recurrent)
    q, kv = c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim
    around = c.layers * (NORMED + ADDED) * c.hidden + attending * (STORED * (q + kv) + (GATED * q if c.gated else 0))
    yield Work("traffic", 0.0, float(tokens * around), chunks * (2 * c.layers + attending * (2 if c.gated else 1)))


def _attention(config: ModelConfig, tokens: int, kind: str, share: float, chunk: int) -> Work:
    """Attention of all layers but the last over a share of the causal pairs."""
    layers = len(config.attention_layers) - (config.kinds[-1] == "attention")
    pairs = layers * config.heads * share * tokens * (tokens + 1) / 2
    return Work(kind, 4.0 * config.head_dim * pairs, 0.0, ceil(tokens / chunk) * layers, pairs)


@cache
def _matrices(config: ModelConfig) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Shapes of every layer's matrices."""
    found = []
    for layer in range(config.layers):
        store = RecordingStore(config)
        find_architecture(config.architecture).block(store, layer)
        found.append(tuple(one.shape for one in store.tensors.values() if one.kind == "matrix"))
    return tuple(found)
