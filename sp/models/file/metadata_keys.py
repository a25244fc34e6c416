"""Keys: numbers out of a model file's metadata, each checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sp import values
from sp.errors import ModelError

MAX_SIZE = 1 << 24  # no width, count or head size of a real model comes near; a larger one is a damaged file
MAX_BLOCKS = 1 << 12  # more blocks than any model has: a limit to what a damaged file can have listed


class TensorShape(Protocol):
    """What a file's table says of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class Keys:
    """Checked access to the keys of one architecture. `arch`: what the keys begin with. `path`: for messages.
    ModelError: from the methods: a key is missing or senseless; the message names key and file."""

    def __init__(self, arch: str, metadata: Mapping[str, Any], path: str) -> None:
        self.arch, self.metadata, self.path = arch, metadata, path

    def error(self, key: str, what: str) -> ModelError:
        return ModelError(f"{self.path}: key {self.arch}.{key} {what}")

    def refuse(self, key: str, what: str) -> None:
        """Raise the `error` of a senseless value; what follows may assume sense, or that only names are wanted."""
        raise self.error(key, what)

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.arch}.{key}")

    def layers(self, tensors: int) -> int:
        """Blocks of the trunk, of a file of so many tensors; those of multi-token prediction are not counted."""
        blocks = self.count("block_count")
        if blocks > tensors:
            raise self.error("block_count", f"is {blocks}, but the file has {tensors} tensors")
        extra = self.count("nextn_predict_layers", default=0, least=0)
        if extra >= blocks:
            raise self.error("nextn_predict_layers", f"is {extra} of {blocks} blocks, which leaves no model")
        return blocks - extra

    def rows(self, tensors: Mapping[str, TensorShape], name: str) -> int:
        """Rows of a matrix that only a language model has."""
        info = tensors.get(name)
        if info is None or len(info.shape) != 2:
            raise ModelError(f"{self.path}: tensor {name} is missing or no matrix; is this a language model?")
        return int(info.shape[0])

    def count(self, key: str, *, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """A whole number in [least, most]."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        return self._whole(key, value, least, most)

    def _whole(self, key: str, value: Any, least: int, most: int) -> int:
        if value is None:
            raise self.error(key, "is missing; the file does not describe a complete model")
        found = values.whole(value)
        if found is None:
            raise self.error(key, f"is {values.shown(value)}; a whole number is needed")
        if not least <= found <= most:
            raise self.error(key, f"is {values.shown(found)}; it must lie in {least}..{most}")
        return found

    def real(self, key: str, *, above: float, default: float | None = None) -> float:
        """A finite number greater than `above`."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing; the file does not describe a complete model")
        found = values.real(value)
        if found is None or found <= above:
            what = f"it must be finite and greater than {above:g}" if values.is_number(value) else "a number is needed"
            raise self.error(key, f"is {values.shown(value)}; {what}")
        return found

    def is_set(self, key: str) -> bool:
        """Whether a key says anything: it is there, and neither 0 nor false nor empty."""
        value = self.get(key)
        items = values.listed(value)
        return bool(value) if items is None else len(items) > 0

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """One flag a layer, from a list (which may cover blocks past the trunk); None where there is none."""
        value = self.get(key)
        if value is None:
            return None
        items = values.listed(value)
        if items is None or len(items) < layers:
            raise self.error(key, f"is {values.shown(value)}, no list of at least {layers} flags")
        found = [values.flag(one) for one in items[:layers]]
        if None in found:
            raise self.error(key, f"is {values.shown(value)}; flags are true or false")
        return tuple(map(bool, found))

    def per_layer(self, key: str, layers: int, *, default: int | None = None, least: int = 1) -> list[int]:
        """One whole number a layer, from a scalar or from a list (which may cover blocks past the trunk)."""
        items = values.listed(self.get(key))
        if items is not None:
            if len(items) < layers:
                raise self.error(key, f"lists {len(items)} values for {layers} layers")
            return [self._whole(key, item, least, MAX_SIZE) for item in items[:layers]]
        return [self.count(key, default=default, least=least)] * layers

    def uniform(self, key: str, layers: int, where: list[int], *, default: int | None = None) -> int:
        """A number that all layers of `where` share; a list may hold 0 in the other layers."""
        found = self.per_layer(key, layers, default=default, least=0)
        chosen = {found[i] for i in where}
        if len(chosen) != 1 or 0 in chosen:
            told = values.shown(sorted(chosen))
            raise self.error(key, f"is {told} over the attention layers; sp needs one positive value")
        return chosen.pop()


class SketchKeys(Keys):
    """Keys of a file that may be incomplete or hostile, for the names of its tensors: what makes no sense is guessed.

    >>> keys = SketchKeys("qwen3", {"qwen3.block_count": 1 << 40}, "model.gguf")
    >>> keys.layers(0) == MAX_BLOCKS, keys.count("embedding_length")
    (True, 1)
    """

    def refuse(self, key: str, what: str) -> None:
        """Let it pass."""

    def layers(self, tensors: int) -> int:
        """As far as a file says, and no more than any model has."""
        blocks, extra = (values.whole(self.get(key)) or 0 for key in ("block_count", "nextn_predict_layers"))
        return max(min(blocks, MAX_BLOCKS) - max(extra, 0), 0)

    def rows(self, tensors: Mapping[str, TensorShape], name: str) -> int:
        return 1

    def count(self, key: str, *, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        try:
            return super().count(key, default=default, least=least, most=most)
        except ModelError:
            return least if default is None else default

    def real(self, key: str, *, above: float, default: float | None = None) -> float:
        try:
            return super().real(key, above=above, default=default)
        except ModelError:
            return above + 1

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        try:
            return super().flags(key, layers)
        except ModelError:
            return None

    def per_layer(self, key: str, layers: int, *, default: int | None = None, least: int = 1) -> list[int]:
        try:
            return super().per_layer(key, layers, default=default, least=least)
        except ModelError:
            return [least] * layers

    def uniform(self, key: str, layers: int, where: list[int], *, default: int | None = None) -> int:
        try:
            return super().uniform(key, layers, where, default=default)
        except ModelError:
            return default or 1
