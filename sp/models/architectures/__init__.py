"""Families of models: one file a family."""
