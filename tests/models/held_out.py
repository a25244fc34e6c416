"""Rows of predicted times, of long scorings and requests, that are known to be far off, and why."""

OLDER = {"qwen3-0.6b in int8, 262,144 tokens at density 0.05, sm_90a, 4 cards"}
"""By a commit whose cards queued copies while others queued launches, and whose stripes were all as long."""
