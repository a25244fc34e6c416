"""What a template may still do before it is stopped: one number that bounds time and memory alike."""

from __future__ import annotations

from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

CHARS_PER_UNIT = 64  # a step of work and the handling of 64 characters take about as long: a microsecond
MAX_INT_BITS = 4096

NUMBERS = (int, float)
ATOMS = (int, float, type(None), Undefined)
LEAVES = (*ATOMS, Namespace)
PLAIN = (*ATOMS, str, list, tuple, dict, range)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class Budget:
    """Work a template may still do, in units of one step or `CHARS_PER_UNIT` characters.

    It bounds time and memory alike: nothing is built before its size is paid for, and containers pay for all
    they hold each time they are made, compared or printed, so sharing cannot make a small one large.
    """

    def __init__(self, units: int) -> None:
        self.left = units

    def pay(self, units: int) -> None:
        """Take `units`; SecurityError when they are not there."""
        self.left -= units
        if self.left < 0:
            raise SecurityError("it does more work than any chat template needs")

    def pay_for(self, value: Any, leaves: tuple[type, ...] = LEAVES) -> Any:
        """Take the cost of `value` with all it contains, and hand it back."""
        pending = [value]
        while pending:
            item = pending.pop()
            kind = type(item)
            if isinstance(item, str):
                self.pay(1 + len(item) // CHARS_PER_UNIT)
            elif kind is range:
                self.pay(1 + len(item))
            elif kind in (list, tuple, *_VIEWS):
                self.pay(1 + len(item))
                pending += item
            elif kind is dict:
                self.pay(1 + 2 * len(item))
                pending += item.keys()
                pending += item.values()
            elif isinstance(item, int) and item.bit_length() > MAX_INT_BITS:
                raise SecurityError(f"an integer has more than {MAX_INT_BITS} bits")
            elif item is not value and not isinstance(item, leaves):
                raise SecurityError(f"a list or dict holds a {kind.__name__}")
            else:
                self.pay(1)
        return value

    def pay_for_text(self, value: Any) -> Any:
        """`pay_for` what is about to be printed: only plain values have a bounded text."""
        if not isinstance(value, PLAIN):
            raise SecurityError(f"it asks for the text of a {type(value).__name__}")
        return self.pay_for(value, ATOMS)
