"""Sweeps: cells, how they are run, stored, resumed and read back."""
