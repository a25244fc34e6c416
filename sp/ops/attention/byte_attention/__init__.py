"""Attention in 8-bit precision: queries and keys as int8, weights and values as e4m3."""
