"""Attention in 8-bit precision: queries and keys as int8; with heads of 64 and 128 weights and values as e4m3."""
