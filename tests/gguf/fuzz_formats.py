"""Mutations of a file that holds a tensor in every weight format: each is refused in one line, or read and decoded.

A share runs as `test_gguf_formats_hostile.py`; many more with `fuzz_inputs.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from edits import EDGES, edited
from outcomes import Outcomes
from raw_gguf import build, string, tensor, u32

from sp.errors import GGUFError
from sp.gguf import GGUFFile
from sp.quant import FORMATS, repacked_tensors


def formats_file() -> bytes:
    """Two rows of 256 values in every format that sp reads, of random bytes, with a scale beside each."""
    rng = np.random.default_rng(0)
    tensors, data = [], b""
    for fmt in FORMATS.values():
        name = f"blk.0.{fmt.name.lower()}"
        for suffix, dims, kind, nbytes in (
            (".weight", (256, 2), fmt.ggml_type, fmt.nbytes((2, 256))),
            (".scale", (1,), 0, 4),
        ):
            tensors.append(tensor(name + suffix, dims, kind, len(data)))
            data += rng.bytes(nbytes) + bytes(-nbytes % 32)
    return build([string("general.architecture", "qwen3"), u32("general.alignment", 32)], tensors, data)


VALID = formats_file()
HEADER_BYTES = VALID.rindex(b".scale") + 32


def mutation(rng: np.random.Generator) -> bytes:
    """One to three edits, half of them in the header."""
    content = VALID
    for _ in range(rng.integers(1, 4)):
        kind = str(rng.choice(["u64", "u32", "type", "bit", "cut", "copy", "noise"]))
        at = int(rng.integers(0, HEADER_BYTES if rng.random() < 0.5 else len(VALID)))
        value: int | bytes = int(rng.integers(0, HEADER_BYTES))
        if kind == "u64":
            value = EDGES[rng.integers(len(EDGES))]
        elif kind == "u32":
            value = EDGES[rng.integers(len(EDGES))] & 0xFFFFFFFF
        elif kind == "type":  # of a tensor, after its name, the number of dimensions and two of them
            at = VALID.index(b".weight", at % (HEADER_BYTES - 200)) + 7 + 4 + 16
            kind, value = "u32", int(rng.integers(0, 45))
        elif kind == "bit":
            at = 8 * at + int(rng.integers(8))
        elif kind == "cut":
            value = int(rng.integers(1, 65))
        elif kind == "noise":
            value = rng.bytes(int(rng.integers(1, 25)))
        content = edited(content, (kind, at, value))
    return content


def read_all(path: Path) -> int:
    """Open a file and decode every tensor in it; how many there were. The last refusal of a tensor is raised."""
    decoded, refused = 0, None
    with GGUFFile.open(path) as file, np.errstate(all="ignore"):
        for name, info in file.tensors.items():
            try:
                decoded += file.weight(name).dense().size == info.elements
            except GGUFError as error:
                refused = error
        repacked_tensors(file.tensors)
    if refused is not None:
        raise refused
    return decoded


def try_many(count: int, seed: int) -> Outcomes:
    """So many mutations, written to where one stands; what became of them."""
    rng, outcomes, path = np.random.default_rng(seed), Outcomes(), Path("f.gguf")
    for _ in range(count):
        content = mutation(rng)
        path.write_bytes(content)
        outcomes.meet([lambda: read_all(path)], lambda content=content: repr(content))
    return outcomes
