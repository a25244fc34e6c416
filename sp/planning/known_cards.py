"""Cards by name: what their vendor's data sheets say of them, which is all that a prediction knows of a card.

Sources: NVIDIA's whitepapers of GA100 (A100), GA102 (RTX 3090; the RTX 3060 by the same operations a clock and
multiprocessor), AD102 (RTX 4080 and 4090) and RTX Blackwell (RTX 5090), and the data sheets of L40S, H100 SXM and H200.
Tensor operations are dense, without sparsity. GeForce cards run bf16 and fp16 at half rate where sums are kept in
float32, as here; data-centre cards at the full one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sp.errors import unknown_name

Path = Literal["sm_90a", "portable"]


@dataclass(frozen=True)
class Card:
    """A card as its data sheet has it.

    Attributes
    ----------
    name : str
        As it is asked for.
    capability : tuple of int
        Compute capability.
    flops, int8 : float
        Dense tensor operations a second: in bf16 (and fp16) with sums in float32, and in int8.
    gib : int
        Memory, whole GiB.
    bandwidth : float
        Of that memory, in bytes a second.
    pcie : float
        Bytes a second from the host, one way.
    link : float
        Bytes a second from other cards of the machine by NVLink, one way, half of what data sheets call its bandwidth;
        0 of cards that are not linked, or two of them only.
    warp_share : float
        Share of `flops` and `int8` that products of single warps (`mma.sync`, which portable kernels are made of) can
        reach: all of it but on Hopper, 0.63 there (arXiv 2402.13499, which measured it).
    """

    name: str
    capability: tuple[int, int]
    flops: float
    int8: float
    gib: int
    bandwidth: float
    pcie: float
    link: float = 0.0
    warp_share: float = 1.0

    @property
    def path(self) -> Path:
        """Kernels that run there: those of Hopper on compute capability 9.0, elsewhere the portable ones."""
        return "sm_90a" if self.capability == (9, 0) else "portable"

    def peak(self, path: Path, in_bytes: bool = False) -> float:
        """Tensor operations a second that kernels of a path could reach in bf16, or in int8.

        >>> round(find_card("h200").peak("portable") / 1e12), round(find_card("rtx3090").peak("portable") / 1e12)
        (623, 71)
        >>> round(find_card("h200").peak("sm_90a", in_bytes=True) / 1e12)
        1979
        """
        rate = self.int8 if in_bytes else self.flops
        return rate if path == "sm_90a" else rate * self.warp_share


_PCIE4, _PCIE5 = 32e9, 64e9  # 16 lanes

KNOWN = (
    Card("rtx3060", (8, 6), 25.5e12, 102e12, 12, 360e9, _PCIE4),
    Card("rtx4080", (8, 9), 97.5e12, 390e12, 16, 716.8e9, _PCIE4),
    Card("rtx3090", (8, 6), 71e12, 284e12, 24, 936e9, _PCIE4),
    Card("rtx4090", (8, 9), 165.2e12, 660.6e12, 24, 1008e9, _PCIE4),
    Card("rtx5090", (12, 0), 209.5e12, 838e12, 32, 1792e9, _PCIE5),
    Card("l40s", (8, 9), 362e12, 733e12, 48, 864e9, _PCIE4),
    Card("a100", (8, 0), 312e12, 624e12, 80, 2039e9, _PCIE4, 300e9),
    Card("h100", (9, 0), 989e12, 1979e12, 80, 3350e9, _PCIE5, 450e9, 0.63),
    Card("h200", (9, 0), 989e12, 1979e12, 140, 4800e9, _PCIE5, 450e9, 0.63),
)
"""All of them, by memory."""


def find_card(name: str) -> Card:
    """The card of a name; ConfigError with the nearest names when there is none.

    >>> find_card("rtx4090").capability
    (8, 9)
    """
    known = {card.name: card for card in KNOWN}
    if name not in known:
        raise unknown_name("card", name, known)
    return known[name]
