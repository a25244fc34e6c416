"""Specs of the matrix products and of the packing of their weights."""
