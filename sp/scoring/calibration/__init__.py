"""Which heads of a drafter's file find what a question asks for: measured on generated needles, kept by file."""
