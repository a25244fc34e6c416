"""Few combinations of many parameters: each pair of values of two parameters comes together in at least one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Always the same choice out of the product, in its order: again and again the first that has most new pairs."""
    rows = list(product(*(range(len(each)) for each in values)))
    pairs = [frozenset(combinations(enumerate(row), 2)) for row in rows]
    missing, chosen = frozenset[Any]().union(*pairs), set[int]()
    while missing:
        best = max(range(len(rows)), key=lambda at: len(pairs[at] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return [tuple(each[at] for each, at in zip(values, rows[row], strict=True)) for row in sorted(chosen)]


def pairwise(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parameters of a test by their names: instead of a `parametrize` for each, which would try the whole product."""
    return pytest.mark.parametrize(tuple(values), covering(*values.values()), ids=str)
