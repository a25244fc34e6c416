"""Attention in eight bits: queries and keys as signed bytes, weights and values as e4m3."""
