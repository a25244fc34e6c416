"""Keys: numbers from a model file's metadata, each checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sp import values
from sp.errors import ModelError

MAX_SIZE = 1 << 24  # far above any width, count or head size of a real model; a larger value means a damaged file
MAX_BLOCKS = 1 << 12  # more blocks than any model has; limits the work on a damaged file


class TensorShape(Protocol):
    """Entry of a file's tensor table."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class Keys:
    """Checked access to the keys of one architecture. `arch`: prefix of the keys. `path`: for messages. The methods
    raise ModelError if a key is missing or invalid; the message names key and file."""

    def __init__(self, arch: str, metadata: Mapping[str, Any], path: str) -> None:
        self.arch, self.metadata, self.path = arch, metadata, path

    def error(self, key: str, problem: str) -> ModelError:
        return ModelError(f"{self.path}: key {self.arch}.{key} {problem}")

    def refuse(self, key: str, problem: str) -> None:
        """Raise the `error` of an invalid value. A subclass may let it pass, so the caller must go on as if the value
        were valid."""
        raise self.error(key, problem)

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.arch}.{key}")

    def layers(self, tensors: int) -> int:
        """Read the number of blocks of the main model, without those of multi-token prediction. `tensors`: number of
        tensors in the file, an upper limit."""
        blocks = self.count("block_count")
        if blocks > tensors:
            raise self.error("block_count", f"is {blocks}, but the file has {tensors} tensors")
        extra = self.count("nextn_predict_layers", default=0, least=0)
        if extra >= blocks:
            raise self.error("nextn_predict_layers", f"is {extra} of {blocks} blocks, which leaves no model")
        return blocks - extra

    def rows(self, tensors: Mapping[str, TensorShape], name: str) -> int:
        """Return the rows of a matrix that only a language model has."""
        info = tensors.get(name)
        if info is None or len(info.shape) != 2:
            raise ModelError(f"{self.path}: tensor {name} is missing or not a matrix; use a language model")
        return int(info.shape[0])

    def count(self, key: str, *, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """Read a whole number in [least, most]."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        return self._whole(key, value, least, most)

    def _whole(self, key: str, value: Any, least: int, most: int) -> int:
        if value is None:
            raise self.error(key, "is missing; the file does not describe a complete model")
        number = values.whole(value)
        if number is None:
            raise self.error(key, f"is {values.preview(value)}; it must be a whole number")
        if not least <= number <= most:
            raise self.error(key, f"is {values.preview(number)}; it must lie in {least}..{most}")
        return number

    def real(self, key: str, *, above: float, default: float | None = None) -> float:
        """Read a finite number greater than `above`."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing; the file does not describe a complete model")
        number = values.real(value)
        if number is None or number <= above:
            need = f"it must be finite and greater than {above:g}" if values.is_number(value) else "it must be a number"
            raise self.error(key, f"is {values.preview(value)}; {need}")
        return number

    def is_set(self, key: str) -> bool:
        """Return True if a key has an effect: it is present, and neither 0 nor false nor empty."""
        value = self.get(key)
        items = values.as_list(value)
        return bool(value) if items is None else len(items) > 0

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """Read one flag per layer, from a list (which may cover blocks after the main model); None without the key."""
        value = self.get(key)
        if value is None:
            return None
        items = values.as_list(value)
        if items is None or len(items) < layers:
            raise self.error(key, f"is {values.preview(value)}; it must be a list of at least {layers} flags")
        flags = [values.flag(item) for item in items[:layers]]
        if None in flags:
            raise self.error(key, f"is {values.preview(value)}; flags are true or false")
        return tuple(map(bool, flags))

    def per_layer(self, key: str, layers: int, *, default: int | None = None, least: int = 1) -> list[int]:
        """Read one whole number per layer, from a scalar or from a list (which may cover blocks after the main
        model)."""
        items = values.as_list(self.get(key))
        if items is not None:
            if len(items) < layers:
                raise self.error(key, f"lists {len(items)} values for {layers} layers")
            return [self._whole(key, item, least, MAX_SIZE) for item in items[:layers]]
        return [self.count(key, default=default, least=least)] * layers

    def uniform(self, key: str, layers: int, where: list[int], *, default: int | None = None) -> int:
        """Read a number that all layers of `where` share; a list may hold 0 for the other layers."""
        numbers = self.per_layer(key, layers, default=default, least=0)
        chosen = {numbers[i] for i in where}
        if len(chosen) != 1 or 0 in chosen:
            text = values.preview(sorted(chosen))
            raise self.error(key, f"is {text} in the attention layers; sp needs the same positive value in all")
        return chosen.pop()


class SketchKeys(Keys):
    """Keys of a file that may be incomplete or hostile, read for the names of its tensors only: invalid values are
    replaced by a guess.

    >>> keys = SketchKeys("qwen3", {"qwen3.block_count": 1 << 40}, "model.gguf")
    >>> keys.layers(0) == MAX_BLOCKS, keys.count("embedding_length")
    (True, 1)
    """

    def refuse(self, key: str, problem: str) -> None:
        """Accept the value."""

    def layers(self, tensors: int) -> int:
        """Return the number of blocks that the file states, limited to `MAX_BLOCKS`."""
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
