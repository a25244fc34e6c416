"""Four-bit floating point: the sixteen numbers of E2M1 under a scale that is a small float itself."""
