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
    """A tensor that a model requests; it takes the place of the weight while only names and shapes are needed."""

    name: str
    shape: tuple[int, ...]  # fastest axis last
    kind: Kind  # the method that requested it, see `WeightSource`
    optional: bool = False  # True if it was requested only because the file has it
    picked: tuple[int, ...] = ()  # row counts of the matrices built from some of its rows; empty if it is used whole
    data: tuple[()] = ()
    nbytes = 0

    @property
    def size(self) -> int:
        """Number of values."""
        total = 1
        for length in self.shape:
            total *= length
        return total

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """Shapes of the matrices that the model builds from it."""
        return [(rows, *self.shape[1:]) for rows in self.picked] or [self.shape]


class CopiedWeight(Weight):
    """A weight that is not a run of bytes of its file, but some of its columns, or rows from several places."""


class RecordingStore:
    """Records the tensors that a model under construction requests. `present`: names that the model may choose to
    request, such as a head of its own or a fused matrix. `tensors`: by name, in the order of the requests."""

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
        """Record a matrix, see `WeightSource`."""
        return self._note(name, shape, "matrix")

    def stack(self, name: str, shape: tuple[int, int, int]) -> Any:
        """Record a stack of expert matrices, see `WeightSource`."""
        return self._note(name, shape, "stack")

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> Any:
        """Record a matrix of which rows are picked, see `WeightSource`."""
        return [self._note(name, shape, "matrix", rows)] * len(rows)

    def vector(self, name: str, size: int) -> Any:
        """Record a vector, see `WeightSource`."""
        return self._note(name, (size,), "vector")

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Any:
        """Record a small matrix, see `WeightSource`."""
        return self._note(name, shape, "table", () if rows is None else (rows,))

    def _note(self, name: str, shape: tuple[int, ...], kind: Kind, rows: Sequence[Ints] = ()) -> TensorSpec:
        spec = TensorSpec(name, shape, kind, name in self._chosen, tuple(map(len, rows)))
        return self.tensors.setdefault(name, spec)


def layer_of(name: str) -> int | None:
    """Return the layer that a tensor belongs to; None for a tensor outside the layers."""
    block, _, rest = name.removeprefix("blk.").partition(".")
    return int(block) if rest and name.startswith("blk.") and block.isdecimal() else None


SCALED = "NVFP4"
"""The format whose tensors may have a scale each, ``X.scale`` next to ``X.weight``, as in llama.cpp: a factor on the
product with the weight. ``X.input_scale`` is for kernels that quantise activations."""


class TensorFile(Protocol):
    """A file of weights: a `GGUFFile`, or a `SafetensorsFile`."""

    path: Path

    @property
    def tensors(self) -> Mapping[str, TensorShape]: ...

    def weight(self, name: str) -> Weight:
        """Return a tensor, packed, as a view of the mapped file."""
        ...


class WeightSource(Protocol):
    """Source of weights, by GGUF name, for the parts of a model under construction."""

    config: ModelConfig

    def __contains__(self, name: str) -> bool: ...

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """Return a weight matrix (out, in)."""
        ...

    def stack(self, name: str, shape: tuple[int, int, int]) -> Weight:
        """Return the matrices (out, in) of all experts, one below the other as one matrix (experts * out, in)."""
        ...

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> list[Weight]:
        """Return rows of a matrix (out, in); each list of row indices gives a matrix of its own: (len(rows[i]), in)."""
        ...

    def vector(self, name: str, size: int) -> Floats:
        """Return a norm weight or bias (size,)."""
        ...

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Floats:
        """Return a small matrix that is used as plain numbers, or some of its rows."""
        ...


class WeightStore:
    """Takes weights out of a file for a model under construction.

    Matrices stay packed, as views of the file. `depth`: hand out only so many layers, and no head; the others count as
    tensors that are never used. `nbytes`: bytes of the weights handed out so far, as stored. The methods raise
    ModelError if a tensor is missing or has another shape than the configuration requires.
    """

    def __init__(self, file: TensorFile, config: ModelConfig, depth: int | None = None) -> None:
        self.file = file
        self.config = config
        self.depth = depth
        self._requested: set[str] = set()
        self.nbytes = 0

    def _is_unused(self, name: str) -> bool:
        """Return True if a tensor belongs to a multi-token-prediction block, or to layers or a head that are not
        loaded."""
        layer, layers = layer_of(name), self.config.layers if self.depth is None else self.depth
        return (layer is not None and layer >= layers) or (self.depth is not None and name.startswith("output."))

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that must exist."""
        info = self.file.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.file.path}: tensor {name} is missing; the file is not a complete model")
        return tuple(int(size) for size in info.shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """Return a weight matrix (out, in)."""
        return self._counted(self._take(name, shape))

    def stack(self, name: str, shape: tuple[int, int, int]) -> Weight:
        """Return the matrices of experts, one below the other."""
        weight = self._take(name, shape)
        # Experts are consecutive in the file, so one matrix covers all of them without a copy.
        under = shape[0] * shape[1]
        return self._counted(replace(weight, shape=(under, shape[2]), data=weight.data.reshape(under, -1)))

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> list[Weight]:
        """Return rows of a matrix as matrices of their own, which are copies."""
        whole = self._take(name, shape)
        parts = [
            CopiedWeight(name, whole.format, (len(indices), shape[1]), whole.data[indices], whole.math)
            for indices in rows
        ]
        return [self._counted(part) for part in parts]

    def _counted(self, weight: Weight) -> Weight:
        self.nbytes += weight.nbytes
        return weight

    def vector(self, name: str, size: int) -> Floats:
        """Return a norm weight or bias (size,), always decoded."""
        return self._numbers(name, (size,))

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Floats:
        """Return a small matrix that is used as plain numbers, or some of its rows, always decoded."""
        numbers = self._numbers(name, shape)
        return numbers if rows is None else numbers[rows]

    def _numbers(self, name: str, shape: tuple[int, ...]) -> Floats:
        values = self._take(name, shape).dense()
        self.nbytes += values.nbytes
        return values

    def _claim(self, name: str, shape: tuple[int, ...]) -> None:
        """Record that a tensor is requested, and check its shape."""
        if self.shape(name) != shape:
            raise ModelError(
                f"{self.file.path}: tensor {name} has shape {self.shape(name)}; the metadata asks for {shape}"
            )
        self._requested.add(name)

    def _take(self, name: str, shape: tuple[int, ...]) -> Weight:
        self._claim(name, shape)
        weight = self.file.weight(name)
        return self._scaled(weight) if weight.format.name == SCALED else weight

    def _scaled(self, weight: Weight) -> Weight:
        """Apply the scale tensor of a weight, if the file has one; that of activations has no effect."""
        name = weight.name.removesuffix("weight")
        # Claimed even if unused, so that `finish` does not call them unknown.
        self._requested |= {f"{name}input_scale", f"{name}scale"}
        if f"{name}scale" not in self.file.tensors:
            return weight
        numbers = self.file.weight(f"{name}scale").dense()
        if numbers.shape != (1,) or not np.isfinite(numbers[0]):
            raise ModelError(f"{self.file.path}: tensor {name}scale is not one finite number; get the file again")
        return replace(weight, format=weight.format.times(float(numbers[0])))

    def finish(self, others: Collection[str] = ()) -> None:
        """Refuse a file with tensors that the model has not requested: to ignore a bias, for example, would silently
        give wrong results. `others` were requested elsewhere."""
        known = self._requested.union(others)
        unused = [n for n in self.file.tensors if n not in known and not self._is_unused(n)]
        if unused:
            raise ModelError(
                f"{self.file.path}: {len(unused)} tensors are not part of {self.config.architecture}, "
                f"the first is {unused[0]}; this variant of the architecture is not supported"
            )


class HeaderStore(WeightStore):
    """Checks from a file's header that all requested tensors exist with the right shapes, without reading weights.
    Its methods raise what loading would raise; no data are read, except the scales of formats that have them in a
    tensor."""

    def __init__(self, file: TensorFile, config: ModelConfig) -> None:
        super().__init__(file, config)

    def matrix(self, name: str, shape: tuple[int, int]) -> Any:
        """Return a record of the matrix, see `WeightSource`."""
        return self._noted(name, shape, "matrix")

    def stack(self, name: str, shape: tuple[int, int, int]) -> Any:
        """Return a record of the stack, see `WeightSource`."""
        return self._noted(name, shape, "stack")

    def picked(self, name: str, shape: tuple[int, int], rows: Sequence[Ints]) -> Any:
        """Return a record of the matrix for each list of rows, see `WeightSource`."""
        return [self._noted(name, shape, "matrix")] * len(rows)

    def _noted(self, name: str, shape: tuple[int, ...], kind: Literal["matrix", "stack"]) -> TensorSpec:
        self._claim(name, shape)
        part = name.removesuffix("weight")
        self._requested |= {f"{part}input_scale", f"{part}scale"} if self._is_scaled(name) else set()
        return TensorSpec(name, shape, kind)

    def vector(self, name: str, size: int) -> Any:
        """Return a record of the vector, see `WeightSource`."""
        self._claim(name, (size,))
        return TensorSpec(name, (size,), "vector")

    def table(self, name: str, shape: tuple[int, int], rows: Ints | None = None) -> Any:
        """Return a record of the table, see `WeightSource`."""
        self._claim(name, shape)
        return TensorSpec(name, shape, "table")

    def _is_scaled(self, name: str) -> bool:
        info: Any = self.file.tensors[name]
        return FORMATS[info.ggml_type].name == SCALED if info.ggml_type in FORMATS else False


def split_rows(weight: Weight, sizes: list[int]) -> list[Weight]:
    """Split a matrix into consecutive groups of rows, without copying."""
    parts, start = [], 0
    for size in sizes:
        parts.append(replace(weight, shape=(size, *weight.shape[1:]), data=weight.data[start : start + size]))
        start += size
    assert start == weight.shape[0], f"{weight.name}: {sizes} do not cover {weight.shape[0]} rows"
    return parts
