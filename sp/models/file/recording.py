"""RecordingStore: a store without weights, which notes what the parts of a model ask for.

So there is no list of a family's tensors but the code that builds its blocks.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal

from sp.models.config import ModelConfig

Kind = Literal["matrix", "stack", "vector", "table"]


@dataclass(frozen=True)
class Tensor:
    """A tensor that was asked for; it stands in for the weight.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Fastest axis last.
    kind : {"matrix", "stack", "vector", "table"}
        What it was asked for as, see `Store`.
    optional : bool
        Whether it was asked for only because it is there.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    optional: bool = False
    data: tuple[()] = ()
    nbytes = 0

    @property
    def size(self) -> int:
        """Number of values."""
        total = 1
        for one in self.shape:
            total *= one
        return total


class RecordingStore:
    """Notes the tensors of a model under construction.

    Parameters
    ----------
    config : ModelConfig
    present : container of str
        Names of which the model may choose to ask for: a head of its own, a fused matrix.

    Attributes
    ----------
    tensors : dict of str to Tensor
        By name, in the order they were asked for.

    Examples
    --------
    >>> from sp.models.layer.feed_forward import GatedMLP
    >>> from sp.ops.rope import Rope
    >>> config = ModelConfig("qwen3", 8, 9, 512, (24,), ("attention",), 2, 1, 4, Rope(1e6, 4), 1e-6)
    >>> store = RecordingStore(config)
    >>> _ = GatedMLP.take(store, 0)
    >>> [(tensor.name, tensor.shape) for tensor in store.tensors.values()]
    [('blk.0.ffn_gate.weight', (24, 8)), ('blk.0.ffn_up.weight', (24, 8)), ('blk.0.ffn_down.weight', (8, 24))]
    """

    def __init__(self, config: ModelConfig, present: Container[str] = ()) -> None:
        self.config = config
        self.tensors: dict[str, Tensor] = {}
        self._present = present
        self._chosen: set[str] = set()

    def __contains__(self, name: str) -> bool:
        if name not in self._present:
            return False
        self._chosen.add(name)
        return True

    def matrix(self, name: str, shape: tuple[int, int], *, keep_packed: bool = False) -> Any:
        """See `Store`."""
        return self._note(name, shape, "matrix")

    def stack(self, name: str, shape: tuple[int, int, int]) -> Any:
        """See `Store`."""
        return self._note(name, shape, "stack")

    def vector(self, name: str, size: int) -> Any:
        """See `Store`."""
        return self._note(name, (size,), "vector")

    def table(self, name: str, shape: tuple[int, int]) -> Any:
        """See `Store`."""
        return self._note(name, shape, "table")

    def _note(self, name: str, shape: tuple[int, ...], kind: Kind) -> Tensor:
        return self.tensors.setdefault(name, Tensor(name, shape, kind, name in self._chosen))


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to; None of one that belongs to none.

    >>> layer_of("blk.12.ffn_down_exps.weight"), layer_of("output.weight")
    (12, None)
    """
    block, _, rest = name.removeprefix("blk.").partition(".")
    return int(block) if rest and name.startswith("blk.") and block.isdecimal() else None
