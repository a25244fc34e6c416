"""Which attention kernel a stage is quickest with, asked on the GPU at hand.

Most of a step beyond a few thousand tokens is attention, and flash attention as PyTorch has it was written for the
GPUs before Hopper; cuDNN's kernels use what Hopper added. Both compute the same, so a stage takes whichever is quicker
at its shape on the GPU at hand: forward and backward, replayed from a CUDA graph as a step is. A kernel that refuses a
shape, or whose gradients are not those of the other, is not taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from feed import Stage
from layers import attend
from shapes import DRAFTER, TARGET
from torch import Tensor

CLOSE = 0.05
"""Most that outputs and gradients may differ, relative to their norm; a kernel that is wrong is off by about 1."""
RUNS = 4
FLASH, CUDNN = False, True


class Shape(NamedTuple):
    """Of the attention of one layer."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def flops(self) -> float:
        """Of forward and backward, the causal half only."""
        return 3.5 * 4 * self.batch * self.heads * self.head_dim * self.length**2 / 2


def shape_of(stage: Stage, role: str) -> Shape:
    """The shape that a stage of a role has."""
    c = DRAFTER if role == "drafter" else TARGET
    return Shape(stage.batch, stage.length, c.heads, c.kv_heads, c.head_dim)


def use(cudnn: bool) -> None:
    """Let one of the two kernels be taken, and none that writes the whole matrix down."""
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    torch.backends.cuda.enable_flash_sdp(not cudnn)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


@contextmanager
def kernel(cudnn: bool) -> Iterator[None]:
    """The same for a while; flash afterwards."""
    use(cudnn)
    try:
        yield
    finally:
        use(FLASH)


def inputs(shape: Shape) -> list[Tensor]:
    """Queries, keys and values as a layer has them, and a gradient of the output."""
    generator = torch.Generator("cuda").manual_seed(0)
    b, n, d = shape.batch, shape.length, shape.head_dim
    sizes = [(b, n, heads, d) for heads in (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)]
    made = [torch.randn(one, generator=generator, device="cuda", dtype=torch.bfloat16) for one in sizes]
    return [*(one.requires_grad_() for one in made[:3]), made[3]]


def replayed(shape: Shape) -> tuple[float, list[Tensor]]:
    """Milliseconds of forward and backward in a graph, and the output and gradients."""
    q, k, v, back = inputs(shape)

    def run() -> list[Tensor]:
        out = attend(q, k, v)
        return [out, *torch.autograd.grad(out, (q, k, v), back)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(RUNS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / RUNS, [one.detach().float() for one in found]


def quicker(shape: Shape) -> tuple[bool, dict[str, object]]:
    """Whether cuDNN is taken, and what was seen of both."""
    told: dict[str, object] = {"attention": list(shape)}
    with kernel(FLASH):
        flash, want = replayed(shape)
    told |= {"flash_ms": round(flash, 3), "flash_tflops": round(shape.flops / flash / 1e9)}
    try:
        with kernel(CUDNN):
            cudnn, got = replayed(shape)
    except RuntimeError as error:
        return FLASH, told | {"taken": "flash", "cudnn": str(error).splitlines()[0][:200]}
    change = max(float((a - b).norm() / b.norm()) for a, b in zip(got, want, strict=True))
    taken = CUDNN if cudnn < flash and change < CLOSE else FLASH
    told |= {"cudnn_ms": round(cudnn, 3), "cudnn_tflops": round(shape.flops / cudnn / 1e9), "change": round(change, 5)}
    return taken, told | {"taken": "cudnn" if taken else "flash"}
