"""Measurements on the GPU: timing of kernels, models and requests, and the records of them."""
