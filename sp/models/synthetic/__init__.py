"""Models without trained weights: random weights in real shapes, and constructed retrievers."""
