"""flops: the operations of a prefill, counted from the configuration alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

from sp.errors import ConfigError, ModelError
from sp.gguf import GGUFFile
from sp.models.config import ModelConfig
from sp.models.families.base import find_architecture
from sp.models.file.metadata_keys import SketchKeys, TensorShape
from sp.models.file.weights import RecordingStore
from sp.models.network.weights import model_tensors
from sp.ops.delta.gated_delta_net import CHUNK
from sp.quant import Weight

SCORING = 1 / 256
"""Cost of scoring one mean key per 128 keys, as a share of dense attention, which multiplies by keys and by values."""


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of a prefill, by part; a multiply-add counts as two.

    Attributes
    ----------
    weights : float
        Products with the weight matrices of the layers. The head is excluded, because a prefill computes one row of it.
    attention : float
        q·k and weights·v over the causal pairs of tokens that attention reads, and the selection of these pairs.
    delta : float
        The chunked Gated DeltaNet core and its convolution.
    """

    weights: float
    attention: float
    delta: float

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.weights + self.attention + self.delta


def matmul_params(config: ModelConfig, layer: int) -> int:
    """Count the weights of a layer that a token is multiplied by; of the experts, only those it is routed to."""
    store = RecordingStore(config)
    find_architecture(config.architecture).block(store, layer)
    dense = sum(prod(part) for tensor in store.tensors.values() if tensor.kind == "matrix" for part in tensor.parts)
    experts = sum(tensor.size for tensor in store.tensors.values() if tensor.kind == "stack")
    return dense + (experts * config.experts.used // config.experts.count if config.experts else 0)


def active_params(config: ModelConfig) -> int:
    """Sum `matmul_params` over all layers."""
    return sum(matmul_params(config, i) for i in range(config.layers))


def prefill_cost(config: ModelConfig, tokens: int, density: float = 1.0) -> Cost:
    """Count the operations of reading `tokens` tokens through every layer in full.

    Attention counts ``4 * heads * head_dim`` per causal pair. Gated DeltaNet counts its chunked form with chunks of 64
    tokens; the value heads of a key head share the products between q and k. Sparse attention, with a `density` below
    1, counts that share of the pairs, plus half a product per 128 keys for the selection.

    Examples
    --------
    >>> from sp.ops.rope import Rope
    >>> config = ModelConfig("qwen3", 1024, 151936, 40960, (3072,) * 28, ("attention",) * 28, 16, 8, 128,
    ...                      Rope(1e6, 128), 1e-6)
    >>> round(prefill_cost(config, 32768).attention / 1e15, 3)
    0.123
    """
    if tokens < 0:
        raise ConfigError(f"tokens is {tokens}; it must be 0 or more")
    # a causal query sees itself and all tokens before it
    pairs = tokens * (tokens + 1) / 2
    if not 0 <= density <= 1:
        raise ConfigError(f"density is {density}; it must lie in 0..1")
    share = density + (SCORING if density < 1 else 0)
    weights, attention, delta = _rates(config)
    # a window is already sparse: `density` applies to layers with full attention alone
    pair_values = sum(
        width * (pairs * share if window is None else _pairs(tokens, window)) for window, width in attention
    )
    return Cost(weights * tokens, 4.0 * pair_values, delta * tokens)


def flops(config: ModelConfig, tokens: int, kept: int | None = None, density: float = 1.0) -> float:
    """Count the floating-point operations to prefill a prompt of `tokens`, or only `kept` of them.

    Parameters
    ----------
    tokens : int
        Length of the prompt.
    kept : int, optional
        Tokens that are actually read; all by default. The others cost nothing.
    density : float
        Share of the causal blocks that attention reads, see `prefill_cost`.

    Returns
    -------
    float
        Sum of weights, attention and Gated DeltaNet; the head is excluded.

    Raises
    ------
    ConfigError
        Unless ``0 <= kept <= tokens`` and ``0 <= density <= 1``.

    Examples
    --------
    >>> from sp.ops.rope import Rope
    >>> config = ModelConfig("qwen3", 1024, 151936, 40960, (3072,) * 28, ("attention",) * 28, 16, 8, 128,
    ...                      Rope(1e6, 128), 1e-6)
    >>> flops(config, 32768) > 30 * flops(config, 32768, kept=3277)
    True
    """
    if kept is not None and not 0 <= kept <= tokens:
        raise ConfigError(f"kept is {kept}; it must lie in 0..{tokens}, the tokens of the prompt")
    return prefill_cost(config, tokens if kept is None else kept, density).total


def _pairs(tokens: int, window: int) -> float:
    """Count the pairs of a query and a visible token, itself included, within a window.

    >>> _pairs(5, 2), _pairs(5, 100)
    (9.0, 15.0)
    """
    beyond = max(0, tokens - window)
    return tokens * (tokens + 1) / 2 - beyond * (beyond + 1) / 2


@lru_cache(maxsize=64)
def _rates(config: ModelConfig) -> tuple[float, tuple[tuple[int | None, int], ...], float]:
    """Return three sums over all layers: operations of the weights per token, query values by window, and operations of
    Gated DeltaNet per token. Cached, because the search for a break-even length tries a thousand lengths while a
    request waits."""
    params = active_params(config)
    windows = Counter[int | None]()
    for layer in config.attention_layers:
        sizes = config.heads_of(layer)
        windows[config.window_of(layer)] += sizes.heads * sizes.head_dim
    return 2.0 * params, tuple(windows.items()), len(config.delta_layers) * _delta_per_token(config)


def _delta_per_token(config: ModelConfig) -> float:
    """Count the operations of one Gated DeltaNet core for one token, over all heads."""
    delta = config.delta
    if delta is None:
        return 0.0
    d, chunk = delta.head_dim, CHUNK
    state = 3 * 2 * d * d  # W S, Q S and the update of S
    inside = 3 * 2 * chunk * d  # U, W and the product with D
    inverse = chunk * chunk / 3
    products = 2 * 2 * chunk * d  # K Kᵀ and Q Kᵀ, once a key head
    conv = 2 * delta.conv_kernel * delta.conv_dim
    return delta.value_heads * (state + inside + inverse) + delta.key_heads * products + conv


class _NoTensors:
    """Stand-in for the file while its configuration is sketched: only tensor names are needed, and no data is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: Mapping[str, TensorShape] = {}

    def weight(self, name: str) -> Weight:
        raise ModelError(f"{self.path}: tensor {name} has no data here; a sketch of a model reads names alone")


def missing_tensors(architecture: str, file: GGUFFile) -> list[str]:
    """List the tensors that a forward pass needs and `file` lacks, those of blocks last. ``output.weight`` may be
    absent (a tied head) and so may the blocks of multi-token prediction. The metadata need not be complete or valid.
    ModelError if the architecture cannot interpret the metadata at all."""
    record = find_architecture(architecture)
    config = record.config(SketchKeys(record.name, file.metadata, str(file.path)), _NoTensors(file.path))
    names = [tensor.name for tensor in model_tensors(config, file.tensors)]
    return sorted((name for name in names if name not in file.tensors), key=lambda name: name.startswith("blk."))
