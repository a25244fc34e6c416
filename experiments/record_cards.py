"""What `record_all.py` measures on several cards of one host, the most important first; nothing else runs meanwhile.

Seconds are of four H200 with compiled kernels, starting Python and making random weights included.
"""

from __future__ import annotations

import sys
from typing import Any

from record_plan import DRAFTER, GPU_TESTS, RECORD, TARGET, Item, Want, sp

FILES = ("test_several_cards.py", "test_shards.py")
PAIR = ("--synthetic-target", "qwen3.6-27b", "--synthetic-drafter", "qwen3-0.6b")
EIGHT = ("--math", "int8", "--drafter-math", "auto")
RULE = "constant:64"
MILLION, MILLION_TOKENS = "960k", 960 << 10
"""A prompt that is within the window, stretched fourfold, whichever model counts its tokens."""


def several(cards: int) -> list[Item]:
    """Tests and benchmarks of so many cards; none of one."""
    if cards < 2:
        return []
    on, drafted = ("--cards", str(cards)), {"cards": cards, "math": "int8", "tokens": "random"}
    shared = {"target_cards": cards, "math": "int8"}
    return [
        _alone(
            "tests",
            (sys.executable, "-m", "pytest", "-q", *(f"tests/gpu/{name}" for name in FILES), *RECORD),
            120,
            *(Want(GPU_TESTS, 1, {"tests": [name]}) for name in FILES),
        ),
        _alone(
            "first token",
            sp(
                *("bench", "ttft", *PAIR, "-p", "128k", "--sparse", "density:0.05,density:0.24"),
                *(*EIGHT, "--full-repeats", "1", *on, *RECORD),
            ),
            60,
            Want("ttft", 2, {**shared, "cards": cards, "keep_ratio": 0.05}),
            Want("ttft", 1, {**shared, "keep_ratio": 1.0}),
        ),
        _alone(
            "scoring",
            _scoring("128k,256k", on, "--sparse", "density:0.05,density:0.24"),
            25,
            Want("drafter", 4, drafted | {"blocks": None}),
        ),
        _alone(
            "scoring of a million",
            _scoring("128k,1m", on, "--sparse", RULE),
            30,
            Want("drafter", 2, drafted | {"blocks": RULE}),
        ),
        _alone(
            "first token of a million",
            sp(
                *("bench", "ttft", *PAIR, "-p", MILLION, "--target-rope", "yarn:4"),
                *("--keep-ratio", "0.02", "--sparse", RULE, *EIGHT, "--full-repeats", "0", "-r", "2", *on, *RECORD),
            ),
            40,
            Want("ttft", 1, {**shared, "prompt_tokens": MILLION_TOKENS, "cards": cards}),
        ),
        _alone(
            "prefill and decode",
            sp("bench", "model", *TARGET, "-p", "512,8k,128k", "-n", "64", *on, *RECORD),
            50,
            *(Want("prefill", 1, {"cards": cards, "math": "bf16", "prompt_tokens": n}) for n in (512, 8192, 131072)),
            Want("decode", 1, {"cards": cards, "context": 0}),
        ),
    ]


def _scoring(lengths: str, on: tuple[str, ...], *read: str) -> tuple[str, ...]:
    return sp("bench", "drafter", *DRAFTER, "-p", lengths, *read, "--math", "auto", *on, *RECORD)


def _alone(name: str, command: tuple[str, ...], seconds: float, *wants: Any) -> Item:
    return Item(f"cards, {name}", command, seconds, wants, alone=True)
