"""Keys: numbers out of a model file's metadata, each checked when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sp.errors import ModelError

MAX_SIZE = 1 << 24
"""No width, count or head size of a real model comes near; a larger one is a damaged file."""


class Keys:
    """Checked access to the keys of one architecture.

    Parameters
    ----------
    arch : str
        What the keys begin with.
    metadata : mapping
    path : str
        For messages.

    Raises
    ------
    ModelError
        From the methods: a key is missing or senseless; the message names key and file.

    Examples
    --------
    >>> Keys("qwen3", {"qwen3.block_count": 28}, "model.gguf").count("block_count")
    28
    """

    def __init__(self, arch: str, metadata: Mapping[str, Any], path: str) -> None:
        self.arch, self.metadata, self.path = arch, metadata, path

    def error(self, key: str, what: str) -> ModelError:
        return ModelError(f"{self.path}: key {self.arch}.{key} {what}")

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.arch}.{key}")

    def forbid_rope_scaling(self) -> None:
        """A file that asks for YaRN or linear scaling would run, and be wrong."""
        kind = self.get("rope.scaling.type")
        if kind is not None and str(kind) != "none":  # what a damaged file has here may be no string
            raise self.error("rope.scaling.type", f"is {short(kind)}; sp supports unscaled RoPE only")

    def count(self, key: str, *, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """A whole number in [least, most]."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        return self._whole(key, value, least, most)

    def _whole(self, key: str, value: Any, least: int, most: int) -> int:
        if value is None:
            raise self.error(key, "is missing; the file does not describe a complete model")
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise self.error(key, f"is {short(value)}; a whole number is needed")
        if not least <= int(value) <= most:
            raise self.error(key, f"is {value}; it must lie in {least}..{most}")
        return int(value)

    def real(self, key: str, *, above: float) -> float:
        """A finite number greater than `above`."""
        value = self.get(key)
        if value is None:
            raise self.error(key, "is missing; the file does not describe a complete model")
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise self.error(key, f"is {short(value)}; a number is needed")
        if not (math.isfinite(value) and value > above):
            raise self.error(key, f"is {value}; it must be finite and greater than {above:g}")
        return float(value)

    def per_layer(self, key: str, layers: int, *, default: int | None = None, least: int = 1) -> list[int]:
        """One whole number a layer, from a scalar or from a list (which may cover blocks past the trunk)."""
        value = self.get(key)
        if isinstance(value, list | tuple | np.ndarray):
            if len(value) < layers:
                raise self.error(key, f"lists {len(value)} values for {layers} layers")
            return [self._whole(key, item, least, MAX_SIZE) for item in list(value)[:layers]]
        return [self.count(key, default=default, least=least)] * layers

    def uniform(self, key: str, layers: int, where: list[int], *, default: int | None = None) -> int:
        """A number that all layers of `where` share; a list may hold 0 in the other layers."""
        values = self.per_layer(key, layers, default=default, least=0)
        chosen = {values[i] for i in where}
        if len(chosen) != 1 or 0 in chosen:
            raise self.error(key, f"is {sorted(chosen)} over the attention layers; sp needs one positive value")
        return chosen.pop()


def short(value: Any) -> str:
    """A value for a message, cut to fit one line."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."
