"""Rounded: what of a model is made in eight bits, as far as time goes."""

from __future__ import annotations

from dataclasses import dataclass

from sp.kernels.specs.attention.attention_bytes import HEAD_DIM
from sp.models.arithmetic import AUTO, FIRST_LAYERS, AskedMath, is_eligible
from sp.models.auto_math import FASTER, LEAST_INPUTS, NARROW_INPUTS, gains
from sp.models.config import ModelConfig
from sp.models.inspect.known_cards import Card
from sp.models.inspect.known_cards import Path as KernelPath
from sp.models.recording import Tensor
from sp.quant import Math


@dataclass(frozen=True)
class Rounded:
    """What is made in int8 where enough tokens are read together; nothing by default.

    Attributes
    ----------
    products, attention : bool
    least_inputs : int
        Products with narrower matrices stay in BF16.
    narrow_inputs : tuple of int
        But for those of so many inputs, if products share them.
    left : int
        First layers whose products do.
    """

    products: bool = False
    attention: bool = False
    least_inputs: int = 0
    narrow_inputs: tuple[int, ...] = ()
    left: int = FIRST_LAYERS

    @classmethod
    def of(cls, asked: AskedMath, config: ModelConfig, card: Card, path: KernelPath) -> Rounded:
        """What `asked` comes to on a card; with ``auto`` as of a drafter, whose attention may be in eight bits too.

        That rounding costs a weight too much, which `sp.models.auto_math` asks of a file, is not known here.

        Examples
        --------
        >>> from sp.models.inspect.known_cards import find_card
        >>> from sp.models.synthetic.shapes import find_shape
        >>> config = find_shape("qwen3-0.6b").config
        >>> Rounded.of("auto", config, find_card("h200"), "sm_90a")
        Rounded(products=True, attention=True, least_inputs=4096, narrow_inputs=(1024,), left=2)
        >>> Rounded.of("auto", config, find_card("a100"), "portable")
        Rounded(products=False, attention=False, least_inputs=4096, narrow_inputs=(), left=2)
        """
        if asked == Math.BF16:
            return NOTHING
        attention = path == "sm_90a" and config.head_dim == HEAD_DIM
        if asked == AUTO:
            narrow = NARROW_INPUTS.get(path, ())
            return cls((path, card.capability) in FASTER, attention, LEAST_INPUTS, narrow)
        return cls(True, attention)

    @property
    def attention_math(self) -> Math:
        """Of attention to many tokens."""
        return Math.INT8 if self.attention else Math.BF16

    @property
    def math(self) -> Math:
        """Of the products that are marked; BF16 where none is."""
        return Math.INT8 if self.products else Math.BF16

    def takes(self, tensor: Tensor) -> bool:
        """Whether products with a matrix are made in int8.

        >>> down = Tensor("blk.2.ffn_down.weight", (1024, 3072), "matrix")
        >>> Rounded(products=True).takes(down), Rounded(products=True, least_inputs=4096).takes(down)
        (True, False)
        """
        gained = gains(tensor.name, tensor.shape[-1], self.narrow_inputs, self.least_inputs)
        return self.products and gained and is_eligible(tensor.name, tensor.shape, self.left)


NOTHING = Rounded()
"""All in BF16."""
