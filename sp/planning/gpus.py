"""Find the GPUs that hold a model, alone and with a drafter, and up to what prompt length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from math import ceil
from typing import Any, Literal

from sp.errors import unknown_name
from sp.models.cache.kv_type import DEVICE_KV
from sp.models.config import ModelConfig, first_layers
from sp.models.synthetic.shapes import find_shape, list_shapes
from sp.planning.memory import Stacks, device_weights, kv_bytes, least_cold, prefill_bytes, scoring_bytes, state_bytes
from sp.quant import BlockFormat, Math

Path = Literal["sm_90a", "portable"]


@dataclass(frozen=True)
class GPUSpec:
    """A GPU by its data sheet.

    `link`: bytes per second from other GPUs of the machine by NVLink, in one direction, half of what data sheets call
    its bandwidth; 0 for GPUs without it, or with links between pairs only. `warp_share`: share of `flops` and `int8`
    that products of single warps (`mma.sync`, used by the portable kernels) can reach: all of it except on Hopper,
    where 0.63 was measured (arXiv 2402.13499)."""

    name: str  # value of --gpu
    capability: tuple[int, int]  # compute capability
    flops: float  # flops, int8: dense tensor operations per second in bf16 (and fp16) with float32 sums, and in int8
    int8: float
    gib: int  # memory, whole GiB
    bandwidth: float  # of that memory, in bytes per second
    pcie: float  # bytes per second from the host, in one direction
    link: float = 0.0
    warp_share: float = 1.0

    @property
    def path(self) -> Path:
        """Its kernels: those of Hopper on compute capability 9.0, else the portable ones."""
        return "sm_90a" if self.capability == (9, 0) else "portable"

    def peak(self, path: Path, in_bytes: bool = False) -> float:
        """Return the tensor operations per second that kernels of a path could reach in bf16, or in int8.

        >>> round(find_gpu("h200").peak("portable") / 1e12), round(find_gpu("rtx3090").peak("portable") / 1e12)
        (623, 71)
        >>> round(find_gpu("h200").peak("sm_90a", in_bytes=True) / 1e12)
        1979
        """
        rate = self.int8 if in_bytes else self.flops
        return rate if path == "sm_90a" else rate * self.warp_share


_PCIE4, _PCIE5 = 32e9, 64e9  # 16 lanes

KNOWN = (
    GPUSpec("rtx3060", (8, 6), 25.5e12, 102e12, 12, 360e9, _PCIE4),
    GPUSpec("rtx4080", (8, 9), 97.5e12, 390e12, 16, 716.8e9, _PCIE4),
    GPUSpec("rtx3090", (8, 6), 71e12, 284e12, 24, 936e9, _PCIE4),
    GPUSpec("rtx4090", (8, 9), 165.2e12, 660.6e12, 24, 1008e9, _PCIE4),
    GPUSpec("rtx5090", (12, 0), 209.5e12, 838e12, 32, 1792e9, _PCIE5),
    GPUSpec("l40s", (8, 9), 362e12, 733e12, 48, 864e9, _PCIE4),
    GPUSpec("a100", (8, 0), 312e12, 624e12, 80, 2039e9, _PCIE4, 300e9),
    GPUSpec("h100", (9, 0), 989e12, 1979e12, 80, 3350e9, _PCIE5, 450e9, 0.63),
    GPUSpec("h200", (9, 0), 989e12, 1979e12, 140, 4800e9, _PCIE5, 450e9, 0.63),
)
"""GPUs ordered by memory; predictions use nothing but these values from data sheets.

Sources: NVIDIA's whitepapers of GA100 (A100), GA102 (RTX 3090; the RTX 3060 by the same operations per clock and
multiprocessor), AD102 (RTX 4080 and 4090) and RTX Blackwell (RTX 5090), and the data sheets of L40S, H100 SXM and H200.
Tensor operations are dense, without sparsity. GeForce GPUs run bf16 and fp16 at half rate where sums are kept in
float32, as here; data-centre GPUs at the full rate.
"""


def find_gpu(name: str) -> GPUSpec:
    """Return the GPU of a name; ConfigError, with the nearest names, if there is none."""
    known = {gpu.name: gpu for gpu in KNOWN}
    if name not in known:
        raise unknown_name("GPU", name, known)
    return known[name]


GPUS = tuple(sorted({gpu.gib for gpu in KNOWN}))  # sizes of GPUs in GiB
SYSTEM = 1 << 30  # bytes of a GPU that driver, context and kernels take
LENGTHS = tuple(1 << power for power in range(13, 19))
KEEP, ANSWER = 0.05, 256  # share of a prompt that is selected and tokens of an answer, which the table assumes
DRAFTER_TYPE, LARGEST_DRAFTER = "bf16", 2 * 10**9
"""File type of published drafters, and most parameters of a model that is proposed as one."""


@dataclass(frozen=True)
class Drafter:
    """A model that could score for a target."""

    name: str
    config: ModelConfig  # with the layers that are loaded
    weights: int  # bytes of the loaded part on the device
    of_layers: int | None = None  # layers of the whole model; by default those of `config`

    @property
    def layers(self) -> int:
        """Number of layers of the whole model."""
        return self.of_layers or self.config.layers

    @classmethod
    def of(
        cls, name: str, config: ModelConfig, formats: Mapping[str, BlockFormat], depth: int | None, gpus: int = 1
    ) -> Drafter:
        """Describe a model of which `depth` layers are loaded, without its head; all of it for None. Errors as for
        `device_weights`."""
        weights = weights_bytes(config, formats, gpus, depth)
        return cls(name, first_layers(config, depth), weights, config.layers)

    @property
    def depth_label(self) -> str:
        """The loaded layers, as in ``19 of 30 layers``; empty if all are."""
        return "" if self.config.layers == self.layers else f"{self.config.layers} of {self.layers} layers"


def drafters_for(target: ModelConfig, parameters: int) -> list[Drafter]:
    """List small published models, those with the most similar name of the architecture first. A drafter may have
    another vocabulary than the target, since scores are aligned by bytes of the text."""
    ranked = [
        (-_alike(drafter.config.architecture, target.architecture), size, drafter.name, drafter)
        for size, drafter in _small()
        if 4 * size <= parameters
    ]
    return [drafter for *_, drafter in sorted(ranked, key=lambda row: row[:3])]


@cache
def _small() -> tuple[tuple[int, Drafter], ...]:
    """List the shapes that may be proposed as drafters, with their parameters."""
    sized_drafters = []
    for name in list_shapes():
        shape = find_shape(name)
        size = sum(tensor.size for tensor in shape.tensors())
        if not name.startswith("tiny-") and size <= LARGEST_DRAFTER:
            formats = {tensor: fmt for tensor, _, fmt in shape.plan(DRAFTER_TYPE)}
            sized_drafters.append((size, Drafter.of(name, shape.config, formats, None)))
    return tuple(sized_drafters)


def _alike(a: str, b: str) -> int:
    """Return the length of the prefix that two names share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def weights_bytes(
    config: ModelConfig, formats: Mapping[str, BlockFormat], gpus: int = 1, depth: int | None = None
) -> int:
    """Sum the bytes of a model's weights on the device; arguments and errors as for `device_weights`."""
    return sum(row.nbytes for row in device_weights(config, formats, gpus, depth))


@dataclass(frozen=True)
class Need:
    """Device memory that a request needs, in bytes."""

    together: int  # with both models resident
    by_turns: int  # with the idle model offloaded, as within ``--vram``
    cold: int | None = None  # with experts of the target offloaded as well, see `least_cold`

    @property
    def least(self) -> int:
        """Bytes in the mode that takes the least."""
        return self.by_turns if self.cold is None else min(self.by_turns, self.cold)


def need(
    target: ModelConfig,
    weights: int,
    drafter: Drafter | None,
    tokens: int,
    kv: str,
    keep: float = KEEP,
    stacks: Stacks = (),
    precision: Math = Math.BF16,
) -> Need:
    """Compute the memory for a prompt of `tokens` and its answer: prefilled in full, or a share that a drafter
    selected.

    `stacks` are those of a mixture's experts, see `stack_bytes`; `precision` is that of the target's products."""
    read_tokens = tokens if drafter is None else ceil(keep * tokens)
    resident = weights + state_bytes(target) + kv_bytes(target, read_tokens + ANSWER, kv)
    reading = resident + prefill_bytes(target, read_tokens, precision, kv)
    cold = least_cold(target, weights, stacks, reading - weights)
    if drafter is None:
        return Need(reading, reading, cold)
    scoring = drafter.weights + scoring_bytes(drafter.config, tokens)
    together = max(reading + drafter.weights, resident + scoring)
    return Need(together, max(reading, scoring), None if cold is None else max(cold, scoring))


def gpu_rows(
    target: ModelConfig,
    weights: int,
    drafters: Iterable[Drafter],
    kv: str,
    lengths: Iterable[int] = LENGTHS,
    stacks: Stacks = (),
) -> list[dict[str, Any]]:
    """Return for every GPU (``card``, in GiB) the longest prompt with its answer that fits.

    ``full`` is for a full prefill, up to the target's window; ``full_by_turns`` the same with experts offloaded;
    ``drafters`` has for each drafter ``together`` (both resident) and ``by_turns``. None if not even the shortest fits.
    """
    lengths, rows = tuple(lengths), []

    def needs_of(drafter: Drafter | None, most: int) -> dict[int, Need]:
        return {n: need(target, weights, drafter, n - ANSWER, kv, stacks=stacks) for n in lengths if n <= most}

    whole = needs_of(None, target.context)
    pairs = {drafter.name: needs_of(drafter, max(lengths)) for drafter in drafters}
    for gpu in GPUS:
        room = (gpu << 30) - SYSTEM
        rows.append(
            {
                "card": gpu,
                "kv": kv,
                "full": _longest({n: model_need.together for n, model_need in whole.items()}, room),
                "full_by_turns": _longest({n: model_need.least for n, model_need in whole.items()}, room),
                "drafters": {
                    name: {
                        "together": _longest({n: model_need.together for n, model_need in needs.items()}, room),
                        "by_turns": _longest({n: model_need.least for n, model_need in needs.items()}, room),
                    }
                    for name, needs in pairs.items()
                },
            }
        )
    return rows


def _longest(needs: Mapping[int, int], room: int) -> int | None:
    return max((n for n, nbytes in needs.items() if nbytes <= room), default=None)


REPORTED_LENGTHS = (8192, 32768, 131072)  # lengths of prompt and answer for which plans report memory, in tokens


@dataclass(frozen=True)
class MemoryMode:
    """A mode to run a request. `by_turns`: True if idle weights are offloaded to host memory, including experts of the
    target if that needs the least memory."""

    kv: str  # cache type of the target
    by_turns: bool
    nbytes: int  # on the GPU

    def options(self, gpu: int) -> tuple[str, ...]:
        """Return the options of `sp run` for this mode on a GPU of `gpu` GiB; empty for the default mode."""
        cache = () if self.kv == DEVICE_KV[0] else (f"--kv {self.kv}",)
        return (*cache, f"--vram {room(gpu) >> 30}g") if self.by_turns else cache


def room(gpu: int) -> int:
    """Return the bytes of a GPU of `gpu` GiB for models, caches and workspace: the budget for ``--vram``."""
    return (gpu << 30) - SYSTEM


def caches(target: ModelConfig) -> list[str]:
    """List the cache types that the device supports for a model's heads, the exact one first."""
    widths = [sizes.head_dim for sizes in target.head_sizes]
    return [kv for kv in DEVICE_KV if kv.takes(widths)]


def memory_modes(
    target: ModelConfig,
    weights: int,
    drafter: Drafter | None,
    tokens: int,
    keep: float = KEEP,
    stacks: Stacks = (),
    precision: Math = Math.BF16,
    alone: bool = True,
) -> Iterator[MemoryMode]:
    """Yield all modes for `tokens` tokens of prompt and answer, the most exact first.

    Offloading costs copies, most of all for experts (`stacks`), but changes no token. A quantised cache rounds keys and
    values, so it comes after that. Without a drafter the prompt is prefilled in full, if the window allows it. Several
    GPUs (not `alone`) offload nothing.
    """
    if drafter is None and tokens > target.context:
        return
    for kv in caches(target):
        needs = need(target, weights, drafter, max(tokens - ANSWER, 1), kv, keep, stacks, precision)
        yield MemoryMode(kv, False, needs.together)
        if alone and needs.by_turns < needs.together:
            yield MemoryMode(kv, True, needs.by_turns)
        if alone and needs.least < needs.by_turns:
            yield MemoryMode(kv, True, needs.least)


def scoring_mode(drafter: Drafter, tokens: int) -> MemoryMode:
    """Return the memory that a drafter alone needs to score a prompt; it has no cache."""
    return MemoryMode(DEVICE_KV[0], False, drafter.weights + scoring_bytes(drafter.config, max(tokens - ANSWER, 1)))


def best(candidates: Sequence[MemoryMode], gpu: int) -> MemoryMode | None:
    """Return the first of the modes that a GPU has room for; None if it has room for none."""
    return next((mode for mode in candidates if mode.nbytes <= room(gpu)), None)


def smallest_gpu(candidates: Sequence[MemoryMode]) -> int | None:
    """Return the GiB of the smallest GPU that has room for any of the modes; None if none has."""
    return next((gpu for gpu in GPUS if best(candidates, gpu)), None)


def longest(
    target: ModelConfig,
    weights: int,
    drafter: Drafter | None,
    gpu: int,
    keep: float = KEEP,
    stacks: Stacks = (),
    alone: bool = True,
) -> tuple[int, MemoryMode] | None:
    """Return the longest of `REPORTED_LENGTHS` that a GPU has room for, and its mode; None if none fits."""
    for tokens in reversed(REPORTED_LENGTHS):
        if mode := best(list(memory_modes(target, weights, drafter, tokens, keep, stacks, alone=alone)), gpu):
            return tokens, mode
    return None
