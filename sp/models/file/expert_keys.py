"""What files say of experts: their keys to an `ExpertConfig` and back."""

from __future__ import annotations

from sp import values
from sp.gguf import Value
from sp.models.config import ExpertConfig
from sp.models.file.metadata_keys import Keys

MOST_EXPERTS = 1 << 12
"""More than any model has."""


def read_experts(keys: Keys, *, shared: bool) -> ExpertConfig:
    """Sizes of the experts of every layer.

    Parameters
    ----------
    keys : Keys
    shared : bool
        Whether the family has an expert that all tokens pass.

    Raises
    ------
    ModelError
        For a missing or senseless key.

    Examples
    --------
    >>> told = {"expert_count": 256, "expert_used_count": 8, "expert_feed_forward_length": 512}
    >>> read_experts(Keys("m", {f"m.{key}": value for key, value in told.items()}, "m.gguf"), shared=False).active
    4096
    """
    count = keys.count("expert_count", most=MOST_EXPERTS)
    used = keys.count("expert_used_count")
    if used > count:
        keys.refuse("expert_used_count", f"is {used} of {count} experts")
    normalised = keys.get("expert_weights_norm")
    if normalised is not None and values.flag(normalised) is None:
        keys.refuse("expert_weights_norm", f"is {values.shown(normalised)}; it is true or false")
    return ExpertConfig(
        count=count,
        used=min(used, count),
        width=keys.count("expert_feed_forward_length"),
        shared=keys.count("expert_shared_feed_forward_length") if shared else 0,
        # Without the key llama.cpp normalises, src/models/qwen3moe.cpp.
        normalised=True if normalised is None else bool(values.flag(normalised)),
    )


def expert_metadata(config: ExpertConfig) -> dict[str, Value]:
    """The keys that `read_experts` reads, without prefix."""
    found: dict[str, Value] = {
        "expert_count": config.count,
        "expert_used_count": config.used,
        "expert_feed_forward_length": config.width,
    }
    if config.shared:
        found["expert_shared_feed_forward_length"] = config.shared
    if not config.normalised:
        found["expert_weights_norm"] = False
    return found
