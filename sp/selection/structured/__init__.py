"""Whole lines, JSON values and messages as units of selection: what needs what, from bytes of the text to tokens."""
