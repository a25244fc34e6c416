"""Weights that are kept rounded: where there is room for them, which products take them, and when they are let go."""

from __future__ import annotations

from dry_walk import walked

from sp.gguf import GGUFFile
from sp.models import read_config
from sp.models.network.arithmetic import is_eligible
from sp.planning.memory import file_formats, layer_matrices
from sp.session.loaded import embedded

WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import cupy
import numpy as np
from sp.kernels import forced_path
from sp.models import load_model, prefill
COUNTED = ("gemm_bytes_sm90", "gemm_bytes_portable", "gemm_bytes_portable_f32", "loud_weight", "loud_inputs",
           "round_rows")
for path in ("sm_90a", "portable"):
    for limit in (0, 1 << 40):
        cupy.get_default_memory_pool().set_limit(limit)
        for precision in ("bf16", "int8", "fp8", "auto") if path == "sm_90a" else ("int8",):
            with forced_path(path):
                dry_device.launches.clear()
                model = load_model(sys.argv[2], device="cuda", precision=precision)
                made = dry_device.launches["round_rows"]
                for n in (300, 511, 512, 1100):
                    dry_device.launches.clear()
                    prefill(model, np.arange(n), np.arange(n), model.new_cache(n))
                    counts = [dry_device.launches[name] for name in COUNTED]
                    print(path, precision, limit, n, model.arithmetic.weights, model.arithmetic.kept, made, *counts)
"""


def test_marks_reach_the_kernels_of_a_device() -> None:
    """Of the last layer only keys and values are wanted of all tokens; gate and up are one product."""
    said = [line.split() for line in walked(WALK, str(embedded("target"))).splitlines()]
    launches = {
        (path, precision, limit != "0", int(n)): [*map(int, counts)] for path, precision, limit, n, *counts in said
    }
    products, launched = 7 * 6 + 2, 7 * 4 + 1  # q, k and v of a layer in one launch if kept
    file = GGUFFile.open(embedded("target"))
    formats, config = file_formats(file), read_config(file)
    # Columns for outlier channels are gathered from weights of one format at once.
    pairs = [[formats[f"blk.{i}.attn_{name}.weight"] for name in "kv"] for i in range(2, config.layers)]
    gathered = launched + sum(k is not v for k, v in pairs)
    assert launched < gathered < products
    shapes = [t.shape for t in layer_matrices(config) if is_eligible(t.name, t.shape)]
    nbytes = sum(-(-rows // 64) * 64 * (width + 4) for rows, width in shapes)
    inputs = 7 * 4 + 1  # searched for outlier channels, and rounded: those of a layer's products
    rounded = inputs + 7 * 7 + 2  # with weights
    for limited in (False, True):
        for precision in ("bf16", "auto"):  # all of its matrices are narrow
            assert launches["sm_90a", precision, limited, 1100] == [0] * 9
    for n in (512, 1100):
        for precision in ("int8", "fp8"):
            kept = launches["sm_90a", precision, False, n]
            assert kept == [56, nbytes, 56, launched, 0, 0, gathered, inputs, inputs]
            assert launches["sm_90a", precision, True, n] == [56, 0, 0, products, 0, 0, products, inputs, rounded]
        assert launches["portable", "int8", False, n] == [56, nbytes, 56, 0, 30, 14, gathered, inputs, inputs]
        assert launches["portable", "int8", True, n] == [56, 0, 0, 0, 30, 14, products, inputs, rounded]
    for path, precision in (("sm_90a", "int8"), ("sm_90a", "fp8"), ("portable", "int8")):
        for n in (300, 511):  # in BF16, kept or not
            assert launches[path, precision, False, n] == [56, nbytes, 56, 0, 0, 0, 0, 0, 0]
            assert launches[path, precision, True, n] == [56, 0, 0, 0, 0, 0, 0, 0, 0]


SHORT = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import cupy
import numpy as np
from contextlib import ExitStack
from sp.errors import DeviceError
from sp.models import prefill
from sp.models.device.prequantized import drop_prequantized
from sp.models.network.weights import map_leaves
from sp.session import Pipeline, RunOptions
from sp.session.report import precision_lines
from sp.trace import Stage

def kept(model):
    found = []
    map_leaves(model.weights.blocks, lambda leaf: found.append(leaf) if getattr(leaf, "kept", None) else leaf)
    return len(found)

def opened():
    pair = Pipeline.open(device="cuda", precision="int8", drafter_precision="int8")
    models = pair.target.model, pair.drafter.model
    assert [(kept(one), one.arithmetic.kept > 0) for one in models] == [(56, True), (21, True)]
    return pair, *models

pair, target, drafter = opened()
stages = [Stage("target prefill", 1100), Stage("score", 511)]
print(*precision_lines(pair.target, pair.drafter, RunOptions().scorer, stages), sep="\\n")

# The model that reads goes on without its own, once.
tries = []
def work():
    tries.append((kept(target), kept(drafter)))
    if len(tries) == 1:
        raise DeviceError("the GPU's memory is full")
    return "read"
with ExitStack() as stack:
    assert pair.memory_manager.attempt(stack, "target", 300, work) == "read"
assert tries == [(56, 21), (0, 21)], tries
assert target.arithmetic.kept == 0 and drafter.arithmetic.kept > 0

# Where memory is short, what is kept goes before parts of a model that is idle.
assert pair.memory_manager._leave_room(1)
assert kept(drafter) == 0 and not pair.memory_manager._models["drafter"].offloaded
print(*precision_lines(pair.target, pair.drafter, RunOptions().scorer, []), sep="\\n")

# Parts that leave take nothing along.
pair, target, drafter = opened()
parts = pair.memory_manager._models["target"]
parts.offload(parts.resident[:3])
assert target.arithmetic.kept == 0
parts.onload(parts.offloaded, cupy.cuda.Stream())
assert kept(target) == 0
prefill(target, np.arange(1100), np.arange(1100), target.new_cache(1100))

# Under a budget nothing is kept, nor from one on.
pair, target, drafter = opened()
with pair.within(1 << 40).memory_manager.using("target", 300):
    assert kept(target) == kept(drafter) == target.arithmetic.kept == drafter.arithmetic.kept == 0
bound = Pipeline.open(device="cuda", vram=1 << 30, precision="int8")
assert bound.target.model.arithmetic.kept == kept(bound.target.model) == 0
"""


def test_what_is_kept_is_let_go_where_memory_is_short_and_the_report_says_so() -> None:
    said = walked(SHORT).splitlines()
    tail = "; attention of runs from 2,049 tokens on"
    kept = ", prequantized in 0.03 GiB, 1,100 of 1,100 tokens"
    assert said[0] == f"target: int8 for 56 of 70 matrices of layers{kept}{tail}"
    assert said[1].startswith("drafter: int8 for 21 of 35 matrices of layers, prequantized in 0.0")
    assert said[1].endswith(" GiB, 0 of 511 tokens" + tail)
    assert said[2:] == [
        "target: int8 for 56 of 70 matrices of layers" + tail,
        "drafter: int8 for 21 of 35 matrices of layers" + tail,
    ]
