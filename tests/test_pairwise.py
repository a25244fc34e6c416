"""The choice of combinations leaves out no pair of values, and most of the product."""

from __future__ import annotations

from itertools import combinations

import pytest
from pairwise import covering, pairwise

SIZES = [(2, 3), (3, 3, 3), (2, 5, 3), (4, 3, 2, 2), (6, 1, 5), (2, 2, 2, 2, 2)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_pair_of_values_comes_together_once_at_least(sizes: tuple[int, ...]) -> None:
    values = [[f"{name}{at}" for at in range(size)] for name, size in zip("abcde", sizes, strict=False)]
    rows = covering(*values)
    assert rows == covering(*values)
    assert len(set(rows)) == len(rows)
    for one, other in combinations(range(len(values)), 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == {(a, b) for a in values[one] for b in values[other]}


def test_it_is_few_of_the_product() -> None:
    assert len(covering("ab", "xyz")) == 6  # of two there is nothing to leave out
    assert len(covering("abc", "def", "ghi")) <= 11
    assert len(covering(*["ab"] * 5)) <= 8


def test_equal_values_and_such_without_a_hash_are_kept_apart() -> None:
    assert covering([{}, {}], [[1]]) == [({}, [1]), ({}, [1])]


@pairwise(one=[1, 2], other=[{}, {"a": 1}], third=["x", "y"])
def test_a_test_gets_them_by_name(one: int, other: dict[str, int], third: str) -> None:
    assert one in (1, 2)
    assert third in "xy"
    assert other.keys() <= {"a"}
