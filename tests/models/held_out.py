"""Rows of predicted times, of long scorings and requests, that are known to be far off, and why."""

_TARGET, _DRAFTER = "qwen3.6-27b-q4_k_m in int8, kept", "int8 in attention"
OLDER = {
    "qwen3-0.6b in int8, 262,144 tokens at density 0.05, sm_90a, 4 cards",
    "qwen3-0.6b in int8, 1,048,576 tokens at density 0.02, sm_90a, 4 cards",
}
"""Of H200s: the first by a commit whose cards waited for their devices while they recorded launches, on a slow host
that nobody looked at; a million tokens by what two cards of another kind wait for each other (-10.0 %)."""
OLDER_H100 = {f"{_TARGET}, drafter {_DRAFTER}, 131,072 tokens, keep 0.05, density 0.24, sm_90a, 2 cards"}
"""Of H100s: measured before Hopper had a kernel of its own to choose blocks."""
