"""The same model in other block formats, to see what quantisation of the drafter costs its ranking.

    python experiments/ablations/requantise.py drafters [--source FILE.gguf] [--types f16,q8_0,q4_k,q4_0]

Writes one file a type, ``<name>-<type>.gguf``, with every matrix in that format; vectors and convolution taps stay
F32, and matrices whose rows are no whole blocks become Q8_0. Values come from the source as it is, so from a
quantised source a type with more bits loses nothing and gains nothing. By default the embedded drafter, which is Q8_0.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sp.errors import SpError, unknown_name
from sp.gguf import GGUFFile, GGUFWriter
from sp.quant import F16, F32, Q4_0, Q4_K, Q8_0, BlockFormat
from sp.session.loaded import embedded

TYPES: dict[str, tuple[BlockFormat, int]] = {"f16": (F16, 1), "q8_0": (Q8_0, 7), "q4_k": (Q4_K, 14), "q4_0": (Q4_0, 2)}
"""Format, and the number of the file type in ``general.file_type``."""


def requantise(source: Path, target: Path, kind: str) -> Path:
    """Write `source` with its matrices in another format.

    Parameters
    ----------
    source, target : Path
    kind : str
        A name of `TYPES`.
    """
    if kind not in TYPES:
        raise unknown_name("type", kind, TYPES)
    fmt, number = TYPES[kind]
    with GGUFFile.open(source) as file:
        writer = GGUFWriter(target, dict(file.metadata) | {"general.file_type": number})
        for name in file.tensors:
            weight = file.weight(name)
            own = fmt if weight.shape[-1] % fmt.block_size == 0 else Q8_0
            if len(weight.shape) < 2 or "conv1d" in name:
                own = F32
            writer.add(name, weight.shape, own, own.encode(weight.dense()))
        return writer.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, default=embedded("drafter"))
    parser.add_argument("--types", default=",".join(TYPES))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        for kind in given.types.split(","):
            path = requantise(given.source, given.folder / f"{given.source.stem}-{kind}.gguf", kind)
            print(f"{path}: {path.stat().st_size:,} bytes")
    except SpError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
