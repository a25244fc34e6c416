"""Decoding after the prefill."""
