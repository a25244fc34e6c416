"""Make `ggml_reference.npz`: the bytes ggml's own C quantisers write, so that the tests need no compiler.

    gcc -O2 -ffp-contract=off -shared -fPIC -I ggml/src -I ggml/include -o libq.so ggml/src/ggml-quants.c stub.c -lm
    python tests/quant/make_ggml_reference.py ./libq.so

`stub.c` defines the few symbols of ggml.c that the quantisers never reach (ggml_abort, ggml_type_name, ...).
`-ffp-contract=off` keeps products and sums separately rounded, as the source reads. The committed file was made
from the ggml inside llama_cpp_python 0.3.16.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
from quant_samples import samples

from sp.quant import Q4_0, Q4_K, Q5_K, Q6_K, Q8_0
from sp.quant.formats.kquants import search_affine


def decided_by_the_last_step(top: int, first: float, steps: int) -> np.ndarray:
    """Two blocks of sub-blocks for which the last trial of the search wins: one in a thousand, so drawn on purpose."""
    columns = np.random.default_rng(16).exponential(size=(32, 100_000)).astype(np.float32)
    last = search_affine(columns, top, first, steps).scale != search_affine(columns, top, first, steps - 1).scale
    return columns.T[last][:16].reshape(512)


def main(library: str) -> None:
    """Write the fixture next to this script."""
    lib = ctypes.CDLL(library)
    cases = [*samples(512, seed=13).values()]
    cases += [decided_by_the_last_step(15, -1.0, 20), decided_by_the_last_step(31, -0.5, 15)]
    values = np.stack(cases)
    arrays = {"values": values}
    for fmt in (Q8_0, Q4_0, Q4_K, Q5_K, Q6_K):
        out = np.zeros((len(values), fmt.row_bytes(values.shape[1])), np.uint8)
        function = getattr(lib, f"quantize_row_{fmt.name.lower().replace('_k', '_K')}_ref")
        function(
            values.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(values.size)
        )
        arrays[fmt.name] = out
    np.savez_compressed(Path(__file__).with_name("ggml_reference.npz"), **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
