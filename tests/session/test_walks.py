"""The walks of the device's tests on the CPU, within what the rounding of keys and values to f16 may do."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversation_walks import (
    PAIRS,
    compressed_turns,
    pair,
    parked_turns,
    restarted_turns,
    warm_and_cold,
    whole_turns,
)

BOUND = 1e-6
SIZE = 300
"""A third of what the device reads a turn."""


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_whole_turns_have_the_logits_of_one_prefill(names: tuple[str, str]) -> None:
    assert max(whole_turns(pair(*names, "cpu"), 2, SIZE)) < BOUND


def test_compressed_turns_have_the_logits_of_what_is_in_the_cache() -> None:
    errors, recalled = compressed_turns(pair(*PAIRS[0], "cpu"), "auto", 3, SIZE)
    assert max(errors) < BOUND
    assert recalled > 0


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
@pytest.mark.parametrize(("keys", "bound", "least"), [("f16", BOUND, 0.999), ("q4_0", 0.02, 0.9)])
def test_warm_is_cold(names: tuple[str, str], keys: str, bound: float, least: float) -> None:
    found = warm_and_cold(pair(*names, "cpu"), keys, "tail", 2, SIZE)
    assert all(off < bound for off, _, _ in found)
    assert all(worth > least for _, worth, _ in found)
    assert keys == "q4_0" or all(differ == 0 for _, _, differ in found)


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_caches_may_leave_between_turns(names: tuple[str, str]) -> None:
    parked_turns(pair(*names, "cpu"), 3, SIZE)


def test_each_turn_may_be_another_process(tmp_path: Path) -> None:
    restarted_turns(pair(*PAIRS[0], "cpu"), tmp_path, 2, SIZE)
