"""Ternary formats: 256 codes of -1, 0 or 1 and one scale."""
