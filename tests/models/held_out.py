"""The row of predicted times, of long scorings and requests, that is known to be far off, and why."""

_TARGET = "qwen3.6-27b-q4_k_m in int8, kept"
HOST = f"{_TARGET}, drafter in int8, 131,072 tokens, keep 0.05, density 0.06, sm_90a, 4 cards"
"""The host sets the pace of four cards there: scoring took 0.17 to 0.24 s on four machines."""
