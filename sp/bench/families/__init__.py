"""Cases of `sp kernels bench`, by what they time."""
