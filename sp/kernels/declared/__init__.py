"""Declarations of the kernels, one module a family; `sp.kernels.manifest` gathers them."""
