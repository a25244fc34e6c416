"""ColdExperts: layers whose experts wait in host memory, and what is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sp.kernels import import_cupy
from sp.models.layers.hot_experts import count_choices, hit_rate
from sp.models.layers.stack_ring import StackRing
from sp.ops.delta.delta_tree import MOST_NODES

BY_NEED = MOST_NODES
"""Tokens up to which kernels read the experts that were chosen from host memory, and no layer is brought over: those of
the largest tree, for a CUDA graph cannot hold copies that are begun ahead of it."""
SHARES = (0.125, 0.25, 0.5)
"""Of a layer's experts that hit rates are told of."""


class ColdExperts:
    """What the cold layers of a model share.

    Parameters
    ----------
    ring : StackRing
        Of their stacks.
    layers : int
        Of the model, cold or not.
    count : int
        Experts of one.
    """

    def __init__(self, ring: StackRing, layers: int, count: int) -> None:
        self.ring, self._layers = ring, layers
        cupy, shape = import_cupy(), (len(ring.layers), count)
        self._chosen, self._by_prompt = cupy.zeros(shape, "uint32"), cupy.zeros(shape, "uint32")
        self._one = cupy.ones(1, "uint32")

    def layer(self, index: int) -> ColdLayer:
        """What the experts of one of them need to know."""
        return ColdLayer(index, self.ring, self._chosen[self.ring.layers.index(index)], self._one)

    def restart(self) -> None:
        """Forget what was chosen: a prompt is about to be read."""
        self._chosen.fill(0)

    def end_of_prompt(self) -> None:
        """What is chosen from now on is chosen while decoding."""
        self._by_prompt[...] = self._chosen
        self._chosen.fill(0)

    def choices(self) -> Choices:
        """What was chosen since `restart`; waits for the device."""
        prompt, decoded = self._by_prompt.get(), self._chosen.get()
        rates = {f"{share:g}": hit_rate(prompt, decoded, share) for share in SHARES} if decoded.any() else {}
        return Choices(int(prompt.sum()), int(decoded.sum()), rates)

    def lines(self, choices: Choices) -> list[str]:
        """What the report says."""
        found = [told(self.ring.layers, self._layers, self.ring.host_bytes)]
        if choices.hit_rates:
            rates = ", ".join(f"{rate:.0%} to the top {float(top):.1%}" for top, rate in choices.hit_rates.items())
            found.append(
                f"decoding went to {choices.decoded:,} experts of those layers and read all of them there; "
                f"by how often the prompt chose them, {rates}"
            )
        return found


@dataclass(frozen=True)
class Choices:
    """How often experts of cold layers were chosen.

    Attributes
    ----------
    prompt, decoded : int
        By tokens of the prompt, and by those after it, guesses that did not come true among them.
    hit_rates : dict of str to float
        By the share of a layer's experts that would be hot, those the prompt chose most: the share of `decoded` that
        went to one of them. Nothing of an expert is held on the device for that as yet.
    """

    prompt: int
    decoded: int
    hit_rates: dict[str, float]


class ColdLayer:
    """A cold layer. No dataclass, for nothing of it is to move when a model's parts do.

    Parameters
    ----------
    index : int
    ring : StackRing
    chosen : uint32 (count,)
        How often tokens went to each of its experts.
    one : uint32 (1,)
        See `count_choices`.
    """

    def __init__(self, index: int, ring: StackRing, chosen: Any, one: Any) -> None:
        self.index, self.ring, self._chosen, self._one = index, ring, chosen, one

    def count(self, experts: Any) -> None:
        """Note where tokens go; int32 (tokens, used)."""
        count_choices(self._chosen, experts, self._one)


def told(layers: Sequence[int], of: int, nbytes: int) -> str:
    """What is said of cold layers.

    >>> told(range(14), 40, 7_400_000_000)
    'experts of 14 of 40 layers wait in host memory, 7.4 GB'
    """
    size = f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB"
    return f"experts of {len(layers)} of {of} layers wait in host memory, {size}"
