"""Which weights of a projection share a launch of the decode kernel."""

from __future__ import annotations

from sp.ops.gemv import one_form
from sp.ops.project import _launches

Q4_K, Q6_K, Q8_0, BF16 = 12, 14, 8, 30


def test_at_most_four_share_a_launch() -> None:
    assert _launches((Q4_K,) * 9) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


def test_k_quants_and_others_do_not() -> None:
    assert _launches((Q6_K, Q8_0, Q4_K, BF16)) == [[0, 2], [1, 3]]
    assert one_form((Q4_K, Q6_K))
    assert one_form((Q8_0, BF16))
    assert not one_form((Q4_K, Q8_0))
