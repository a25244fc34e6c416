"""Scorers by the attention of a drafter."""
