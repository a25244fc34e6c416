"""Specs of attention and of the rows around it."""
