"""I-quants: codes that are looked up, in a line of sixteen values or in a grid of vectors."""
