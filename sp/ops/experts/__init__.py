"""Mixtures of experts: which experts a token goes to, and what they make of it."""
