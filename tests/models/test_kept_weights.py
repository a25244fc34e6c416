"""Weights that are kept rounded: where there is room for them, which products take them, and when they are let go."""

from __future__ import annotations

from dry_walk import walked

from sp.gguf import GGUFFile
from sp.models import read_config
from sp.models.arithmetic import is_eligible
from sp.models.inspect.memory import file_formats, layer_matrices
from sp.pipeline.load import embedded

WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import cupy
import numpy as np
from sp.kernels import forced_path
from sp.models import load_model, prefill
COUNTED = "gemm_bytes_sm90", "gemm_bytes_portable", "gemm_bytes_portable_f32", "round_weight", "loud_weight"
for path in ("sm_90a", "portable"):
    for limit in (0, 1 << 40):
        cupy.get_default_memory_pool().set_limit(limit)
        for math in ("bf16", "int8", "fp8", "auto") if path == "sm_90a" else ("int8",):
            with forced_path(path):
                dry_device.launches.clear()
                model = load_model(sys.argv[2], device="cuda", math=math)
                made = dry_device.launches["round_weight"]
                for n in (256, 257, 1023, 1100):
                    dry_device.launches.clear()
                    prefill(model, np.arange(n), np.arange(n), model.new_cache(n))
                    counts = [dry_device.launches[name] for name in COUNTED]
                    print(path, math, limit, n, model.arithmetic.weights, model.arithmetic.kept, made, *counts)
"""


def test_marks_reach_the_kernels_of_a_device() -> None:
    """Of the last layer only keys and values are wanted of all tokens; gate and up are one product."""
    said = [line.split() for line in walked(WALK, str(embedded("target"))).splitlines()]
    launches = {(path, math, limit != "0", int(n)): [*map(int, counts)] for path, math, limit, n, *counts in said}
    products, launched = 7 * 6 + 2, 7 * 4 + 1  # q, k and v of a layer in one launch if kept
    file = GGUFFile.open(embedded("target"))
    formats, config = file_formats(file), read_config(file)
    # What meets loud channels is gathered from weights of one format at once.
    pairs = [[formats[f"blk.{i}.attn_{name}.weight"] for name in "kv"] for i in range(2, config.layers)]
    gathered = launched + sum(k is not v for k, v in pairs)
    assert launched < gathered < products
    shapes = [t.shape for t in layer_matrices(config) if is_eligible(t.name, t.shape)]
    nbytes = sum(-(-rows // 64) * 64 * (width + width // 64) for rows, width in shapes)
    for limited in (False, True):
        for math in ("bf16", "auto"):  # all of its matrices are narrow
            assert launches["sm_90a", math, limited, 1100] == [0] * 8
    for math in ("int8", "fp8"):
        for n in (257, 1023, 1100):
            assert launches["sm_90a", math, False, n] == [56, nbytes, 56, launched, 0, 0, 0, gathered]
        assert launches["sm_90a", math, True, 1100] == [56, 0, 0, products, 0, 0, 7 * 7 + 2, 0]
        assert launches["sm_90a", math, False, 256] == [56, nbytes, 56, 0, 0, 0, 0, 0]
        assert launches["sm_90a", math, True, 1023] == [56, 0, 0, 0, 0, 0, 0, 0]
    for n in (257, 1100):
        assert launches["portable", "int8", False, n] == [56, nbytes, 56, 0, 30, 14, 0, gathered]
    assert launches["portable", "int8", True, 1100] == [56, 0, 0, 0, 30, 14, 7 * 7 + 2, 0]
    assert launches["portable", "int8", False, 256][3:] == launches["portable", "int8", True, 1023][3:] == [0] * 5
