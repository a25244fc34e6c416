"""A few hundred random turns; `fuzz_turns` as a script walks as far as is asked."""

from __future__ import annotations

import pytest
from fuzz_turns import walk
from talks import ARCHS


@pytest.mark.parametrize("target", ARCHS)
@pytest.mark.parametrize("drafter", ARCHS)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_turns(target: str, drafter: str, seed: int) -> None:
    told = walk(30, seed, target, drafter)
    assert told["hits"]
    assert told["misses"]
    assert told["cached"] > told["tokens"] // 4
