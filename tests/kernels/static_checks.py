"""Static assertions of kernels, which the front end of NVRTC decides: no code is generated."""

from __future__ import annotations

from sp.kernels import nvrtc

SYNTAX_ONLY = "-fdevice-syntax-only"  # a hundredth of the time of a whole compilation


def check_statically(text: str, name: str, defines: dict[str, int], arch: str) -> None:
    """Raise DeviceError if an assertion of a flattened source fails, or its syntax is wrong."""
    nvrtc.compile_cubin(text, name, (*nvrtc.compile_options(defines, arch), SYNTAX_ONLY))
