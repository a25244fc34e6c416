"""Device memory of a pair of models: caches that are reused, and weights that are offloaded under a budget."""
