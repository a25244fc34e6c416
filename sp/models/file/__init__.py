"""Model files: their keys and tensors, and the files that are refused."""
