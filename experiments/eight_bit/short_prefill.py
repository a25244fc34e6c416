"""Where a short prefill of the 27B shape in int8 spends its time, by leaving kernels out, one more a line, on the GPU.

    python experiments/eight_bit/short_prefill.py --tokens 512      # about a minute on an H200

A model multiplies fewer than `sp.ops.byte_rows.rows.ROUNDED_TOKENS` in BF16; here it is made to take int8, and prefills
are timed as `sp bench model` times them, in a CUDA graph. With kernels left out results are wrong, and times are what
the rest takes; what a kernel costs where it stands, waiting included, is the difference to the line before. A profile
does not say that: times of kernels that start early hold the time in which they wait. What says how many channels are
loud is never left out, for the others read it. "no early starts" launches the kernels of products one behind the other,
without programmatic dependent launches, and so do the lines below it: what starts early waits for a kernel that is
there. The last two are of weights that are rounded anew, and BF16.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sp.bench.model import Timing, Trial, run_tests
from sp.kernels.launch import KernelSpec
from sp.kernels.specs.matmul.gemm_bytes import (
    GEMM_BYTES_SM90,
    LOUD_CHANNELS,
    LOUD_INPUTS,
    LOUD_WEIGHT,
    ROUND_INPUTS,
)
from sp.models.device.kept import let_go
from sp.models.synthetic.random_store import random_model
from sp.ops.matmul import byte_products

LEFT_OUT = (LOUD_WEIGHT, ROUND_INPUTS, GEMM_BYTES_SM90)
"""In the order in which they are left out."""
ALL = (*LEFT_OUT, LOUD_CHANNELS, LOUD_INPUTS)
"""The kernels of a product in int8 with kept weights."""


@contextmanager
def without(left_out: tuple[KernelSpec, ...]) -> Iterator[None]:
    """Launches of some kernels do nothing."""
    launch: Callable[..., None] = KernelSpec.launch

    def chosen(self: KernelSpec, *arguments: Any, **options: Any) -> None:
        if self not in left_out:
            launch(self, *arguments, **options)

    KernelSpec.launch = chosen  # type: ignore[method-assign]
    try:
        yield
    finally:
        KernelSpec.launch = launch  # type: ignore[method-assign]


@contextmanager
def one_behind_another() -> Iterator[None]:
    """No kernel of `ALL` starts before the one before it has ended."""
    for spec in ALL:
        object.__setattr__(spec, "pdl", False)
    try:
        yield
    finally:
        for spec in ALL:
            object.__setattr__(spec, "pdl", True)


def main() -> None:
    """Print a line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--shape", default="qwen3.6-27b")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    def timed(model: Any) -> Timing:
        (timing,) = run_tests(model, [Trial(arguments.tokens)], arguments.repeats)
        return timing

    def tell(name: str, timing: Timing) -> None:
        found = 1e3 * statistics.median(timing.seconds)
        print(f"{name:<44}{found:9.2f} ms  {dict(timing.read)} {timing.refused or ''}", flush=True)

    byte_products.ROUNDED_TOKENS = arguments.tokens
    model = random_model(arguments.shape, "q4_k_m", math="int8")
    tell(f"int8, {arguments.tokens} tokens", timed(model))
    with one_behind_another():
        tell("no early starts", timed(model))
    for count in range(1, len(LEFT_OUT) + 1):
        with one_behind_another(), without(LEFT_OUT[:count]):
            tell(f"{'and ' if count > 1 else ''}without {LEFT_OUT[count - 1].entry}", timed(model))
    kept, model.trunk = model.trunk, let_go(model.trunk)
    tell("rounded anew", timed(model))
    model.trunk, byte_products.ROUNDED_TOKENS = kept, arguments.tokens + 1
    tell("BF16", timed(model))


if __name__ == "__main__":
    main()
