"""Caches of the tokens that a model has read: pages of keys and values, block tables, recurrent states."""
