"""Keys that files of most families share: reading them into a configuration, and writing them."""

from __future__ import annotations

from collections.abc import Sequence

from sp import values
from sp.gguf import Value
from sp.models.config import DeltaConfig, ExpertConfig, HeadSizes, LayerKind, ModelConfig
from sp.models.file.metadata_keys import Keys
from sp.models.file.rope_keys import read_rope, rope_metadata
from sp.models.file.weights import TensorFile
from sp.ops.rope import Pairing, Scaling

MOST_EXPERTS = 1 << 12  # limit against damaged files, above any real model


def read_experts(keys: Keys, *, shared: bool) -> ExpertConfig:
    """Read the sizes of the experts, the same in every layer. `shared`: True if the family has an expert that every
    token passes. ModelError for a missing or invalid key."""
    count = keys.count("expert_count", most=MOST_EXPERTS)
    used = keys.count("expert_used_count")
    if used > count:
        keys.refuse("expert_used_count", f"is {used} of {count} experts")
    normalised = keys.get("expert_weights_norm")
    if normalised is not None and values.flag(normalised) is None:
        keys.refuse("expert_weights_norm", f"is {values.preview(normalised)}; it is true or false")
    return ExpertConfig(
        count=count,
        used=min(used, count),
        width=keys.count("expert_feed_forward_length"),
        shared=keys.count("expert_shared_feed_forward_length") if shared else 0,
        # Without the key llama.cpp normalises, src/models/qwen3moe.cpp.
        normalised=True if normalised is None else bool(values.flag(normalised)),
    )


def expert_metadata(config: ExpertConfig) -> dict[str, Value]:
    """Return the keys that `read_experts` reads, without prefix."""
    metadata: dict[str, Value] = {
        "expert_count": config.count,
        "expert_used_count": config.used,
        "expert_feed_forward_length": config.width,
    }
    if config.shared:
        metadata["expert_shared_feed_forward_length"] = config.shared
    if not config.normalised:
        metadata["expert_weights_norm"] = False
    return metadata


def read_heads(keys: Keys, layers: int, where: list[int], suffix: str = "") -> HeadSizes:
    """Read the head sizes of the attention layers in `where`. `suffix`: suffix of the keys of their lengths. ModelError
    for a missing or invalid key."""
    hidden, length, width = (
        keys.count("embedding_length"),
        f"attention.key_length{suffix}",
        f"attention.value_length{suffix}",
    )
    heads = keys.uniform("attention.head_count", layers, where)
    kv_heads = keys.uniform("attention.head_count_kv", layers, where, default=heads)
    if heads % kv_heads:
        keys.refuse("attention.head_count_kv", f"is {kv_heads}, which does not divide {heads} heads")
    # Without the keys a head is ``hidden / heads`` wide, if that is a whole number.
    even = None if hidden % heads else hidden // heads
    head_dim, value_dim = keys.count(length, default=even), keys.count(width, default=even)
    if value_dim != head_dim:
        keys.refuse(width, f"is {value_dim}; it must equal the key length {head_dim}")
    return HeadSizes(heads, kv_heads, head_dim)


def shared_config(
    keys: Keys,
    file: TensorFile,
    *,
    heads: HeadSizes | None = None,
    kinds: Sequence[LayerKind] = (),
    gated: bool = False,
    delta: DeltaConfig | None = None,
    experts: ExpertConfig | None = None,
    pairing: Pairing = "halves",
    scaling: Scaling | None = None,
    base: float | None = None,
    quieted: bool = False,
) -> ModelConfig:
    """Read what families have in common; the arguments provide the rest.

    `file`: its embedding gives the size of the vocabulary. `heads`: of attention layers; by default read by
    `read_heads`, the same for all. `kinds`: token mixer of every layer; attention in all by default. `gated`, `delta`,
    `experts`: see `ModelConfig`; with experts in every layer files need no ``feed_forward_length``. `pairing`,
    `scaling`: see `Rope`; a scaling that keys do not describe. `base`: ``rope.freq_base`` of files without it; the key
    is required if omitted. `quieted`: see `read_rope`. ModelError for a missing or invalid key; the message names key
    and file.
    """
    # The number of tensors bounds the block count of a damaged file.
    layers = keys.layers(len(file.tensors))
    mixers: list[LayerKind] = list(kinds) or ["attention"] * layers
    with_attention = [i for i, kind in enumerate(mixers) if kind == "attention"]
    heads = heads or read_heads(keys, layers, with_attention)
    rope_dim = read_rope_dim(keys, heads.head_dim)
    most = keys.count("context_length", most=1 << 40)
    rope, context = read_rope(keys, rope_dim, most, pairing, scaling, base, quieted)
    return ModelConfig(
        architecture=keys.arch,
        hidden=keys.count("embedding_length"),
        vocab=keys.rows(file.tensors, "token_embd.weight"),
        context=context,
        ffn=tuple(keys.per_layer("feed_forward_length", layers)) if experts is None else (experts.active,) * layers,
        kinds=tuple(mixers),
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        rope=rope,
        eps=keys.real("attention.layer_norm_rms_epsilon", above=0.0),
        gated=gated,
        delta=delta,
        experts=experts,
    )


def read_rope_dim(keys: Keys, head_dim: int, suffix: str = "") -> int:
    """Read the number of values of a head that RoPE rotates: all without the key; ModelError if the number is
    impossible. `suffix`: suffix of the key."""
    key = f"rope.dimension_count{suffix}"
    rotated = keys.count(key, default=head_dim)
    if rotated % 2 or rotated > head_dim:
        keys.refuse(key, f"is {rotated}; it must be even and at most the head's {head_dim}")
    return rotated


WINDOW, WINDOWED = "attention.sliding_window", "attention.sliding_window_pattern"


def read_windows(keys: Keys, layers: int, window: int, every: int) -> tuple[int | None, ...]:
    """Read the window of each layer, from flags by layer or from a period: the last layer of each period has none.
    `every`: period of files without the key."""
    if values.as_list(keys.get(WINDOWED)) is not None and (flags := keys.flags(WINDOWED, layers)) is not None:
        return tuple(window if flag else None for flag in flags)
    return every_window(layers, window, keys.count(WINDOWED, default=every))


def every_window(layers: int, window: int, every: int) -> tuple[int | None, ...]:
    """Return the windows of all layers; the last layer of every period has none.

    >>> every_window(5, 96, 2)
    (96, None, 96, None, 96)
    """
    return tuple(None if (layer + 1) % every == 0 else window for layer in range(layers))


def window_metadata(windows: Sequence[int | None]) -> dict[str, Value]:
    """Return the keys that `read_windows` reads, without prefix: a period if it describes all layers, or flags."""
    window = next(window for window in windows if window is not None)
    every = next((layer + 1 for layer, window in enumerate(windows) if window is None), len(windows) + 1)
    periodic = tuple(windows) == every_window(len(windows), window, every)
    return {WINDOW: window, WINDOWED: every if periodic else [window is not None for window in windows]}


LEAST_CAP = 1e-3  # a smaller cap would flatten all scores, and the division by it would overflow


def read_softcap(keys: Keys, key: str) -> float | None:
    """Read a soft cap; None without one."""
    return keys.real(key, above=LEAST_CAP) if keys.is_set(key) else None


def shared_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the keys that `shared_config` reads, without prefix, in file order; RoPE rotates whole heads."""
    c = config
    width: dict[str, Value] = {"feed_forward_length": c.ffn[0] if len(set(c.ffn)) == 1 else list(c.ffn)}
    return {
        "block_count": c.layers,
        "context_length": c.context,
        "embedding_length": c.hidden,
        **(width if c.experts is None else expert_metadata(c.experts)),
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.eps,
        **rope_metadata(c.rope),
    }
