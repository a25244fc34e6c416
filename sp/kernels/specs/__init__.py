"""Specs of the kernels: signature, launch shape and variants, one module per family."""
