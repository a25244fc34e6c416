"""Parallel: one piece of work on several cards of a machine, a thread each, that ends for all of them or for none."""
