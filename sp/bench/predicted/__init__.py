"""Predicted times against recorded ones: what is fitted to which records, and how far off the others are."""
