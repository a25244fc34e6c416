"""8-bit attention: queries and keys as signed bytes, weights and values as e4m3."""
