"""Launching without a GPU: the grid, the variant, the cache of functions, and every failure as one DeviceError."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sp.errors import ConfigError, DeviceError
from sp.kernels import device, forced_path, jit, launch, nvrtc
from sp.kernels.launch import KernelSpec, launched_sources
from sp.kernels.manifest import families, family_of, kernels
from sp.kernels.path import current_path

KERNEL = KernelSpec(
    source="k.cu",
    entry="k",
    args=("i32 n",),
    threads=lambda defines: 32 * defines["WARPS"],
    variants=({"WARPS": 2}, {"WARPS": 4}),
    smem=lambda defines: 1024 * defines["WARPS"],
)


@pytest.fixture
def calls(monkeypatch):
    """Launches that reach CuPy, as (grid, block, arguments, shared bytes)."""
    made = []

    def load(source, entry, defines, arches, shared, device):
        made.append(("load", entry, dict(defines), shared))
        return lambda grid, block, arguments, shared_mem: made.append((grid, block, arguments, shared_mem))

    monkeypatch.setattr(jit, "load", load)
    monkeypatch.setattr(launch, "current_device", lambda: 0)
    KERNEL._loaded.clear()
    return made


def test_a_variant_is_loaded_once_and_given_its_block_and_shared_memory(calls):
    KERNEL.launch((3, 2), 5)
    KERNEL.launch((1,), 6, defines={"WARPS": 4})
    KERNEL.launch((4,), 7)
    assert calls == [
        ("load", "k", {"WARPS": 2}, 2048),
        ((3, 2), (64,), (5,), 2048),
        ("load", "k", {"WARPS": 4}, 4096),
        ((1,), (128,), (6,), 4096),
        ((4,), (64,), (7,), 2048),
    ]
    assert "k.cu" in launched_sources()


def test_a_zero_in_the_grid_starts_nothing_but_still_checks(calls):
    KERNEL.launch((0,), 5)
    KERNEL.launch((4, 0, 1), 5)
    assert calls == []
    with pytest.raises(DeviceError, match="argument n"):
        KERNEL.launch((0,), "5")


@pytest.mark.parametrize("grid", [(-1,), (1, 65536), (1, 1, 65536), (2**31,)])
def test_impossible_grids_are_refused(calls, grid):
    with pytest.raises(DeviceError, match=r"kernel k: .*grid"):
        KERNEL.launch(grid, 5)


def test_the_number_of_arguments_is_checked(calls):
    with pytest.raises(DeviceError, match="takes 1 arguments, got 2"):
        KERNEL.launch((1,), 5, 6)


def test_architectures():
    assert jit.device_arch("80+", (8, 6)) == "86"
    assert jit.device_arch("80+", (9, 0)) == "90"
    assert jit.device_arch("90a", (9, 0)) == "90a"
    with pytest.raises(DeviceError, match=r"compute capability 9\.0"):
        jit.device_arch("90a", (10, 0))


def test_options_do_not_depend_on_the_order_of_defines():
    assert nvrtc.compile_options({"B": 1, "A": 2}, "80") == nvrtc.compile_options({"A": 2, "B": 1}, "80")


def test_paths():
    with forced_path("portable"):
        assert current_path() == "portable"
    with pytest.raises(ConfigError, match="kernel path"), forced_path("fast"):
        pass


def test_every_kernel_is_in_the_manifest_once():
    assert len(kernels()) == sum(isinstance(v, KernelSpec) for family in families() for v in vars(family).values())
    assert {family_of(kernel) for kernel in kernels().values()} == {f.__name__.rpartition(".")[2] for f in families()}
    with pytest.raises(ValueError, match="not in the manifest"):
        family_of(KERNEL)


@pytest.mark.parametrize(
    ("name", "text", "meaning"),
    [
        (
            "CUDARuntimeError",
            "cudaErrorInsufficientDriver: CUDA driver version is insufficient",
            "driver is missing or too old",
        ),
        ("CUDARuntimeError", "cudaErrorNoDevice: no CUDA-capable device is detected", "CUDA_VISIBLE_DEVICES"),
        ("CUDARuntimeError", "cudaErrorMemoryAllocation: out of memory", "memory is full"),
        ("OutOfMemoryError", "Out of memory allocating 1,024 bytes", "memory is full"),
        ("CUDADriverError", "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access", "SP_KERNEL_DEBUG"),
    ],
)
def test_cuda_failures_are_explained(name, text, meaning):
    error = type(name, (RuntimeError,), {})(text)
    with pytest.raises(DeviceError, match=meaning), device.device_errors():
        raise error


def test_other_failures_pass_through():
    with pytest.raises(KeyError), device.device_errors():
        raise KeyError("x")


def test_without_cupy_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "from sp.errors import DeviceError\nfrom sp.kernels import import_cupy\n"
        "try: import_cupy()\nexcept DeviceError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cupy" in done.stdout
    assert "pip install" in done.stdout
