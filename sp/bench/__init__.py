"""Measurements on the GPU: how a kernel is timed and how a result is written down."""
