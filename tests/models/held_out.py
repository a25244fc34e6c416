"""Rows of predicted times that are known to be far off, and why."""

NEWER = {f"qwen3-0.6b {math}, 262,144 tokens at density 0.24, sm_90a" for math in ("int8 in attention", "in int8")}
"""Of a kernel that is faster than the one whose records its rate is fitted to."""
_TARGET = "qwen3.6-27b-q4_k_m in int8, kept"
HOST = f"{_TARGET}, drafter int8 in attention, 131,072 tokens, keep 0.05, density 0.06, sm_90a, 2 cards"
"""Kept tokens launched one by one by two threads: 0.26 to 0.39 s within one process."""
