"""Tools for kernels: the check without a GPU, its baseline, compiling ahead, doctor."""
