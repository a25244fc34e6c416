"""Rows of predicted times that are known to be far off, and why."""

NEWER = "qwen3-0.6b int8 in attention, 262,144 tokens at density 0.24, sm_90a"
"""Of a kernel that is faster than the one whose records its rate is fitted to."""
