"""`sp kernels`: what is done with the CUDA kernels."""
