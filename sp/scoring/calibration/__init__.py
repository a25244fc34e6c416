"""Calibrations: the heads of a drafter's file that retrieve, measured on generated needles and stored by file."""
