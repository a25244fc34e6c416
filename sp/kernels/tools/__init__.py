"""Tools around the kernels: the check without a GPU, its baseline, building ahead, doctor."""
