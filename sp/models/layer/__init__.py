"""A layer: its spec, its weights, and the steps that compute it."""
