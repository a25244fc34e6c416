"""Both sides of a matrix product rounded to bytes, with loud channels apart: NumPy twin and launches."""
