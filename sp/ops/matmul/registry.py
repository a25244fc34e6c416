"""MatmulKernel: the capabilities of a kernel for packed weights, declared once, in the file that launches it.

Everything else follows from these records: the choice of the kernel of a product (`sp.ops.matmul.dispatch`), the work
before and around a launch (here), the kernels to time (`sp.bench.cases`). A new variant is one module of this folder
that ends with `register_matmul`; docs/extending/kernel.md shows how."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from sp.errors import ConfigError, DeviceError
from sp.kernels import import_cupy
from sp.kernels.path import PATHS, current_path
from sp.kernels.specs.matmul.epilogue import Epilogue
from sp.ops.input_tiles import InputTiles
from sp.ops.norms import Norm, Ready, rms_norm
from sp.quant import Math, kernel_formats


class Fusion(Enum):
    """Work that a kernel does in the launch of the product itself; without it, other kernels do it before."""

    NORM = "norm"  # takes float32 x and an RMS norm that comes first
    TILES = "tiles"  # takes x as InputTiles, and with SWIGLU stores its result as such
    READY = "ready"
    """Takes a norm deferred by the previous product, and with ADD starts that of the next product."""


@dataclass(frozen=True)
class Product:
    """Products of the same tokens with several weights. `outs`: STORE: one per weight, uint16 (BF16) or float32
    (tokens, out_i). ADD: float32 (tokens, out), added to. SWIGLU: uint16 (tokens, out) or InputTiles;
    `norm`: Norm or Ready, optional, of x, before the product; a Ready was started by the previous product."""

    x: Any  # uint16 (tokens, in) of BF16 bits; float32 (tokens, in) with `norm`; InputTiles
    weights: Sequence[Any]  # sequence of PackedWeight of shape (out_i, in), ADD: one. SWIGLU: gate and up
    outs: Sequence[Any]
    epilogue: Epilogue
    norm: Norm | Ready | None = None
    then: Ready | None = None  # with ADD: the deferred norm of the next product, to be started
    before: Ready | None = None  # with `then`: the deferred norm of the old values that are added to

    def part(self, which: Sequence[int]) -> Product:
        """Return the product with some of the weights; only STORE can be divided like this."""
        if len(which) == len(self.weights):
            return self
        return replace(self, weights=[self.weights[i] for i in which], outs=[self.outs[i] for i in which])


def _any(tokens: int, width: int, kinds: tuple[int, ...], norm: bool, epilogue: Epilogue) -> int:
    return tokens


def _all(kind: int) -> bool:
    return True


@dataclass(frozen=True, eq=False)
class MatmulKernel:
    """A kernel that multiplies by packed weights.

    `reads`: by ggml type, True if it supports weights of a format that has a packing; by default all of them;
    `prefill`: it takes products of any size, also those of more rows than were timed. A path has one such kernel;
    `room`: ``(tokens, width, kinds, norm, epilogue)`` to the rows of x that a launch on the current device can take, 0
    if none; `least_room`: if a launch can take fewer rows than this and than the product has, its passes do not pay
    off; `preferred`: rows of x for which it is used for its formats whatever the table says; of two such kernels the
    one registered last; `otherwise`: the kernel for products that do not fit here, and for those of several weights
    whose formats are not supported here. By default the prefill kernel of the path.
    """

    name: str  # in the dispatch table
    run: Callable[[Product], None]  # launches a Product that conforms to this declaration
    reads: Callable[[int], bool] = _all
    paths: tuple[str, ...] = PATHS  # see `sp.kernels.path`
    epilogues: tuple[Epilogue, ...] = (Epilogue.STORE, Epilogue.ADD, Epilogue.SWIGLU)
    fusions: frozenset[Fusion] = frozenset()
    max_tokens: int | None = None  # most rows of x; None for any number
    max_weights: int = 1  # most weights of one call of `run`
    alike: Callable[[int], Hashable] | None = None  # by ggml type; weights of one call must have equal values
    mixed_swiglu: bool = False  # True if gate and up may have different formats
    multiple: int = 1  # with STORE, so many outputs are stored at a time
    prefill: bool = False
    room: Callable[[int, int, tuple[int, ...], bool, Epilogue], int] = _any
    least_room: int = 1
    timed: range = range(0)  # rows of x for which it is worth timing
    preferred: range = range(0)
    otherwise: MatmulKernel | None = None
    tile_rows: Callable[[int], int] | None = None  # with Fusion.TILES: rows of the tiles for so many tokens
    maths: tuple[Math, ...] = (Math.BF16,)  # precisions of the weights that it takes

    @property
    def formats(self) -> tuple[int, ...]:
        """ggml types of the weights it supports, of the formats that are registered by now."""
        return tuple(fmt.ggml_type for fmt in kernel_formats() if self.reads(fmt.ggml_type))

    def takes(self, tokens: int, width: int, kinds: tuple[int, ...], norm: bool, epilogue: Epilogue) -> bool:
        """Return True if it can do a product of `tokens` rows with weights of the ggml types `kinds` and `width`
        inputs."""
        if epilogue not in self.epilogues or (self.max_tokens is not None and tokens > self.max_tokens):
            return False
        return self.room(tokens, width, kinds, norm, epilogue) >= min(tokens, self.least_room)

    def multiplies(self, w: Any) -> bool:
        """Return True if it supports a PackedWeight's format and precision; BF16 products are always allowed."""
        return self.reads(w.format.ggml_type) and (Math.BF16 in self.maths or w.math in self.maths)

    def launch(self, product: Product) -> None:
        """Run a product: first the work that is not fused, then the launches that its weights need."""
        if product.epilogue is not Epilogue.STORE:
            self.run(self._prepared(product))
            return
        kinds = [w.format.ggml_type for w in product.weights]
        mine = [i for i, w in enumerate(product.weights) if self.multiplies(w)]
        groups = grouped([None if self.alike is None else self.alike(kinds[i]) for i in mine], self.max_weights)
        given = self._prepared(product) if mine else product
        for some in groups:
            self._store(given.part([mine[i] for i in some]))
        if len(mine) < len(kinds):
            other = self.otherwise or prefill_kernel(current_path())
            if other is self:
                raise DeviceError(f"{self.name} does not take all the formats of {[w.name for w in product.weights]}")
            # The prepared x is passed on, unless the other kernel fuses the preparation.
            again = Fusion.NORM in other.fusions or isinstance(given.x, InputTiles)
            other.launch((product if again else given).part([i for i in range(len(kinds)) if i not in mine]))

    def _prepared(self, product: Product) -> Product:
        """Return the product with x in the form of this kernel."""
        x, norm = product.x, product.norm
        if isinstance(norm, Ready):
            x, norm = (norm.tiles, None) if Fusion.READY in self.fusions else (x, norm.norm)
        if norm is not None and Fusion.NORM not in self.fusions:
            x, norm = rms_norm(x, *norm), None
        if isinstance(x, InputTiles) and Fusion.TILES not in self.fusions:
            raise DeviceError(f"{self.name} takes no input tiles")
        return product if x is product.x and norm is product.norm else replace(product, x=x, norm=norm)

    def _store(self, product: Product) -> None:
        """Run a launch that may store more outputs than there are: weights are padded to a multiple of 64 rows."""
        rows = [w.shape[0] for w in product.weights]
        if not any(count % self.multiple for count in rows):
            self.run(product)
            return
        cupy, whole = import_cupy(), [-(-count // self.multiple) * self.multiple for count in rows]
        padded = [cupy.empty((len(out), n), out.dtype) for out, n in zip(product.outs, whole, strict=True)]
        weights = [replace(w, shape=(n, w.shape[1])) for w, n in zip(product.weights, whole, strict=True)]
        self.run(replace(product, weights=weights, outs=padded))
        for out, full, count in zip(product.outs, padded, rows, strict=True):
            out[...] = full[:, :count]


def grouped(keys: Sequence[Hashable], most: int) -> list[list[int]]:
    """Group the positions that share a launch: up to `most`, all with the same key.

    >>> grouped((256, 64, 256), 4)
    [[0, 2], [1]]
    """
    together: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        together.setdefault(key, []).append(i)
    return [group[i : i + most] for group in together.values() for i in range(0, len(group), most)]


_kernels: dict[str, MatmulKernel] = {}


def register_matmul(kernel: MatmulKernel) -> MatmulKernel:
    """Register a kernel by its name, for dispatch, timing and lists. Kernels of this folder are registered in their
    files, which are imported automatically; others must be registered before a product is run. Returns the kernel.
    ConfigError if the name is registered already, or the path has a prefill kernel."""
    if kernel.name in _kernels:
        raise ConfigError(f"matmul kernel {kernel.name} is there already")
    for known in _kernels.values():
        if kernel.prefill and known.prefill and set(kernel.paths) & set(known.paths):
            raise ConfigError(f"matmul kernel {kernel.name}: {known.name} takes products of any size there")
    _kernels[kernel.name] = kernel
    return kernel


def kernels(path: str) -> tuple[MatmulKernel, ...]:
    """Return the kernels of a path: those of this folder, and others that were registered."""
    _import_room()
    return tuple(kernel for kernel in _kernels.values() if path in kernel.paths)


def prefill_kernel(path: str) -> MatmulKernel:
    """Return the kernel of a path that takes products of any size."""
    return next(kernel for kernel in kernels(path) if kernel.prefill)


@cache
def _import_room() -> None:
    """Import every module of this folder, so that its kernels are registered."""
    package = __name__.rpartition(".")[0]
    for found in iter_modules(import_module(package).__path__, f"{package}."):
        import_module(found.name)
