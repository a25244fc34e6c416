"""Cases of `sp kernels bench`, one module per group of operations."""
