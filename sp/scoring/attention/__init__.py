"""Scorers that read the attention of a drafter, one file each."""
