"""Models without trained weights: random ones in real shapes, and constructed retrievers."""
