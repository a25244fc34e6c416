"""WeightStore: the tensors of a file, handed out once each with their shapes checked."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ModelError
from sp.models.config import ModelConfig
from sp.models.file.metadata_keys import TensorShape
from sp.quant import FORMATS, Weight

Kind = Literal["matrix", "stack", "vector", "table"]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that was asked for; it stands in for the weight."""

    name: str
    shape: tuple[int, ...]  # fastest axis last
    kind: Kind  # what it was asked for as, see `WeightSource`
    optional: bool = False  # whether it was asked for only because it is there
    picked: tuple[int, ...] = ()  # rows of each matrix that is made of some of its own; none where it is taken whole
    data: tuple[()] = ()
    nbytes = 0

    @property
    def size(self) -> int:
        """Number of values."""
        total = 1
        for one in self.shape:
            total *= one
        return total

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """Shapes that a model has of it."""
        return [(rows, *self.shape[1:]) for rows in self.picked] or [self.shape]


class CopiedWeight(Weight):
    """A weight that is no run of bytes of its file, but columns of it, or rows from several places."""


class RecordingStore:
    """Notes the tensors of a model under construction. `present`: names of which the model may choose to ask for: a
    head of its own, a fused matrix. `tensors`: by name, in the order they were asked for."""

    def __init__(self, config: ModelConfig, present: Container[str] = ()) -> None:
        self.config = config
        self.tensors: dict[str, TensorSpec] = {}
        self._present = present
        self._chosen: set[str] = set()

    def __contains__(self, name: str) -> bool:
        if name not in self._present:
            return False
        self._chosen.add(name)
        return True

    def matrix(self, name: str, shape: tuple[int, int]) -> Any:
        """See `WeightSource`."""
        return self._note(name, shape, "matrix")

    def stack(self, name: str, shape: tuple[int, int, int]) -> Any:
        """See `WeightSource`."""
        return self._note(name, shape, "stack")

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> Any:
        """See `WeightSource`."""
        return [self._note(name, shape, "matrix", rows)] * len(rows)

    def vector(self, name: str, size: int) -> Any:
        """See `WeightSource`."""
        return self._note(name, (size,), "vector")

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Any:
        """See `WeightSource`."""
        return self._note(name, shape, "table", () if rows is None else (rows,))

    def _note(self, name: str, shape: tuple[int, ...], kind: Kind, rows: Sequence[Ints] = ()) -> TensorSpec:
        made = TensorSpec(name, shape, kind, name in self._chosen, tuple(map(len, rows)))
        return self.tensors.setdefault(name, made)


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to; None of one that belongs to none."""
    block, _, rest = name.removeprefix("blk.").partition(".")
    return int(block) if rest and name.startswith("blk.") and block.isdecimal() else None


SCALED = "NVFP4"
"""The format whose tensors may have a scale each, ``X.scale`` beside ``X.weight``, as llama.cpp writes and reads them:
the product with the weight is multiplied by it. ``X.input_scale`` is for quantisers of activations."""


class TensorFile(Protocol):
    """A file of weights: a `GGUFFile`, or a `SafetensorsFile`."""

    path: Path

    @property
    def tensors(self) -> Mapping[str, TensorShape]: ...

    def weight(self, name: str) -> Weight:
        """A tensor, packed, as a view of the mapped file."""
        ...


class WeightSource(Protocol):
    """Where the parts of a model under construction get their weights, by GGUF name."""

    config: ModelConfig

    def __contains__(self, name: str) -> bool: ...

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """A weight matrix (out, in)."""
        ...

    def stack(self, name: str, shape: tuple[int, int, int]) -> Weight:
        """Matrices (out, in) of so many experts, one under the other as one matrix (experts * out, in)."""
        ...

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> list[Weight]:
        """Rows of a matrix (out, in), each list of them as a matrix of its own: (len(rows[i]), in)."""
        ...

    def vector(self, name: str, size: int) -> Floats:
        """A norm weight or bias (size,)."""
        ...

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Floats:
        """A small matrix that is used as plain numbers, or those rows of it."""
        ...


class WeightStore:
    """Takes weights out of a file for a model under construction.

    Matrices stay packed, as views of the file. `depth`: hand out only so many layers, and no head; the others count as
    tensors that are never run. `nbytes`: bytes of the weights handed out so far, as they are held. ModelError: from the
    methods, when a tensor is missing or has another shape than the configuration asks for.
    """

    def __init__(self, file: TensorFile, config: ModelConfig, depth: int | None = None) -> None:
        self.file = file
        self.config = config
        self.depth = depth
        self._taken: set[str] = set()
        self.nbytes = 0

    def _beyond_trunk(self, name: str) -> bool:
        """Whether a tensor belongs to a multi-token-prediction block, or else to what is not run."""
        layer, layers = layer_of(name), self.config.layers if self.depth is None else self.depth
        return (layer is not None and layer >= layers) or (self.depth is not None and name.startswith("output."))

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that must exist."""
        info = self.file.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.file.path}: tensor {name} is missing; the file is no complete model")
        return tuple(int(size) for size in info.shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """A weight matrix (out, in)."""
        return self._held(self._take(name, shape))

    def stack(self, name: str, shape: tuple[int, int, int]) -> Weight:
        """Matrices of experts one under the other."""
        weight = self._take(name, shape)
        under = shape[0] * shape[1]
        return self._held(replace(weight, shape=(under, shape[2]), data=weight.data.reshape(under, -1)))

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> list[Weight]:
        """Rows of a matrix as others, which are copies."""
        whole = self._take(name, shape)
        parts = [CopiedWeight(name, whole.format, (len(some), shape[1]), whole.data[some], whole.math) for some in rows]
        return [self._held(part) for part in parts]

    def _held(self, weight: Weight) -> Weight:
        self.nbytes += weight.nbytes
        return weight

    def vector(self, name: str, size: int) -> Floats:
        """A norm weight or bias (size,), always decoded."""
        return self._numbers(name, (size,))

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Floats:
        """A small matrix that is used as plain numbers, or those rows of it, always decoded."""
        found = self._numbers(name, shape)
        return found if rows is None else found[rows]

    def _numbers(self, name: str, shape: tuple[int, ...]) -> Floats:
        values = self._take(name, shape).dense()
        self.nbytes += values.nbytes
        return values

    def _claim(self, name: str, shape: tuple[int, ...]) -> None:
        """Note that a tensor is asked for, which must be of that shape."""
        if self.shape(name) != shape:
            raise ModelError(
                f"{self.file.path}: tensor {name} has shape {self.shape(name)}; the metadata asks for {shape}"
            )
        self._taken.add(name)

    def _take(self, name: str, shape: tuple[int, ...]) -> Weight:
        self._claim(name, shape)
        weight = self.file.weight(name)
        return self._scaled(weight) if weight.format.name == SCALED else weight

    def _scaled(self, weight: Weight) -> Weight:
        """A weight with the scale of its own that its file may have; that of activations changes nothing."""
        name = weight.name.removesuffix("weight")
        self._taken |= {f"{name}input_scale", f"{name}scale"}
        if f"{name}scale" not in self.file.tensors:
            return weight
        numbers = self.file.weight(f"{name}scale").dense()
        if numbers.shape != (1,) or not np.isfinite(numbers[0]):
            raise ModelError(f"{self.file.path}: tensor {name}scale is not one finite number; get the file again")
        return replace(weight, format=weight.format.times(float(numbers[0])))

    def finish(self, others: Collection[str] = ()) -> None:
        """Refuse a file whose trunk holds tensors nothing has asked for: ignoring a bias would be silently wrong.
        `others` were asked for by someone else."""
        known = self._taken.union(others)
        unused = [n for n in self.file.tensors if n not in known and not self._beyond_trunk(n)]
        if unused:
            raise ModelError(
                f"{self.file.path}: {len(unused)} tensors have no place in {self.config.architecture}, "
                f"the first is {unused[0]}; this variant of the architecture is not supported"
            )


class HeaderStore(WeightStore):
    """Takes no weights: checks by a file's header alone that all a model asks for is there, of the right shapes. Its
    methods raise what loading would; nothing of the data is read, scales of formats that have some among it."""

    def __init__(self, file: TensorFile, config: ModelConfig) -> None:
        super().__init__(file, config)

    def matrix(self, name: str, shape: tuple[int, int]) -> Any:
        """See `WeightSource`; a record of the tensor instead of it."""
        return self._noted(name, shape, "matrix")

    def stack(self, name: str, shape: tuple[int, int, int]) -> Any:
        """See `WeightSource`."""
        return self._noted(name, shape, "stack")

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> Any:
        """See `WeightSource`."""
        return [self._noted(name, shape, "matrix")] * len(rows)

    def _noted(self, name: str, shape: tuple[int, ...], kind: Literal["matrix", "stack"]) -> TensorSpec:
        self._claim(name, shape)
        part = name.removesuffix("weight")
        self._taken |= {f"{part}input_scale", f"{part}scale"} if self._is_scaled(name) else set()
        return TensorSpec(name, shape, kind)

    def vector(self, name: str, size: int) -> Any:
        """See `WeightSource`."""
        self._claim(name, (size,))
        return TensorSpec(name, (size,), "vector")

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Any:
        """See `WeightSource`."""
        self._claim(name, shape)
        return TensorSpec(name, shape, "table")

    def _is_scaled(self, name: str) -> bool:
        info: Any = self.file.tensors[name]
        return FORMATS[info.ggml_type].name == SCALED if info.ggml_type in FORMATS else False


def split_rows(weight: Weight, sizes: list[int]) -> list[Weight]:
    """Cut a matrix into consecutive groups of rows, without copying."""
    parts, start = [], 0
    for size in sizes:
        parts.append(replace(weight, shape=(size, *weight.shape[1:]), data=weight.data[start : start + size]))
        start += size
    assert start == weight.shape[0], f"{weight.name}: {sizes} do not cover {weight.shape[0]} rows"
    return parts
