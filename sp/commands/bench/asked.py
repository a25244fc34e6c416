"""What all benches are asked alike: where results go, in which form, and which kernels run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from sp.commands.terminal import check_folder
from sp.errors import ConfigError, unknown_name

OUTPUTS = ("table", "md", "json", "csv")
PATHS = ("auto", "portable")


def asked_output(output: str, as_json: bool, record: Path | None, path: str = "auto") -> str:
    """The form of the results, once everything that `Output`, `RecordBelow` and `KernelPath` may be is right.

    Raises
    ------
    ConfigError
        For an unknown form or path of kernels, or a folder that is none.
    """
    output = "json" if as_json else output
    if output not in OUTPUTS:
        raise unknown_name("output", output, OUTPUTS)
    check_folder(record, "--record")
    if path not in PATHS:
        raise unknown_name("path", path, PATHS)
    return output


def group_of(cards: int, device: str) -> Any:
    """The first `cards` GPUs; None for one. ConfigError on the CPU, DeviceError where there are not so many."""
    if cards == 1:
        return None
    if device == "cpu":
        raise ConfigError("--cards is for GPUs; on the CPU leave it away")
    from sp.parallel.nccl import NcclGroup

    return NcclGroup(tuple(range(cards)))


def kernels_of(path: str, device: str) -> tuple[str, AbstractContextManager[None]]:
    """The path that kernels take on a device, as records have it, and what to time within."""
    from sp.kernels import forced_path
    from sp.kernels.path import native_path

    if device != "cuda":
        return "numpy", nullcontext()
    return (native_path(), nullcontext()) if path == "auto" else (path, forced_path(path))
