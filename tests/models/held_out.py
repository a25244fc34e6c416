"""Rows of predicted times, of long scorings and requests, that are known to be far off, and why."""

_TARGET, _DRAFTER = "qwen3.6-27b-q4_k_m in int8, kept", "int8 in attention"
_MILLION = f"qwen3-0.6b {_DRAFTER}, 1,048,576 tokens at density 0.02, sm_90a, 2 cards"
OLDER = {_MILLION, f"{_TARGET}, drafter {_DRAFTER}, 983,040 tokens, keep 0.02, density 0.02, sm_90a, 4 cards"}
"""Of H200s: measured before Hopper had a kernel of its own to choose blocks, whose rate they are predicted with."""
OLDER_H100 = {_MILLION, f"{_TARGET}, drafter {_DRAFTER}, 131,072 tokens, keep 0.05, density 0.24, sm_90a, 2 cards"}
"""The same of H100s."""
