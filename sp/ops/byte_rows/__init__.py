"""Both operands of a matrix product in 8 bits, with outlier channels in BF16: NumPy reference and launches."""
