"""Attention over paged keys and values, dense and under masks, and what comes before and after it."""
