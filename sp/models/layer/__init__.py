"""What a layer computes: its spec, its weights, and its steps."""
