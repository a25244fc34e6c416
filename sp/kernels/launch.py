"""Kernel declarations and typed launches. CuPy checks no types: a Python float passed for a C ``float`` would arrive as
0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sp.errors import DeviceError
from sp.kernels import jit
from sp.kernels.device import capability, current_device, debugging, device_errors, import_cupy
from sp.kernels.nvrtc import Define
from sp.kernels.pdl import launch_pdl
from sp.kernels.signature import Checker, checker

Defines = Mapping[str, Define]
PerVariant = int | Callable[[Defines], int]

_launched: set[str] = set()
_debug = debugging()


def launched_sources() -> tuple[str, ...]:
    """Return the sources of all kernels launched since the last reset; a measurement depends on these."""
    return tuple(sorted(_launched))


def reset_launched() -> None:
    """Clear the record of launched kernels."""
    _launched.clear()


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """An ``extern "C"`` entry, declared once for launching, compiling ahead and the check without a GPU.

    `variants`: the ``-D`` sets that ship. Others may be launched too, but only these are checked and compiled ahead;
    `arches`: "80+" for every GPU from compute capability 8.0, "90a" for 9.0 only, with its architecture-specific
    instructions; `pdl`: programmatic dependent launch: in a CUDA graph, on GPUs that support it, start while the
    previous kernel still finishes; see `sp.kernels.pdl` for the requirements on the kernel. Outside of a graph such a
    launch costs the host more than the device gains.
    """

    source: str  # file under ``sp/kernels/cuda``
    entry: str  # name of the ``__global__`` function
    args: tuple[str, ...]  # C signature, see `sp.kernels.signature.checker`
    threads: PerVariant  # int or callable, block size along x; a callable is given the defines
    variants: tuple[Defines, ...] = ({},)
    arches: str = "80+"
    smem: PerVariant = 0  # int or callable, dynamic shared memory in bytes; a callable is given the defines
    pdl: bool = False
    _checkers: tuple[Checker, ...] = field(init=False, repr=False)
    _loaded: dict[Any, tuple[Any, tuple[int], int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.arches not in ("80+", "90a"):
            raise ValueError(f"kernel {self.entry}: arches must be '80+' or '90a', not {self.arches!r}")
        object.__setattr__(self, "_checkers", tuple(checker(self.entry, text) for text in self.args))

    def shared_bytes(self, defines: Defines) -> int:
        """Return the dynamic shared memory of a variant in bytes."""
        return self.smem(defines) if callable(self.smem) else self.smem

    def block(self, defines: Defines) -> int:
        """Return the threads per block of a variant."""
        return self.threads(defines) if callable(self.threads) else self.threads

    def launch(self, grid: tuple[int, ...], *values: Any, defines: Defines | None = None) -> None:
        """Launch the kernel on the current stream; a grid with a zero in it returns at once. DeviceError if a value
        does not match its declaration, naming the kernel, the argument and the expected type.

        Parameters ---------- grid : tuple of int, blocks along x, y, z; missing ones are 1 *values : one per argument,
        in the declared order defines : mapping, optional, the ``-D`` set; by default the first declared variant
        """
        if len(values) != len(self._checkers):
            raise DeviceError(f"kernel {self.entry}: takes {len(self._checkers)} arguments, got {len(values)}")
        device = current_device()
        arguments = tuple([check(value, device) for check, value in zip(self._checkers, values, strict=True)])
        if min(grid) < 1:
            if min(grid) < 0:
                raise DeviceError(f"kernel {self.entry}: negative grid {grid}")
            return
        if grid[0] > 2**31 - 1 or (len(grid) > 1 and max(grid[1:]) > 65535):
            raise DeviceError(f"kernel {self.entry}: grid {grid} is over the limit (2147483647, 65535, 65535)")
        function, block, shared = self._function(self.variants[0] if defines is None else defines, device)
        _launched.add(self.source)
        if _debug:
            self._launch_debug(function, grid, block, arguments, shared)
        elif self.pdl and capability(device) >= (9, 0) and import_cupy().cuda.get_current_stream().is_capturing():
            launch_pdl(function, grid, block[0], arguments, shared)
        else:
            function(grid, block, arguments, shared_mem=shared)

    def _function(self, defines: Defines, device: int) -> tuple[Any, tuple[int], int]:
        key = (device, *defines.items())
        found = self._loaded.get(key)
        if found is None:
            shared = self.shared_bytes(defines)
            function = jit.load(self.source, self.entry, defines, self.arches, shared, device)
            found = self._loaded[key] = function, (self.block(defines),), shared
        return found

    def _launch_debug(self, function: Any, grid: Any, block: Any, arguments: Any, shared: int) -> None:
        """Launch and wait for the kernel, so that a failure names it and not a later one."""
        try:
            with device_errors():
                function(grid, block, arguments, shared_mem=shared)
                import_cupy().cuda.get_current_stream().synchronize()
        except DeviceError as error:
            where = f"kernel {self.entry}, grid {grid}, block {block}, {shared} shared bytes"
            raise DeviceError(f"{where}: {error}") from None
