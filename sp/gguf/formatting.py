"""Formatting that a chat template may ask for, within bounds: `str.format`, and the date of today."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedFormatter

if TYPE_CHECKING:
    from sp.gguf.sandbox import BoundedEnvironment

WIDEST = 1000
"""Characters a field may be padded to, and digits behind its point."""
LONGEST_DATE = 100
_DIRECTIVES = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")


class BoundedFormatter(SandboxedFormatter):
    """`str.format` that looks up what a template may look up, pays for what it prints, and pads within `WIDEST`.

    Parameters
    ----------
    environment : BoundedEnvironment
        Of one rendering.
    """

    def __init__(self, environment: BoundedEnvironment) -> None:
        super().__init__(environment)
        self._budget = environment.budget

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """``!r`` and ``!s``, of plain values only."""
        self._budget.pay_for_text(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        """One field, its specification already filled in; SecurityError where it is wider than any text."""
        self._budget.pay_for_text(value)
        numbers = re.findall(r"\d+", format_spec)
        if len(format_spec) > LONGEST_DATE or any(len(each) > 4 or int(each) > WIDEST for each in numbers):
            raise SecurityError(f"a format is wider than {WIDEST} characters")
        return str(self._budget.pay_for(super().format_field(value, format_spec)))


def strftime_now(directives: str) -> str:
    """Now, in local time, as `datetime.strftime` writes it; without widths, which the C library may take.

    Examples
    --------
    >>> len(strftime_now("%Y-%m-%d"))
    10
    """
    if not isinstance(directives, str) or len(directives) > LONGEST_DATE or not _DIRECTIVES.fullmatch(directives):
        raise SecurityError("strftime_now takes up to 100 characters with plain directives such as %Y-%m-%d")
    return datetime.now().strftime(directives)
